"""The line that the doctor gives for a foreign client makes it send once, and without it it sends again.

The packages are no dependencies of ours: where one is not installed, its test is skipped by name.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fencepost_ops.doctor.resends import look, look_at_module
from tests.answering import Asked, Said, answering


class Unwell:
    """Answers 503 to everything and counts."""

    url = ""
    requests = 0

    def answer(self, _asked: Asked) -> Said:
        self.requests += 1
        return Said(b"{}", 503, {"Content-Type": "application/json", "Retry-After": "0"})


@pytest.fixture
def unwell() -> Iterator[Unwell]:
    made = Unwell()
    with answering(made.answer) as made.url:
        yield made


def foreign(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: its retries are NOT counted here")


Call = tuple[Any, Callable[[], object]]


def _openai(url: str, *, once: bool) -> Call:
    told = {"max_retries": 0} if once else {}
    client = foreign("openai").OpenAI(api_key="x", base_url=url, **told)
    return client, lambda: client.responses.create(model="m", input="x")


def _anthropic(url: str, *, once: bool) -> Call:
    told = {"max_retries": 0} if once else {}
    client = foreign("anthropic").Anthropic(api_key="x", base_url=url, **told)
    asked = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    return client, lambda: client.messages.create(**asked)


def _boto3(url: str, *, once: bool) -> Call:
    boto3, config = foreign("boto3"), foreign("botocore.config").Config
    told = {"config": config(retries={"total_max_attempts": 1})} if once else {}
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "eu-west-1"}
    client = boto3.client("s3", endpoint_url=url, **keys, **told)
    return client, lambda: client.put_object(Bucket="b", Key="k", Body=b"x")


def _urllib3(url: str, *, once: bool) -> Call:
    pool = foreign("urllib3").PoolManager(**({"retries": False} if once else {}))
    return pool, lambda: pool.request("PUT", url, body=b"x")


def _requests(url: str, *, once: bool) -> Call:
    requests, retry = foreign("requests"), foreign("urllib3").Retry
    session = requests.Session()
    again = retry(total=2, status_forcelist=[503], allowed_methods=None)
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=0 if once else again))
    return session, lambda: session.post(url, data=b"x")


@pytest.mark.parametrize("make", [_openai, _anthropic, _boto3, _urllib3, _requests])
def test_the_doctors_line_makes_a_client_send_once(make: Callable[..., Call], unwell: Unwell) -> None:
    url = f"{unwell.url}/"
    for once in (False, True):
        client, call = make(url, once=once)
        looked = look(client)
        assert looked is not None
        assert any(resend.harmful for resend in looked.resends) is not once
        unwell.requests = 0
        with suppress(Exception):
            call()
        assert (unwell.requests == 1) is once, f"{looked.client} sent {unwell.requests}"


def test_the_doctors_line_makes_the_module_of_stripe_send_once(
    unwell: Unwell, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripe = foreign("stripe")
    monkeypatch.setattr(stripe, "api_key", "sk_test_x")
    monkeypatch.setattr(stripe, "api_base", unwell.url)
    for retries, counted in ((2, 3), (0, 1)):
        monkeypatch.setattr(stripe, "max_network_retries", retries)
        looked = look_at_module("stripe")
        assert looked is not None
        assert bool(looked.resends) is (retries > 0)
        unwell.requests = 0
        with suppress(stripe.StripeError):
            stripe.Customer.create(description="x")
        assert unwell.requests == counted
