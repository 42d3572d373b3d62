"""A line for each request of the HTTP interface: of a run with its trace, of no run with none."""

import json
from uuid import uuid4

import pytest

from fencepost_ops.database import LedgerDatabase
from tests.integration.api_process import running, start, token


@pytest.mark.timeout(120)
def test_a_request_about_a_run_says_so_in_its_line_and_no_other_does(database: LedgerDatabase) -> None:
    with running(database, FENCEPOST_LOG="json") as api, api.client(token(database)) as client:
        first = start(client, "first").json()["id"]
        other = start(client, "other").json()["id"]
        asked = {"run": f"/v1/runs/{first}", "events": f"/v1/runs/{first}/events", "none": "/v1/runs"}
        asked |= {"gone": f"/v1/runs/{uuid4()}", "ready": "/readyz", "nothing": "/v1/nothing"}
        for name, path in asked.items():
            client.get(path, headers={"X-Request-Id": f"asked-{name}"})
        told = {"name": "n", "body": {}}
        for kind, body in (("signals", told), ("cancel", {"reason": "enough"})):
            head = {"X-Request-Id": f"asked-{kind}", "Idempotency-Key": "k"}
            assert client.post(f"/v1/runs/{other}/{kind}", json=body, headers=head).is_success, kind
    lines = [json.loads(line) for line in api.log.splitlines() if line.startswith("{")]
    found = {
        str(line["message"]).rpartition("asked-")[2]: line.get("trace_id")
        for line in lines
        if "asked-" in str(line["message"])
    }
    of_first = dict.fromkeys(["run", "events"], first.replace("-", ""))
    of_other = dict.fromkeys(["signals", "cancel"], other.replace("-", ""))
    assert found == of_first | of_other | dict.fromkeys(["none", "gone", "ready", "nothing"])
    assert {line["run"] for line in lines if "trace_id" in line} == {first, other}
