"""${message}."""

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Bring the schema up to this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Bring it back."""
    ${downgrades if downgrades else "pass"}
