"""What a provider turns away: because of the request, or because of how the deployment is set up."""

from typing import Any

import pytest

from fencepost.breaker import failure_class, learnt_of_model, set_up_wrong
from fencepost_workers.models.failures import failed

CREDIT = "Your credit balance is too low to access the API."
TOLD_AS_400 = [
    ({"error": {"type": "invalid_request_error", "message": CREDIT}}, "http_402"),
    ({"error": {"code": "invalid_api_key", "message": "no"}}, "http_401"),
    ({"error": {"message": "API key not valid. Please pass a valid API key."}}, "http_401"),
    ({"error": {"code": "model_not_found", "message": "no such model"}}, "http_404"),
    ({"error": {"type": "permission_error"}}, "http_403"),
    ({"error": {"type": "invalid_request_error", "message": "temperature: at most 1"}}, "http_400"),
    ("<html>", "http_400"),
]


@pytest.mark.parametrize(("body", "code"), TOLD_AS_400)
def test_a_400_that_is_no_fault_of_the_request_is_told_as_what_it_is(body: Any, code: str) -> None:
    assert failed(400, body, "m")[1] == code
    assert failed(500, body, "m")[1] == "http_500"


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
