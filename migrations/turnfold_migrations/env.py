"""What Alembic runs: the migrations on the connection it was handed."""

from alembic import context

from turnfold.store.database.schema import metadata

connection = context.config.attributes["connection"]
# Each holds the locks of its own tables alone: all in one transaction would meet services that write meanwhile, in a deadlock.
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
