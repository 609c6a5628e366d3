"""What Alembic runs: the migrations on the connection it was handed."""

from alembic import context

from turnfold.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
