"""`fencepost intake`: what became no run is seen, dealt with and dropped."""

import uuid
from uuid import UUID

import psycopg

from tests.integration.shell import Shell


def refuse(shell: Shell, error: str, tenant: str = "shop", refusal: UUID | None = None) -> UUID:
    refusal = refusal or uuid.uuid4()
    with psycopg.connect(shell.database.dsns["producer"], autocommit=True) as producer:
        values = [refusal, "intake", tenant, "svc:intake", '[[], {"run_key": "o-1"}, {}]', error]
        producer.execute("SELECT fencepost.refuse_intake(%s, %s, %s, %s, %s, %s)", values)
    return refusal


def test_nothing_refused_is_the_answer_yes(shell: Shell) -> None:
    assert shell.ok("intake") == "no message was refused\n"
    assert shell.json("intake") == []


def test_what_was_refused_is_listed_with_its_reason_until_it_is_dropped(shell: Shell) -> None:
    first = refuse(shell, "it lacks planner")
    second = refuse(shell, "it names\x07 no task", tenant="other")
    refuse(shell, "the same message again", refusal=first)
    told = shell("intake")
    assert (told.exit_code, told.stdout.count("refused  ")) == (1, 2)
    assert told.stdout.index("it lacks planner") < told.stdout.index("it names\\u0007 no task")
    (found,) = shell.json("intake", "--tenant", "shop", exit_code=1)
    assert (found["id"], found["error"]) == (str(first), "it lacks planner")
    assert found["message"] == '[[], {"run_key": "o-1"}, {}]'
    assert shell.ok("intake", "drop", str(first)[:8]) == f"dropped {first}\n"
    assert shell.refused(2, "intake", "drop", str(first)) == f"there is no refused message {first}"
    assert shell.ok("intake", "--tenant", "shop") == "no message of tenant shop was refused\n"
    assert [one["id"] for one in shell.json("intake", exit_code=1)] == [str(second)]


def test_only_an_operator_drops_and_a_producer_sees_nothing_of_others(shell: Shell) -> None:
    refused = refuse(shell, "it lacks planner")
    for role in ("reader", "worker"):
        assert "may not do that" in shell.refused(2, "intake", "drop", str(refused), role=role)
    assert "may not do that" in shell.refused(2, "intake", role="producer")
    assert shell("intake", role="reader").exit_code == 1


def test_what_cannot_be_reached_or_is_meant_is_one_sentence(shell: Shell) -> None:
    assert "cannot reach" in shell.refused(3, "intake", FENCEPOST_DSN="postgresql://u@127.0.0.1:9/db")
    assert "no refused message nonsense" in shell.refused(2, "intake", "drop", "nonsense")
    several = UUID(int=7 << 100)
    refuse(shell, "one", refusal=several)
    refuse(shell, "other", refusal=UUID(int=(7 << 100) + 1))
    assert "names several" in shell.refused(2, "intake", "drop", str(several)[:8])
    assert shell.json("intake", "drop", str(several)) == {"dropped": str(several)}
