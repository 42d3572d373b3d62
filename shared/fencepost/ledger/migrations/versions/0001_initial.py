"""The first schema, made from the metadata until the first release freezes it."""

from alembic import op

from fencepost.ledger.ddl import statements

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything."""
    for statement in statements():
        op.get_bind().exec_driver_sql(statement.replace("%", "%%"))


def downgrade() -> None:
    """Refused: a ledger is not thrown away by a migration."""
    raise NotImplementedError(
        "a ledger is not thrown away by a migration; drop the schema by hand if you mean it"
    )
