"""A tool that uses a secret, drilled: attempts and questions ask for it anew, and only its name is stored."""

from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Effect, Request, SecretRef
from fencepost_ops.drill.users.engine import UserDrill
from fencepost_ops.drill.users.exchanges import Received
from fencepost_ops.examples import wrong_tools as tools

ARGS = {"order": "o-1", "password": {"secret": "till/main"}}
FAULTS = {
    "lost": '{"at": "dispatch.response_lost", "do": "lost"}',
    "crash": '{"at": "dispatch.response_lost", "do": "crash"}',
}


class Charge(BaseModel):
    order: str
    password: SecretRef


class Till(tools.Till):
    """A till that looks at who asks."""

    def __init__(self, now: Any) -> None:
        super().__init__(now)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, request: Received) -> tuple[int, Any]:
        self.asked.append((request.method, request.headers.get("x-password", "")))
        return super().__call__(request)


def app_of(values: list[str]) -> App:
    """A shop whose secret has another value each time it is asked for."""
    app = App("shop")
    service = app.dependency("till", "https://till.invalid")

    @app.secrets
    def resolve(tenant: str, name: str) -> str | None:
        values.append(f"hunter2-{tenant}-{name}-{len(values)}")
        return values[-1]

    @service.http(
        "shop.charge",
        effect=Effect.IRREVERSIBLE,
        returns=tools.Receipt,
        intent=lambda a: ("order", a.order),
        contract=tools.STRONG,
        secrets=("till/*",),
    )
    def charge(args: Charge) -> Request:
        return Request.post(
            "/charges", json={"reference": args.order}, headers={"X-Password": str(args.password)}
        )

    @charge.lookup
    def find(args: Charge, key: str) -> Request:
        return Request.get(f"/by-key/{key}", headers={"X-Password": str(args.password)})

    @app.python("local.note", effect=Effect.READ, secrets=("till/*",))
    def note(args: Charge, attempt: Attempt) -> str:
        return attempt.secret(args.password).reveal()

    return app


@pytest.mark.parametrize("fault", FAULTS)
def test_an_attempt_and_its_question_have_the_secret_of_their_own_time(
    fencepost_drill: UserDrill, fault: str
) -> None:
    values: list[str] = []
    till = Till(fencepost_drill.now)
    protocol = f'{{"version": 1, "name": "{fault}", "faults": [{FAULTS[fault]}]}}'
    result = fencepost_drill(
        app_of(values), "shop.charge", ARGS, service=till, book=till.book, protocol=protocol
    )
    (played,) = result.assert_one_effect().played
    assert [(method, value) for method, value in till.asked] == [("POST", values[0]), ("GET", values[1])]
    (call,) = played.calls
    assert call.state == "SUCCEEDED"
    assert "hunter2" not in f"{call}"
    assert '{"secret":"till/main"}' in call.arguments


def test_a_secret_that_is_not_there_costs_attempts_and_no_request(fencepost_drill: UserDrill) -> None:
    app, till = app_of([]), Till(fencepost_drill.now)
    app.resolver = lambda _tenant, _name: None
    protocol = '{"version": 1, "name": "none"}'
    result = fencepost_drill(app, "shop.charge", ARGS, service=till, book=till.book, protocol=protocol)
    (played,) = result.played
    assert till.asked == []
    assert [call.state for call in played.calls] == ["FAILED"]
