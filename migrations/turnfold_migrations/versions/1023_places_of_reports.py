"""Reports of usage keep their own place beside that of their answer, so that none is lost."""

import sqlalchemy as sa
from alembic import op

revision = "1023"
down_revision = "1022"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column: null in older rows, and in those of older workers.

    Of several reports about one answer, they kept only the first, there.
    """
    op.add_column("usage_reports", sa.Column("answer_position", BIG))
    answer = sa.text("coalesce(answer_position, position)")
    op.create_index("ix_usage_reports_answer", "usage_reports", ["sid", answer])
    # Otherwise each report would read all that was ever retracted in its session.
    columns = ["sid", "retracted_seq", "position"]
    op.create_index("ix_retracted_messages_seq", "retracted_messages", columns)


def downgrade() -> None:
    """Remove it. Reports that named a stored answer wait for it again."""
    op.drop_index("ix_retracted_messages_seq", "retracted_messages")
    op.drop_index("ix_usage_reports_answer", "usage_reports")
    op.drop_column("usage_reports", "answer_position")
