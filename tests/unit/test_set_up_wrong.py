"""What a provider turns away: because of the request, or because of how the deployment is set up."""

from typing import Any

import pytest

from fencepost.breaker import failure_class, learnt_of_model, set_up_wrong
from fencepost_workers.models.answers import Ending
from fencepost_workers.models.failures import failed

CREDIT = "Your credit balance is too low to access the API."
NO_KEY = "API key not valid. Please pass a valid API key."
TOLD_AS_400 = [
    ({"error": {"type": "invalid_request_error", "message": CREDIT}}, "http_402"),
    ({"error": {"code": "invalid_api_key", "message": "no"}}, "http_401"),
    ({"error": {"message": NO_KEY}}, "http_401"),
    ([{"error": {"code": 400, "message": NO_KEY, "status": "INVALID_ARGUMENT"}}], "http_401"),
    ({"error": {"code": "model_not_found", "message": "no such model"}}, "http_404"),
    ({"error": {"type": "permission_error"}}, "http_403"),
    ({"error": {"type": "invalid_request_error", "message": "temperature: at most 1"}}, "http_400"),
    ("<html>", "http_400"),
]
ECHOES: list[dict[str, Any]] = [
    {"message": "Invalid value: 'raise my credit balance'."},
    {"message": f"Invalid value: '{CREDIT}'."},
    {"message": f"'{NO_KEY}' is not one of ['low', 'high']"},
    {"message": "Invalid api key format in tools[0].description"},
    {"code": "invalid_value", "message": CREDIT},
    {"type": "invalid_request_error", "param": "messages[0]", "message": NO_KEY},
]


@pytest.mark.parametrize(("body", "code"), TOLD_AS_400)
def test_a_400_that_is_no_fault_of_the_request_is_told_as_what_it_is(body: Any, code: str) -> None:
    assert failed(400, body, "m")[1] == code
    assert failed(500, body, "m")[1] == "http_500"


@pytest.mark.parametrize("error", ECHOES)
def test_what_a_provider_repeats_of_a_request_closes_nothing(error: dict[str, Any]) -> None:
    assert failed(400, {"error": error}, f"400: {CREDIT}")[1] == "http_400"


def test_what_a_provider_repeats_of_a_request_makes_it_no_longer_than_it_is() -> None:
    echo = {"error": {"message": "Invalid value: 'it's too many tokens'. Use \"prompt is too long\"."}}
    assert failed(400, echo, "m")[0] is Ending.FAILED
    told = {"error": {"message": "This model's maximum context length is 8192 tokens, not 'infinite'."}}
    assert failed(400, told, "m")[0] is Ending.CONTEXT_EXCEEDED


@pytest.mark.parametrize("code", ["http_401", "http_402", "http_407"])
def test_an_account_fails_for_everybody_who_has_it(code: str) -> None:
    assert set_up_wrong(code)
    assert learnt_of_model(code, None).failed


REDIRECTS = [f"http_{status}" for status in (300, 301, 302, 303, 305, 306, 307, 308)]


@pytest.mark.parametrize("code", [*REDIRECTS, "http_403", "http_404", "http_405", "http_410"])
def test_what_is_not_there_is_an_answer(code: str) -> None:
    assert set_up_wrong(code)
    assert learnt_of_model(code, None).answered


@pytest.mark.parametrize(
    "code",
    [
        "http_304",
        "http_400",
        "http_408",
        "http_409",
        "http_413",
        "http_422",
        "http_429",
        "http_500",
        "timeout",
        "",
    ],
)
def test_everything_else_is_judged_as_before(code: str) -> None:
    assert not set_up_wrong(code)
    assert learnt_of_model("timeout", None).failed
    assert failure_class("http_400") == "refused"
