"""Alembic's entry: one connection, one transaction, one migrator at a time."""

from alembic import context
from sqlalchemy import Connection, text

from fencepost.ledger.schema import SCHEMA, metadata

_ONE_MIGRATOR = 0x66656E6365  # advisory lock: a second `migrate` waits, then finds nothing left to do

connection: Connection = context.config.attributes["connection"]
connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_MIGRATOR})
connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
