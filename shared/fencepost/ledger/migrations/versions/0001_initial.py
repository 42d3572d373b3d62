"""The first schema: runs, events, calls, operations, outbox, evidence, workers, payloads, guards, roles."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything. The SQL is a file of its own and never edited once released."""
    sql = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(sql.replace("%", "%%"))


def downgrade() -> None:
    """Refused: a ledger is not thrown away by a migration."""
    raise NotImplementedError(
        "a ledger is not thrown away by a migration; drop the schema by hand if you mean it"
    )
