"""`fencepost doctor --retries` names every client that sends again by itself, and the line that turns it off.

Clients are the real ones. Those of packages that are no dependency of ours are looked at where they happen to
be installed; elsewhere their tests are skipped, by name.
"""

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
import httpx2
import pytest
import redis
import redis.asyncio
from click.testing import CliRunner
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost import App
from fencepost.loading import load_app
from fencepost_ops.cli import main
from fencepost_ops.doctor import resends, retries
from fencepost_ops.doctor.findings import Finding, Level
from fencepost_ops.doctor.resends import look
from fencepost_ops.doctor.retries import judge_retries


def offs(value: object) -> list[str]:
    looked = look(value)
    assert looked is not None, type(value).__mro__
    return [resend.off for resend in looked.resends if resend.harmful]


def says(value: object) -> str:
    looked = look(value)
    assert looked is not None
    return " ".join(resend.says for resend in looked.resends)


# -- clients that are here --


def test_a_redis_client_by_its_host_sends_again_and_one_by_its_url_does_not() -> None:
    assert offs(redis.Redis(host="nowhere")) == [resends.OFF["redis"]]
    assert "up to 11 times" in says(redis.Redis(host="nowhere"))
    assert "up to 11 times" in says(redis.asyncio.Redis(host="nowhere"))
    assert offs(redis.Redis.from_url("redis://nowhere")) == []
    assert offs(redis.Redis(host="nowhere", retry=Retry(NoBackoff(), 0))) == []
    assert "without end" in says(redis.Redis(host="nowhere", retry=Retry(NoBackoff(), -1)))


def test_a_celery_application_publishes_again_unless_told() -> None:
    told = celery.Celery(broker="memory://", set_as_current=False)
    assert offs(told) == [resends.OFF["celery"]]
    told.conf.task_publish_retry = False
    assert offs(told) == []


def test_a_transport_that_connects_again_or_is_a_strangers_is_told_and_redirects_too() -> None:
    assert says(httpx2.Client()) == ""
    retried = httpx2.Client(transport=httpx2.HTTPTransport(retries=3), follow_redirects=True)
    assert "connects up to 4 times" in says(retried)
    assert "307" in says(retried)
    mounted = httpx2.AsyncClient(mounts={"https://": httpx2.AsyncHTTPTransport(retries=1)})
    assert "connects up to 2 times" in says(mounted)

    class Stranger(httpx2.BaseTransport):
        pass

    assert "cannot be looked into" in says(httpx2.Client(transport=Stranger()))
    assert offs(retried) == [], "none of these sends an effect twice by itself, but for a redirect"


# -- clients of other packages --


def foreign(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: its retries are NOT checked here")


@pytest.mark.parametrize(
    ("package", "client"),
    [
        ("openai", "OpenAI"),
        ("openai", "AsyncOpenAI"),
        ("anthropic", "Anthropic"),
        ("anthropic", "AsyncAnthropic"),
    ],
)
def test_an_sdk_sends_a_call_three_times_until_it_is_told_once(package: str, client: str) -> None:
    made = getattr(foreign(package), client)
    assert offs(made(api_key="x")) == [f"{package}.{client}(max_retries=0)"]
    assert "up to 3 times" in says(made(api_key="x"))
    assert offs(made(api_key="x", max_retries=0)) == []
    assert "307" in says(made(api_key="x", max_retries=0)), "and follows redirects even then"
    default = getattr(foreign(package), f"Default{'Async' if 'Async' in client else ''}HttpxClient")
    assert says(made(api_key="x", max_retries=0, http_client=default(follow_redirects=False))) == ""


def test_stripes_module_sends_again_and_its_client_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stripe = foreign("stripe")
    module = resends.look_at_module("stripe")
    assert module is not None
    assert [resend.off for resend in module.resends] == [resends.OFF["stripe"]]
    monkeypatch.setattr(stripe, "max_network_retries", 0)
    quiet = resends.look_at_module("stripe")
    assert quiet is not None
    assert quiet.resends == ()
    assert offs(stripe.StripeClient("sk_test_x")) == []
    assert "up to 4 times" in says(stripe.StripeClient("sk_test_x", max_network_retries=3))


def test_botos_clients_send_three_times_until_their_attempts_are_one() -> None:
    boto3, config = foreign("boto3"), foreign("botocore.config").Config
    made = functools.partial(
        boto3.client, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    assert offs(made("s3")) == [resends.OFF["boto3"]]
    assert "up to 3 times" in says(made("s3"))
    assert "up to 4 times" in says(made("dynamodb"))
    assert offs(made("s3", config=config(retries={"total_max_attempts": 1}))) == []
    assert "makes clients" in says(boto3.session.Session())


def test_requests_and_urllib3_by_their_retry() -> None:
    requests, urllib3 = foreign("requests"), foreign("urllib3")
    session = requests.Session()
    assert offs(session) == []
    assert "307" in says(session)
    session.mount("https://", requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(total=None, read=2)))
    assert offs(session) == [resends.OFF["requests"]]
    assert "up to 4 times" in says(urllib3.PoolManager())
    assert offs(urllib3.PoolManager(retries=False)) == []
    assert offs(urllib3.PoolManager(retries=urllib3.Retry(total=False))) == []


def test_httpx_and_mcp() -> None:
    httpx = foreign("httpx")
    assert "connects up to 2 times" in says(httpx.Client(transport=httpx.HTTPTransport(retries=1)))
    client = foreign("mcp.client").Client
    assert offs(client("http://nowhere.test/mcp")) == [resends.OFF["mcp"]]


def test_a_function_of_tenacity_is_known_by_its_wrapper() -> None:
    tenacity = foreign("tenacity")

    assert resends.wraps_in_retries(tenacity.retry(judged)) == "tenacity"
    assert resends.wraps_in_retries(judged) is None
    assert resends.wraps_in_retries(tenacity.retry) is None


# -- where they are found --

APP = """
import functools
from redis import Redis
import redis.asyncio as aio
from pydantic import BaseModel
from fencepost import App, Context, Effect, Request, Turn

app = App("looked")
local = app.dependency("local", "http://nowhere.test")
app.allow("svc:*", tools=["a", "b", "c", "d"])


class Args(BaseModel):
    id: str


class Holder:
    __slots__ = ("inside",)

    def __init__(self):
        self.inside = {"deep": [Redis(host="in-slots")]}

    def plan(self, context: Context) -> Turn:
        return Turn(finish={})


in_globals = Redis(host="in-globals")


def made(client):
    def a(args: Args, attempt) -> dict:
        client.incr(args.id)
        return {}
    return a


def b(args: Args, attempt, client=None) -> dict:
    return {}


local.python("a", effect=Effect.IRREVERSIBLE, intent=lambda a: (a.id,))(made(Redis(host="in-closure")))


@local.http("c", effect=Effect.IRREVERSIBLE, intent=lambda a: (a.id,))
def c(args: Args) -> Request:
    return Request.post("/c")


@c.parse
def parse(response, _client=None):
    return {}


parse.__defaults__ = (aio.Redis(host="in-default"),)
app.planner("p")(Holder().plan)
app.verify("p")(functools.partial(lambda client, context: True, Redis.from_url("redis://quiet")))
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes an application into a module of its own, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stripe", raising=False)  # another test's; no application imported it
    names: list[str] = []

    def write(source: str) -> str:
        names.append(f"looked_at_{tmp_path.name.replace('-', '_')}_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(source)
        importlib.invalidate_caches()
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def judged(name: str) -> list[Finding]:
    return judge_retries(load_app(f"{name}:app"), name)


def test_clients_are_found_wherever_an_application_holds_them(written: Callable[[str], str]) -> None:
    name = written(APP)
    findings = judged(name)
    problems = [f.says.partition(")")[0] for f in findings if f.level is Level.PROBLEM]
    assert sorted(problems) == sorted(
        [
            f"redis.Redis ({name}.in_globals",
            "redis.Redis (function of tool a: its client",
            "redis.Redis (parse of tool c: its default _client",
            "redis.Redis (plan of planner p.__self__.inside['deep'][0]",
        ]
    )
    assert {f.do for f in findings if f.level is Level.PROBLEM} == {resends.OFF["redis"]}
    assert any("verify of planner p" in f.says and "sends once" in f.says for f in findings)


def test_what_a_function_makes_when_called_is_said_to_be_unseen(written: Callable[[str], str]) -> None:
    findings = judged(written(APP.partition("in_globals =")[0].replace("Redis(host=", "print(")))
    (unseen,) = [f for f in findings if f.level is Level.NOTE]
    assert "redis is used, and no client of it was found" in unseen.says
    assert resends.OFF["redis"] in unseen.do


def test_what_a_function_imports_for_itself_is_said_to_be_unseen(written: Callable[[str], str]) -> None:
    source = """
from fencepost import App, Turn
app = App("lazy")
@app.planner("p")
def plan(context):
    def inner():
        from openai import OpenAI
        return OpenAI()
    return Turn()
"""
    (unseen,) = judged(written(source))
    assert "openai is used" in unseen.says
    assert "openai.OpenAI(max_retries=0)" in unseen.do


def test_an_application_without_clients_is_told_so(written: Callable[[str], str]) -> None:
    (only,) = judged(written("from fencepost import App\napp = App('empty')\n"))
    assert only.level is Level.OK
    assert "as far as can be seen" in only.says


def test_a_function_wrapped_in_retries_is_found(written: Callable[[str], str], tmp_path: Path) -> None:
    """A stand-in of tenacity's shape: the wrapper's code lies in a folder of that name."""
    (tmp_path / "tenacity").mkdir()
    (tmp_path / "tenacity" / "__init__.py").write_text(
        "import functools\n"
        "def retry(f):\n"
        "    @functools.wraps(f)\n"
        "    def again(*a, **k):\n"
        "        return f(*a, **k)\n"
        "    return again\n"
    )
    sys.modules.pop("tenacity", None)
    source = APP.replace("def c(args", "@retry\ndef inner():\n    pass\n\n\n@retry\ndef c(args")
    source = source.replace("import functools\n", "import functools\nfrom tenacity import retry\n")
    source = source.replace('@local.http("c", effect=Effect.IRREVERSIBLE, intent=lambda a: (a.id,))\n', "")
    source = source.replace("@c.parse\n", "")
    found = [f.says for f in judged(written(source)) if "wrapped in retries of tenacity" in f.says]
    sys.modules.pop("tenacity", None)
    assert len(found) == 2


def test_the_look_is_bounded_and_says_where_it_ended(
    written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "MAX_OBJECTS", 5)
    assert any("was not looked at" in f.says for f in judged(written(APP)))


def test_an_object_that_resists_being_looked_at_ends_nothing() -> None:
    class Resists:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    app = App("resisted")
    held = {"it": Resists(), 3.5: [redis.Redis(host="behind")]}
    app.scripted("p", 1, functools.partial(lambda _held, _context: None, held))
    findings = judge_retries(app, __name__)
    assert any("(script of planner p" in f.says for f in findings if f.level is Level.PROBLEM)


def test_the_command_answers_no_where_a_client_retries(written: Callable[[str], str]) -> None:
    name, runner = written(APP), CliRunner()
    told = runner.invoke(main, ["doctor", "--retries", "--app", f"{name}:app"])
    assert told.exit_code == 1, told.output
    assert resends.OFF["redis"] in told.output
    listed = json.loads(runner.invoke(main, ["doctor", "--retries", "--app", f"{name}:app", "--json"]).output)
    assert {finding["level"] for finding in listed["findings"]} == {"problem", "ok"}
    quiet = written("from fencepost import App\napp = App('empty')\n")
    assert runner.invoke(main, ["doctor", "--retries", "--app", f"{quiet}:app"]).exit_code == 0
