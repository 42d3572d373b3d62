import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import fencepost
from fencepost import (
    App,
    Attempt,
    Context,
    Contract,
    Effect,
    Lookup,
    NotFound,
    Proposal,
    Request,
    Turn,
    UsageError,
)
from fencepost.authority import AllowList, AuthorizationDecision, AuthorizationRequest
from fencepost.loading import load_app
from fencepost.models import Wire
from fencepost.tools import PER_PROPOSAL
from tests.typing.user_code import Debit, app, debit, fulfil, refund

ROOT = Path(__file__).parents[2]


class Args(BaseModel):
    n: int


class Priced(BaseModel):
    price: float


class Numbered(BaseModel):
    number: int


def get(args: Args) -> Request:
    return Request.get(f"/{args.n}")


def shop() -> App:
    made = App("shop")
    made.allow("*", ["*", "t"])
    return made


def register(
    made: App, function: Any = get, *, name: str = "t", effect: Effect = Effect.READ, **options: Any
) -> Any:
    wallet = next((d for d in made._dependencies.values() if d.spec.name == "w"), None)
    if effect is not Effect.READ:
        options.setdefault("succeeded", lambda response: response.status == 201)
    return (wallet or made.dependency("w", "http://w.test")).http(name, effect=effect, **options)(function)


def test_a_typical_application_has_nothing_to_complain_about() -> None:
    assert app.check() == []
    assert sorted(app.tools) == [
        "inventory.level",
        "ledger.close_day",
        "ledger.note",
        "wallet.debit",
        "wallet.refund",
    ]
    assert [spec.scope for spec in app.dependencies] == [
        "inventory/default",
        "local/default",
        "wallet/default",
    ]
    assert sorted(app.planners) == ["close", "fulfil", "think"]


def test_decorators_add_parts_to_the_tool_and_leave_functions_alone() -> None:
    assert debit.tool.has_lookup
    assert debit.tool.compensable
    assert not refund.tool.has_lookup
    assert debit(Debit(order_id="o", amount=1)).path == "/debits"
    assert isinstance(fulfil(Context("r", "t", "p", {"order_id": "o", "amount": 1}, 1)), Turn)
    assert app.find_planner("fulfil").verify is not None


def test_the_newest_version_is_the_one_that_is_proposed() -> None:
    made = shop()
    register(made, version=2)
    register(made, version=10)
    register(made, version=1)
    assert made.tools["t"].version == made.tool("t").version == 10
    assert made.tool("t", 2).version == 2
    with pytest.raises(NotFound, match=r"no tool t version 3; it has \[1, 2, 10\]"):
        made.tool("t", 3)
    with pytest.raises(NotFound, match="no tool u; known: t"):
        made.tool("u")


def test_the_time_of_a_planner_is_what_it_or_else_its_model_declares() -> None:
    made = App("times")
    provider = made.dependency("provider", "http://127.0.0.1:9", per_attempt=timedelta(seconds=60))
    slow = made.model("slow", via=provider, wire=Wire.CHAT, model="m", timeout=timedelta(hours=2))
    quick = made.model("quick", via=provider, wire=Wire.CHAT, model="m", timeout=timedelta(seconds=5))
    made.agent("desk", model=(quick, slow), instructions="help")
    made.planner("plain")(lambda _context: Turn())
    made.planner("declared", timeout=timedelta(minutes=9))(lambda _context: Turn())
    times = {name: (spec.cap, spec.longest) for name, spec in made.planners.items()}
    assert times == {
        "desk": (None, timedelta(hours=2)),
        "plain": (timedelta(seconds=30), timedelta(seconds=30)),
        "declared": (timedelta(minutes=9), timedelta(minutes=9)),
    }
    (problem,) = made.check()  # it would be believed, and binds nothing
    assert problem.startswith(
        "dependency provider/default: per_attempt=0:01:00 binds no model; say app.model("
    )
    with pytest.raises(UsageError, match="planner never: timeout lies above 0"):
        made.planner("never", timeout=timedelta(0))(lambda _context: Turn())
    for name in ("timeout", "idle"):
        with pytest.raises(UsageError, match=f"model m: {name} lies above 0"):
            made.model("m", via=provider, wire=Wire.CHAT, model="m", **{name: timedelta(0)})  # type: ignore[arg-type]


def test_planners_have_versions_and_judges() -> None:
    made = shop()
    made.planner("p", 1)(lambda _context: Turn())
    made.planner("p", 2)(lambda _context: Turn())
    made.scripted("s", 1, [{"finish": 1}])
    made.verify("p")(lambda _context: True)
    assert made.find_planner("p").version == made.planners["p"].version == 2
    assert made.find_planner("p", 1).verify is made.find_planner("p", 2).verify is not None
    assert made.find_planner("s").script == [{"finish": 1}]
    with pytest.raises(UsageError, match="planner p version 2 is registered twice"):
        made.scripted("p", 2, [])
    with pytest.raises(NotFound, match="no planner q"):
        made.find_planner("q")
    with pytest.raises(NotFound, match="no planner q to verify"):
        made.verify("q")(lambda _context: True)


def test_duplicates_are_refused() -> None:
    made = shop()
    register(made)
    with pytest.raises(UsageError, match="tool t version 1 is registered twice"):
        register(made)
    with pytest.raises(UsageError, match="dependency w/default is declared twice"):
        made.dependency("w")
    handle = register(made, name="u")
    handle.parse(lambda response: response.json())
    with pytest.raises(UsageError, match="two parse functions"):
        handle.parse(lambda response: response.json())


def no_annotation(args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return Request.get("/")


def no_model(args: dict[str, int]) -> Request:
    return Request.get("/")


def no_parameter() -> Request:
    return Request.get("/")


def unknown_model(args: "Missing") -> Request:  # type: ignore[name-defined]  # noqa: F821
    return Request.get("/")


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (no_annotation, "annotate 'args' of no_annotation with the pydantic model"),
        (no_model, "annotate 'args' of no_model with the pydantic model"),
        (no_parameter, "must take one parameter"),
        (unknown_model, "cannot be read .*define models at module level"),
    ],
)
def test_a_function_without_an_argument_model_is_refused(function: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        register(shop(), function)


def test_a_python_tool_takes_arguments_and_an_attempt() -> None:
    def one(args: Args) -> None:
        raise NotImplementedError

    def two(args: Args, attempt: Attempt) -> int:
        return args.n

    with pytest.raises(UsageError, match="must take two"):
        shop().python("t", effect=Effect.READ)(one)  # type: ignore[arg-type]
    made = shop()
    made.python("t", effect=Effect.READ)(two)
    made.python("u", effect=Effect.READ, dependency=made.dependency("w"))(two)
    assert (made.tool("t").scope, made.tool("u").scope) == ("local/default", "w/default")
    assert made.tool("t").kind == "python"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"effect": Effect.REVERSIBLE}, "needs intent="),
        ({"effect": Effect.IRREVERSIBLE}, "or PER_PROPOSAL"),
        ({"name": "no good"}, "name 'no good' must be"),
        ({"name": ""}, "must be"),
        ({"version": 0}, "must be 1 or more"),
    ],
)
def test_a_declaration_that_says_too_little_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        register(shop(), **options)


def test_an_http_tool_needs_a_base_url() -> None:
    with pytest.raises(UsageError, match="needs a base_url for the http tool t"):
        shop().dependency("v").http("t", effect=Effect.READ)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"effect": Effect.REVERSIBLE, "intent": PER_PROPOSAL}, "REVERSIBLE and has no compensate function"),
        ({"contract": Contract(lookup=Lookup(strong=True))}, "has a lookup, but there is no lookup function"),
        ({"returns": Numbered, "receipt": "missing"}, "receipt='missing' is no field of Numbered"),
        ({"cosmetic": ("n", "hint")}, "cosmetic= names no argument: hint (there are "),
    ],
)
def test_what_only_the_whole_can_show_is_found_by_check(options: dict[str, Any], complaint: str) -> None:
    made = shop()
    register(made, **options)
    assert [problem for problem in made.check() if complaint in problem] == made.check() != []


def test_check_finds_parts_that_do_not_belong() -> None:
    made = shop()
    handle = register(made)
    handle.lookup(lambda _args, key: Request.get(f"/{key}"))
    handle.compensate(lambda _args, _result: Proposal("t"))
    other = register(made, name="u")
    other.lookup_parse(lambda _response, _args: None)
    assert [problem.split(": ")[1].split(",")[0] for problem in made.check()] == [
        "is READ",
        "has a lookup function",
        "has lookup_parse",
    ]


def test_a_float_argument_is_found_by_check() -> None:
    def priced(args: Priced) -> Request:
        return Request.get("/")

    priced.__annotations__["args"] = Priced
    made = shop()
    register(made, priced)
    assert "argument price is a float" in made.check()[0]


def test_an_irreversible_tool_must_be_granted_by_name() -> None:
    made = App("shop")
    register(made, effect=Effect.IRREVERSIBLE, intent=PER_PROPOSAL)
    made.allow("*", ["*"])
    assert "nobody is granted it by its exact name" in made.check()[0]
    made.allow("svc:a", ["t"])
    assert made.check() == []


def test_a_tool_that_nobody_may_use_is_found() -> None:
    made = App("shop")
    register(made)
    assert "nobody may use it" in made.check()[0]


class Everything:
    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        return AuthorizationDecision(allowed=True, reason=request.tool, policy_version="1")


def test_an_authority_of_its_own_replaces_the_allow_list() -> None:
    own = Everything()
    made = App("shop", authority=own)
    register(made, effect=Effect.IRREVERSIBLE, intent=PER_PROPOSAL)
    assert made.authority is own
    assert made.check() == []
    with pytest.raises(UsageError, match="an authority of its own"):
        made.allow("*", ["t"])
    assert isinstance(app.authority, AllowList)


def test_allow_wants_a_list() -> None:
    with pytest.raises(UsageError, match="list of tool names"):
        App("shop").allow("*", "wallet.debit")


# Loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


def test_an_app_is_loaded_from_the_current_folder(folder: Path) -> None:
    (folder / "loaded_shop.py").write_text("from fencepost import App\napp = App('loaded')\n")
    assert load_app("loaded_shop:app").name == "loaded"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("", "package.module:attribute"),
        ("shop", "package.module:attribute"),
        (":app", "package.module:attribute"),
        ("no_such_module_x:app", "there is no module no_such_module_x"),
        ("fencepost.no_such:app", "there is no module fencepost.no_such"),
        ("fencepost.app:nothing", "fencepost.app has no attribute nothing"),
        ("fencepost.app:App", "is a ModelMetaclass|is a type, not a fencepost.App"),
        ("broken_import_x:app", "importing broken_import_x failed: No module named 'absent_y'"),
        ("broken_syntax_x:app", "importing broken_syntax_x failed: SyntaxError"),
        ("broken_use_x:app", "importing broken_use_x failed: app name 'no good'"),
        ("broken_whole_x:app", r"cannot run: tool t version 1 \(broken_whole_x.py:5\): nobody may"),
    ],
)
def test_whatever_keeps_an_app_from_running_is_one_sentence(folder: Path, path: str, complaint: str) -> None:
    (folder / "broken_import_x.py").write_text("import absent_y\n")
    (folder / "broken_syntax_x.py").write_text("def\n")
    (folder / "broken_use_x.py").write_text("from fencepost import App\napp = App('no good')\n")
    (folder / "broken_whole_x.py").write_text(
        "from fencepost import *\nfrom pydantic import BaseModel\nclass A(BaseModel): pass\n"
        "app = App('a')\n@app.python('t', effect=Effect.READ)\ndef f(args: A, attempt: Attempt): pass\n"
    )
    with pytest.raises(UsageError, match=complaint):
        load_app(path)


# The public names


def test_every_public_name_is_there_and_loaded_on_first_use() -> None:
    assert sorted(fencepost._HOME_OF) == sorted(set(fencepost.__all__) - {"__version__"})
    for name in fencepost.__all__:
        assert getattr(fencepost, name) is not None
        assert name in dir(fencepost)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fencepost.Nothing  # type: ignore[attr-defined]


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("pydantic", "psycopg", "redis", "sqlalchemy", "fencepost.app")
    code = f"import fencepost, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "shared",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
