"""Models, budgets over trees of runs, child runs, memory, correlation and versions."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them. The SQL is a file of its own and never edited once released."""
    sql = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(sql.replace("%", "%%"))


def downgrade() -> None:
    """Refused, as by the first."""
    raise NotImplementedError("a ledger is not migrated backwards; restore a backup if you mean it")
