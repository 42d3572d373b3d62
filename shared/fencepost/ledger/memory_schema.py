"""The table of what runs remember, and the view of what their results rest on."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from fencepost.ledger.schema import col, decided, instant, metadata
from fencepost.memory_port import MAX_VALUE_BYTES

# Every version of every key, for ever: only its value may be erased. A tenant's keys are read in order;
# nothing is looked up here by an id alone but an operation.
memory = Table(
    "memory",
    metadata,
    col("tenant", Text),
    col("space", Text),
    col("key", Text),
    Column("version", BigInteger, autoincrement=False, nullable=False),
    col("value", Text, null=True),
    # A version may say that there is nothing: what was before the first one, restored.
    col("absent", Boolean, default="false"),
    col("restores", BigInteger, null=True),
    col("untrusted", Boolean),
    col("operation", Text),
    col("run", Uuid),
    col("call", Uuid),
    instant("written_at"),
    instant("erased_at", null=True),
    col("erased_by", Text, null=True),
    col("erased_reason", Text, null=True),
    PrimaryKeyConstraint("space", "tenant", "key", "version"),
    UniqueConstraint("operation", "tenant"),
    CheckConstraint(f"octet_length(value) <= {MAX_VALUE_BYTES}", name="memory_value_check"),
    decided("memory", "erased_by"),
    CheckConstraint(
        "num_nonnulls(erased_at, erased_by, erased_reason) IN (0, 3)", name="memory_erased_check"
    ),
)

GROUNDING: Final = """
CREATE VIEW fencepost.grounding AS
SELECT e.tenant, e.run, e.seq, g.place, e.call, c.turn, c.label, c.tool, g.said ->> 'source' AS source,
    g.said ->> 'id' AS id, g.said ->> 'version' AS version, g.said ->> 'as_of' AS as_of,
    coalesce((g.said ->> 'stale')::boolean, false) AS stale, e.recorded_at,
    coalesce((e.body #>> '{ungrounded,left_out}')::bigint, 0) AS left_out,
    e.body #>> '{ungrounded,unread}' AS unread
FROM fencepost.events e JOIN fencepost.calls c ON c.id = e.call AND c.tenant = e.tenant
    LEFT JOIN LATERAL json_array_elements(e.body -> 'grounds') WITH ORDINALITY AS g (said, place) ON true
WHERE e.type IN ('ToolResultRecorded', 'ToolEffectReconciled')
    AND (e.body -> 'grounds' IS NOT NULL OR e.body -> 'ungrounded' IS NOT NULL);
"""
"""What results rest on, one row for a document or a version of memory; to be asked for a run.

`left_out` counts those of the same result that are not listed. A result whose grounds could not be told is
one row without a source, with the reason in `unread`.
"""

MEMORY_GRANTS: Final = """
GRANT INSERT ON fencepost.memory TO fencepost_worker;
GRANT UPDATE (value, erased_at, erased_by, erased_reason) ON fencepost.memory TO fencepost_operator;
GRANT EXECUTE ON FUNCTION fencepost.write_memory TO fencepost_worker;
GRANT EXECUTE ON FUNCTION fencepost.written_memory TO fencepost_worker;
"""
