"""What stands in the ledger about principals, delegations, tools and policies, for a batch that authorises.

Read with the batch, under its runs' locks, in one statement; never kept: what commits before a claim reads
counts in that claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fencepost import commands as c
from fencepost.authority.standing import MAX_DELEGATIONS, MAX_LINKS, Delegation, Principal, Standing
from fencepost.clock import parse_rfc3339
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection, Pipeline

_AUTHORISING: Final = (
    c.RecordTurn, c.ClaimCall, c.ClaimDoubt, c.RecordCompensation, c.DecideApproval,
    c.Restore,  # what may have been sent takes of the allowances in force
)  # fmt: skip

# Operators write these rows by hand too, and no row may be what stops everybody's batches.
_FIRST, _LAST = "0001-01-01T00:00Z", "9999-12-31T00:00Z"
_RFC_3339: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'

# `reached` holds the principals of the batch's runs and everybody whose authority delegations give them; it
# may hold more than are valid: which of them count is judged apart (`authority.standing`). Of one delegate,
# and of one length of chain from one root, it reads one more than may be: then that root is `crowded`, and a
# batch costs no more than that, whatever has been delegated. Each delegate is looked up in its index.
_LIVING = f"""SELECT d.*, row_number() OVER () > {MAX_DELEGATIONS} AS over FROM fencepost.delegations d
        WHERE d.delegate = one.principal AND d.tenant IS NOT DISTINCT FROM one.tenant
            AND d.revoked_at IS NULL AND d.until > fencepost.now()
        LIMIT {MAX_DELEGATIONS + 1}"""
READ_STANDING = f"""
WITH RECURSIVE asked AS (
    SELECT DISTINCT r.tenant, r.principal
    FROM unnest(%(run_tenants)s::text[], %(runs)s::uuid[]) AS w (tenant, id)
    JOIN fencepost.runs r USING (tenant, id)
    UNION SELECT * FROM unnest(%(person_tenants)s::text[], %(persons)s::text[])
    UNION SELECT calls.tenant, said ->> 'who'  -- whoever has approved what is claimed
    FROM unnest(%(call_tenants)s::text[], %(calls)s::uuid[]) AS w (tenant, id)
    JOIN fencepost.calls USING (tenant, id)
    CROSS JOIN LATERAL json_array_elements(calls.approval::json -> 'decisions') AS said
), reached AS (
    SELECT tenant, principal AS root, principal, 0 AS links, false AS over FROM asked
    UNION ALL
    SELECT tenant, root, principal, links, over OR place > {MAX_DELEGATIONS} FROM (
        SELECT *, row_number() OVER (PARTITION BY tenant, root) AS place FROM (
            SELECT DISTINCT one.tenant, one.root, d.principal, one.links + 1 AS links, d.over
            FROM reached one CROSS JOIN LATERAL ({_LIVING}) d
            WHERE one.links < {MAX_LINKS} AND NOT one.over
        ) further
    ) counted WHERE place <= {MAX_DELEGATIONS + 1}
), crowded AS (SELECT DISTINCT tenant, root FROM reached WHERE over
), known AS (SELECT * FROM reached WHERE (tenant, root) NOT IN (SELECT tenant, root FROM crowded)
), people AS (SELECT tenant, principal FROM known UNION SELECT tenant, principal FROM reached WHERE links = 0
), delegates AS (SELECT DISTINCT tenant, principal FROM known WHERE links < {MAX_LINKS})
SELECT
    (SELECT json_agg(json_build_array(t.tenant, (SELECT max(p.version) FROM fencepost.policies p
        WHERE p.tenant IN ('', t.tenant)))) FROM (SELECT DISTINCT tenant FROM asked) t),
    (SELECT json_agg(json_build_array(p.tenant, p.principal, p.roles, p.disabled_at IS NOT NULL, p.reason))
        FROM people JOIN fencepost.principals p USING (principal, tenant)),
    (SELECT json_agg(json_build_array(d.tenant, d.principal, d.delegate, d.tools,
            to_char(greatest(d.since, '{_FIRST}') AT TIME ZONE 'UTC', '{_RFC_3339}'),
            to_char(least(d.until, '{_LAST}') AT TIME ZONE 'UTC', '{_RFC_3339}')) ORDER BY d.since, d.id)
        FROM delegates one CROSS JOIN LATERAL ({_LIVING}) d),
    (SELECT json_agg(json_build_array(tool, version, reason)) FROM fencepost.withdrawn),
    (SELECT json_agg(json_build_array(tenant, root)) FROM crowded)
"""
# Most ledgers have nothing of it, and then a batch asks no more than this.
ANYTHING = " OR ".join(
    f"EXISTS (SELECT 1 FROM fencepost.{table})"
    for table in ("policies", "principals", "delegations", "withdrawn")
)
READ_BUNDLES = "SELECT version, bundle FROM fencepost.policies WHERE version = ANY(%s)"


def authorises(batch: Sequence[c.Command]) -> bool:
    """Whether anything in a batch asks who may have what done."""
    return any(isinstance(x, _AUTHORISING) for x in batch)


def persons(batch: Sequence[c.Command]) -> dict[str, str]:
    """The persons who decide something in this batch, as parameters of READ_STANDING."""
    asked = [(x.tenant, x.by) for x in batch if isinstance(x, c.DecideApproval)]
    return {
        "person_tenants": rows.text_array(tenant for tenant, _ in asked),
        "persons": rows.text_array(person for _, person in asked),
    }


def read(connection: Connection, pipeline: Pipeline, args: Mapping[str, Any]) -> Standing:
    """What stands about the principals of a batch's runs, and its persons."""
    found = connection.execute(READ_STANDING, args)
    pipeline.sync()  # as in `load` (R8)
    policies, people, delegations, withdrawn, crowded = found.fetchall()[0]
    return Standing(
        policies={tenant: version for tenant, version in policies or () if version is not None},
        principals={
            (tenant, name): _principal(roles, disabled, reason or "")
            for tenant, name, roles, disabled, reason in people or ()
        },
        delegations=tuple(
            Delegation(tenant, principal, delegate, tools, parse_rfc3339(since), parse_rfc3339(until))
            for tenant, principal, delegate, tools, since, until in delegations or ()
        ),
        withdrawn={(tool, version): reason for tool, version, reason in withdrawn or ()},
        crowded=frozenset((tenant, root) for tenant, root in crowded or ()),
    )


def _principal(roles: str, disabled: bool, reason: str) -> Principal:
    try:
        found = json.loads(roles)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(role, str) for role in found):
        return Principal((), disabled=True, reason="its roles in the ledger are no list of names")
    return Principal(tuple(found), disabled, reason)
