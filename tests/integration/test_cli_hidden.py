"""What others wrote is shown and never acts: no command lets a stored character move a cursor or hide."""

import json
import unicodedata
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

import pytest

from fencepost.ledger import principals
from fencepost.ledger.connect import connect
from fencepost.outcomes import Applied, Refused, Unsure
from tests.integration.ledger_bench import TENANT, Bench, kept
from tests.integration.shell import Shell

EVIL = "x\x1b[2J\u200bb\u202ec\u2066d\ufe0fe\U000e0041f\u00adg\u2028h\rover\u3164"
FAKE = "\n  next    nothing to do: all is well"


@pytest.fixture
def shell(bench: Bench, no_settings: None) -> Shell:
    return Shell(bench.database, {"COLUMNS": "240"})


def hidden(text: str) -> set[str]:
    """The characters in `text` that a terminal acts upon, or that nobody sees."""
    acting = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - {"\n"}
    return acting | {c for c in text if c in "\ufe0f\u3164" or 0xE0000 <= ord(c) <= 0xE0FFF}


@pytest.fixture(scope="module")
def seen(module_bench: Bench) -> dict[str, UUID]:
    """Runs full of such text: refused, in need of repair, answered, and waiting for an approval."""
    bench = module_bench
    run = bench.enqueue(f"key{EVIL}")
    refused, unclear, fine = bench.plan(
        run,
        ("wallet.note", {"order": EVIL + FAKE}),
        ("wallet.lend", {"order": bench.order()}),
        ("wallet.tip", {"order": bench.order()}),
    )
    send, term = bench.dispatch(run, refused)
    bench.record(send, term, Refused("http_402", EVIL + FAKE, retryable=False))
    send, term = bench.dispatch(run, fine)
    bench.record(send, term, Applied(json.dumps({"id": EVIL, "page": EVIL + FAKE}), EVIL))
    send, term = bench.dispatch(run, unclear)
    bench.record(send, term, Unsure("http_500", EVIL + FAKE, repair=True))
    with connect(bench.database.dsns["operator"], "test", autocommit=True) as operator:
        principals.disable(operator, TENANT, "p", by="ann", reason=EVIL + FAKE)
        until = bench.now() + timedelta(hours=1)
        principals.delegate(operator, TENANT, "a", "b", until=until, by="ann", reason=EVIL)
    tainted = bench.enqueue(f"tainted{EVIL}")
    bench.succeed(tainted, bench.debit(tainted, EVIL, "wallet.balance"), receipt=EVIL)
    asked = bench.debit(tainted, EVIL + FAKE, "mail.send")
    assert bench.state(asked) == "AWAITING_APPROVAL"
    return {"run": run, "unclear": unclear, "fine": fine, "tainted": tainted, "asked": asked}


COMMANDS = (
    ("runs",),
    ("show", "{run}"),
    ("show", "{run}", "--events"),
    ("watch", "--once"),
    ("unresolved",),
    ("unresolved", "{unclear}"),
    ("result", "{fine}"),
    ("outbox",),
    ("principals",),
    ("principals", "--changes"),
    ("delegations",),
    ("show", "{tainted}"),
    ("approvals",),
    ("approvals", "show", "{asked}"),
    ("explain", "{asked}"),
    ("explain", "{fine}"),
    ("explain", "{unclear}"),
    ("repair", "--where", "tool=wallet.lend", "--accept-unknown", "--dry-run", "--reason", "x"),
)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_a_character_that_acts_or_hides(
    shell: Shell, seen: dict[str, UUID], command: tuple[str, ...], as_json: bool
) -> None:
    asked = [word.format(**seen) for word in command]
    told = shell(*asked, *(["--json"] if as_json else []))
    assert told.exit_code in (0, 1), told.output
    assert hidden(told.output) == set()
    assert FAKE.strip() not in [line.strip() for line in told.output.splitlines()]
    if as_json and "watch" not in command:
        json.loads(told.stdout)


def test_json_says_exactly_what_is_stored(shell: Shell, seen: dict[str, UUID]) -> None:
    told = shell.json("result", str(seen["fine"]))
    assert told["result"] == {"id": EVIL, "page": EVIL + FAKE}
    raw = shell("result", str(seen["fine"]), "--raw").stdout_bytes
    assert (sha256(raw).hexdigest(), json.loads(raw)) == (told["digest"], told["result"])
    assert "give --raw or --json" in shell.refused(2, "result", str(seen["fine"]), "--raw", "--json")


def test_a_result_that_was_changed_behind_our_back_is_not_shown(bench: Bench, shell: Shell) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.tip")
    assert "has no stored result; it is INTENT_RECORDED" in shell.refused(1, "result", str(call))
    text = '{"id": "r", "n": [NaN, "half \\ud800"]}'
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Applied(text, "r"))
    assert shell.json("result", str(call))["text"] == text
    digest = kept(text).digest
    bench.sql("ALTER TABLE fencepost.payloads DROP CONSTRAINT payloads_digest_check")  # a disk asks nobody
    flip = "UPDATE fencepost.payloads SET data = set_byte(data, 3, get_byte(data, 3) # 1) WHERE digest = %s"
    bench.sql(flip, digest)
    assert "its hash is another; restore it" in shell.refused(1, "result", str(call))
    assert "was changed" in shell("verify", str(run)).output
    bench.sql("DELETE FROM fencepost.payloads WHERE digest = %s", digest)
    assert "is missing; restore it" in shell.refused(1, "result", str(call))
    bench.sql(
        "INSERT INTO fencepost.payloads (tenant, digest, data) VALUES (%s, %s, %s)",
        TENANT,
        digest,
        text.encode(),
    )


def test_an_error_that_quotes_what_was_stored_hides_nothing(shell: Shell) -> None:
    told = shell.refused(2, "show", "no\u202esuch\u200brun")
    assert hidden(told) == set()
    assert "no\\u202esuch\\u200brun" in told
