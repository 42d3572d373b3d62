"""Alembic's entry: one connection, one transaction, and `upgrade` holds the lock of the one migrator."""

from alembic import context
from sqlalchemy import Connection, text

from fencepost.ledger.schema import SCHEMA, metadata

connection: Connection = context.config.attributes["connection"]
connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    transactional_ddl=True,
)
# Whoever queues behind this for a table waits as long: short tries, which `fencepost migrate` repeats.
connection.execute(text("SET LOCAL lock_timeout = '2s'"))
with context.begin_transaction():
    context.run_migrations()
