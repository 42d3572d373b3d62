"""A secret is a name until its attempt begins, and then it is shown nowhere."""

import asyncio
import copy
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from pydantic import BaseModel

from fencepost import App, Effect, Request
from fencepost.errors import NotApplied, UsageError
from fencepost.outcomes import Applied, Outcome, result_text
from fencepost.output import MAX_OUTPUT_BYTES
from fencepost.proposals import Rejected, Validated, validate
from fencepost.secrets import PLACEHOLDER, Resolver, Secret, SecretRef
from fencepost.settings import load_settings
from fencepost.tools import Attempt, Proposal, StoredRequest, Tool, Turn
from fencepost.wire import fingerprint
from fencepost_workers.attempts import secrets_of
from fencepost_workers.planner import _transcript
from fencepost_workers.tools.credentials import Credentials
from fencepost_workers.tools.python import run_python
from fencepost_workers.tools.secrets import Resolved, SecretUnavailable, resolve

VALUE = 'c4n/ry"+<x> =='


class Login(BaseModel):
    user: str
    password: SecretRef
    memo: str = ""


def made_app(*, secrets: tuple[str, ...] = ("mailbox/*",)) -> App:
    app = App("vault")
    post = app.dependency("post", "http://127.0.0.1:9")

    @post.http("post.login", effect=Effect.READ, secrets=secrets)
    def login(args: Login) -> Request:
        return Request.post(
            "/login",
            json={"user": args.user, "password": args.password, "memo": args.memo},
            query={"token": args.password},
            headers={"Authorization": f"Bearer {args.password}", "X-Memo": args.memo},
        )

    @app.python("local.login", effect=Effect.READ, secrets=secrets)
    def local(args: Login, attempt: Attempt) -> str:
        return attempt.secret(args.password).reveal()

    app.allow("svc:*", tools=["post.login", "local.login"])
    return app


TOOL = made_app().tool("post.login")


def checked(arguments: Any, tool: Tool = TOOL) -> Validated | Rejected:
    return validate(
        Proposal(tool.name, arguments), tools={tool.name: tool}, tenant="shop", run_id="r", turn=1, ordinal=0
    )


def arguments(name: str = "mailbox/anna", memo: str = "") -> str:
    found = checked({"user": "anna", "password": {"secret": name}, "memo": memo})
    assert isinstance(found, Validated), found
    return found.arguments


def resolved(text: str, resolver: Resolver = lambda _tenant, _name: VALUE, tool: Tool = TOOL) -> Resolved:
    args = tool.read_arguments(text)
    with ThreadPoolExecutor(1) as pool:
        return asyncio.run(resolve(tool, args, "shop", resolver, pool, 10))


def stored(text: str) -> StoredRequest:
    return StoredRequest.from_text(TOOL.stored_request(TOOL.read_arguments(text)).to_text())


# the reference


def test_arguments_hold_the_name_and_nothing_else() -> None:
    assert arguments() == '{"memo":"","password":{"secret":"mailbox/anna"},"user":"anna"}'
    ref = TOOL.read_arguments(arguments()).password  # type: ignore[attr-defined]
    assert repr(ref) == "SecretRef('mailbox/anna')"
    assert ref == SecretRef("mailbox/anna")
    assert {ref: 1}[SecretRef("mailbox/anna")] == 1


@pytest.mark.parametrize(
    "given",
    [
        "hunter2hunter2",
        {"secret": "../other/anna"},
        {"secret": "mailbox/../x"},
        {"secret": "/mailbox/anna"},
        {"secret": "mailbox//anna"},
        {"secret": "mailbox/.hidden"},
        {"secret": ""},
        {"secret": "m" * 201},
        {"secret": 7},
        {"secret": "mailbox/anna", "value": "hunter2hunter2"},
        {"value": "hunter2hunter2"},
        None,
    ],
)
def test_what_is_no_name_is_refused_and_not_quoted_by_us(given: Any) -> None:
    found = checked({"user": "anna", "password": given})
    assert isinstance(found, Rejected)
    assert (found.step, found.code) == (3, "secret")
    assert "hunter2" not in found.message + found.arguments
    found = checked({"user": 7, "password": given})
    assert isinstance(found, Rejected)
    assert (found.step, found.code) == (1, "schema")
    assert "hunter2" not in found.message + found.arguments


@pytest.mark.parametrize("name", ["mailboxes/anna", "mailbox", "card/1", "Mailbox/anna"])
def test_a_secret_the_tool_is_not_declared_to_use_is_refused_at_step_4(name: str) -> None:
    found = checked({"user": "anna", "password": {"secret": name}})
    assert isinstance(found, Rejected)
    assert (found.step, found.code) == (4, "secret")


def test_an_app_says_which_secrets_a_tool_may_name() -> None:
    assert made_app().check() == []
    problems = made_app(secrets=()).check()
    assert len(problems) == 2
    assert all("say which it may name" in problem for problem in problems)
    with pytest.raises(UsageError, match="secrets= takes a tuple"):
        made_app(secrets="mailbox/*")  # type: ignore[arg-type]
    app = made_app()
    app.secrets(lambda _tenant, _name: None)
    with pytest.raises(UsageError, match="two functions"):
        app.secrets(lambda _tenant, _name: None)
    other = made_app(secrets=("mailbox/anna",)).tool("post.login")
    assert other.definition_digest != TOOL.definition_digest


# the stored request


def test_the_stored_request_holds_placeholders_and_the_fingerprint_covers_the_name() -> None:
    one, other = stored(arguments()), stored(arguments("mailbox/bob"))
    placeholder = PLACEHOLDER.findall(one.target)[0]
    assert one.to_text() == stored(arguments()).to_text()
    assert placeholder in one.body.decode()
    assert ("Authorization", f"Bearer {placeholder}") in one.headers
    assert VALUE not in one.to_text()
    prints = {fingerprint("shop", "post/default", "post.login", 1, one.to_text()) for one in (one, other)}
    assert len(prints) == 2


def test_a_header_of_authentication_still_has_to_be_a_placeholder() -> None:
    with pytest.raises(ValueError, match="SecretRef"):
        Request.get("/x", headers={"Authorization": "Bearer abc"})
    with pytest.raises(TypeError, match="not JSON"):
        Request.post("/x", json={"a": object()})


def test_a_model_as_a_body_has_placeholders_too() -> None:
    args = TOOL.read_arguments(arguments())
    body = json.loads(Request.post("/x", json=args).body)
    assert PLACEHOLDER.fullmatch(body["password"])
    assert Proposal("post.login", args).arguments["password"] == {"secret": "mailbox/anna"}  # type: ignore[index]


def test_no_text_of_the_arguments_is_the_placeholder_of_a_secret() -> None:
    plain = PLACEHOLDER.findall(stored(arguments()).target)[0]
    forged = arguments(memo=plain)  # the placeholder of these arguments without the memo
    with pytest.raises(SecretUnavailable, match="no secret of its arguments"):
        resolved(forged).put(stored(forged))
    unbound = SecretRef("mailbox/anna").placeholder
    with pytest.raises(SecretUnavailable):
        resolved(arguments(memo=unbound)).put(stored(arguments(memo=unbound)))


# on the wire


def test_the_value_is_put_where_its_placeholder_was_as_its_place_demands() -> None:
    wired = resolved(arguments()).put(stored(arguments()))
    assert json.loads(wired.body) == {"user": "anna", "password": VALUE, "memo": ""}
    assert wired.target == f"http://127.0.0.1:9/login?token={quote(VALUE, safe='')}"
    assert ("Authorization", f"Bearer {VALUE}") in wired.headers
    assert PLACEHOLDER.search(wired.to_text()) is None
    assert VALUE not in repr(wired)
    assert wired.digest == ""


def test_forms_and_plain_bodies_are_written_as_they_are_read() -> None:
    args = TOOL.read_arguments(arguments())
    ref = str(args.password)  # type: ignore[attr-defined]
    form = StoredRequest(
        "POST",
        "http://h/x",
        (("content-type", "application/x-www-form-urlencoded"),),
        urlencode({"p": ref}).encode() + b"&raw=%ff",
    )
    plain = StoredRequest("POST", "http://h/x", (), b"\xff" + ref.encode())
    values = resolved(arguments())
    assert values.put(form).body == b"p=" + quote(VALUE, safe="").encode() + b"&raw=%ff"
    assert values.put(plain).body == b"\xff" + VALUE.encode()
    untouched = StoredRequest("GET", "http://h/x")
    assert values.put(untouched) is untouched


def test_a_value_that_a_header_cannot_hold_is_refused_without_quoting_it() -> None:
    for wrong in ("hunter2\nhunter2", "pässwörd-pässwörd"):
        values = resolved(arguments(), lambda _tenant, _name, wrong=wrong: wrong)  # type: ignore[misc]
        with pytest.raises(SecretUnavailable, match="a header cannot hold") as caught:
            values.put(stored(arguments()))
        assert wrong not in str(caught.value)


# resolving


def quoting(_tenant: str, _name: str) -> str:
    raise RuntimeError(f"401 for token {VALUE}")


@pytest.mark.parametrize(
    ("resolver", "says"),
    [
        (lambda _tenant, _name: None, "this tenant has no secret mailbox/anna"),
        (lambda _tenant, _name: "abc", "less than 6"),
        (lambda _tenant, _name: "x" * 70_000, "more than 65536"),
        (lambda _tenant, _name: b"bytes-bytes", "is bytes"),
        (quoting, "RuntimeError"),
    ],
)
def test_what_cannot_be_resolved_is_refused_without_a_value(resolver: Any, says: str) -> None:
    with pytest.raises(SecretUnavailable, match=says) as caught:
        resolved(arguments(), resolver)
    assert VALUE not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_resolver_that_is_slow_is_not_waited_for() -> None:
    gate = threading.Event()

    def slow(_tenant: str, _name: str) -> str:
        gate.wait(30)
        return VALUE

    async def asked() -> None:
        with ThreadPoolExecutor(1) as pool:
            try:
                await resolve(TOOL, TOOL.read_arguments(arguments()), "shop", slow, pool, 0.01)
            finally:
                gate.set()

    with pytest.raises(SecretUnavailable, match="not resolved in time"):
        asyncio.run(asked())


def test_a_name_the_tool_may_not_use_any_more_is_not_resolved() -> None:
    narrowed = made_app(secrets=("mailbox/bob",)).tool("post.login")
    asked: list[str] = []
    with pytest.raises(SecretUnavailable, match="not declared"):
        resolved(arguments(), lambda _tenant, name: asked.append(name), narrowed)
    assert asked == []


def test_it_is_the_runs_tenant_that_is_asked_for() -> None:
    asked: list[tuple[str, str]] = []

    def resolver(tenant: str, name: str) -> str:
        asked.append((tenant, name))
        return VALUE

    assert resolved(arguments(), resolver).handed["mailbox/anna"].reveal() == VALUE
    assert asked == [("shop", "mailbox/anna")]


# what a Python tool is handed


def test_a_resolved_value_is_shown_nowhere() -> None:
    secret = Secret("mailbox/anna", VALUE)
    shown = f"{secret} {secret!r} {[secret]} {secret:>20} %s" % secret
    assert VALUE not in shown
    assert VALUE not in result_text({"secret": secret})
    with pytest.raises(TypeError):
        json.dumps(secret)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            copied(secret)
    with pytest.raises(TypeError):
        hash(secret)
    assert secret == Secret("other", VALUE)
    assert secret != Secret("mailbox/anna", "another")
    assert secret != VALUE
    assert secret.reveal() == VALUE


def test_an_attempt_gives_only_its_own_secrets() -> None:
    attempt = Attempt("r", "c", 1, "k", None, lambda: 1, secrets={"a": Secret("a", VALUE)})  # type: ignore[arg-type]
    assert attempt.secret(SecretRef("a")).reveal() == VALUE
    assert VALUE not in repr(attempt)
    with pytest.raises(UsageError, match="not one that"):
        attempt.secret(SecretRef("b"))


# what comes back


@pytest.mark.parametrize("then", ["raise", "refuse", "give back", "return", "long"])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_python_tools_words_are_cleaned_before_they_are_cut(then: str, awaited: bool) -> None:
    """A value across the cut would leave half of itself."""
    hiding = Credentials.of(TOOL.dependency, (VALUE,))
    crossing = "x" * 495 + VALUE

    def act(_args: Login, attempt: Attempt) -> object:
        if then == "raise":
            raise RuntimeError(crossing)
        if then == "refuse":
            raise NotApplied("no", crossing)
        if then == "give back":
            return NotApplied("no", crossing)
        return "y" * 997 + VALUE + "z" * (MAX_OUTPUT_BYTES if then == "long" else 0)

    async def wait(args: Login, attempt: Attempt) -> object:
        return act(args, attempt)

    tool = replace(made_app().tool("local.login"), function=wait if awaited else act)
    attempt = Attempt("r", "c", 1, "k", datetime(2026, 1, 2, tzinfo=UTC), lambda: 30)

    async def run() -> Outcome:
        with ThreadPoolExecutor(1) as pool:
            return await run_python(tool, tool.read_arguments(arguments()), attempt, pool, None, hiding.hide)

    outcome = asyncio.run(run())
    text = outcome.result_json_text if isinstance(outcome, Applied) else outcome.message
    assert VALUE[:3] not in text
    assert "**" in text


def test_without_a_function_of_the_app_a_worker_reads_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "shop" / "mailbox").mkdir(parents=True)
    (tmp_path / "shop" / "mailbox" / "anna").write_text(VALUE)
    settings = load_settings(secrets_dir=str(tmp_path))
    call: Any = SimpleNamespace(tenant="shop", arguments=arguments())

    async def asked(app: App, tool: Tool) -> Resolved:
        with ThreadPoolExecutor(1) as pool:
            role: Any = SimpleNamespace(worker=SimpleNamespace(app=app, settings=settings, executor=pool))
            return await secrets_of(role, tool, tool.read_arguments(call.arguments), call, 10)

    app = made_app()
    assert asyncio.run(asked(app, TOOL)).values == (VALUE,)
    app.secrets(lambda _tenant, _name: "of the application")
    assert asyncio.run(asked(app, TOOL)).values == ("of the application",)
    with pytest.raises(SecretUnavailable, match="not declared"):  # a later release took its patterns away
        asyncio.run(asked(app, replace(TOOL, secrets=())))


def test_what_a_planner_said_is_kept_without_what_may_be_a_secret() -> None:
    said = [
        Proposal("post.login", '{"user": "anna", "password": "hunter2hunter2"}', "given away"),
        Proposal("post.login", '{"user": "anna", "password": {"secret": "mailbox/anna"}}', "named"),
    ]
    turn = Turn(said, raw="I log in with hunter2hunter2", usage={"tokens": 7})
    kept = _transcript(turn, [checked(one.arguments) for one in said])
    assert "hunter2" not in kept
    assert "given away" in kept
    assert '\\"secret\\": \\"mailbox/anna\\"' in kept
    harmless = Turn(said[1:], raw="I log in")
    assert "I log in" in _transcript(harmless, [checked(said[1].arguments)])
