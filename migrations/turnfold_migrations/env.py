"""Alembic's entry point: runs the migrations on the connection that it was given."""

from alembic import context

from turnfold.store.database.schema import metadata

connection = context.config.attributes["connection"]
# One transaction per migration, so that each locks only its own tables: a transaction that locks
# all of them could deadlock with services that write meanwhile.
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=True,
    # Not the default for SQLite, whose driver has to be told to leave transactions to others.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
