"""What a provider turns away: because of the request, or because of how the deployment is set up."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.breaker import FailureClass, Learnt, failure_class, learnt_of_model, set_up_wrong
from fencepost_workers.models.answers import Ending
from fencepost_workers.models.failures import failed, unbilled

CREDIT = "Your credit balance is too low to access the API."
NO_KEY = "API key not valid. Please pass a valid API key."
THROUGH = "litellm.BadRequestError: AnthropicException - "


def body(message: str) -> str:
    """As Anthropic sends it, and a gateway passes it on as a text."""
    error = {"type": "invalid_request_error", "message": message}
    return json.dumps({"type": "error", "error": error}, separators=(",", ":"))


def shown(message: str) -> str:
    """As Python shows it."""
    return str({"error": {"message": message, "code": None}})


def as_bytes(message: str) -> str:
    """As Python shows what was not read yet."""
    return repr(json.dumps({"error": {"code": 400, "message": message}}, indent=2).encode())


def listed(message: str) -> str:
    """As Gemini sends it."""
    return f"[{body(message)}]"


TOLD_AS_400 = [
    ({"error": {"type": "invalid_request_error", "message": CREDIT}}, "http_402"),
    ({"error": {"code": "invalid_api_key", "message": "no"}}, "http_401"),
    ({"error": {"message": NO_KEY}}, "http_401"),
    ([{"error": {"code": 400, "message": NO_KEY, "status": "INVALID_ARGUMENT"}}], "http_401"),
    ({"error": {"code": 400, "message": "API key expired. Please renew the API key."}}, "http_401"),
    ({"error": {"code": 400, "message": "API Key not found. Please pass a valid API key."}}, "http_401"),
    ({"error": {"code": "400", "type": None, "message": f"{THROUGH}{CREDIT}"}}, "http_402"),
    ({"error": {"type": "None", "param": "None", "message": f"{THROUGH}{CREDIT}"}}, "http_402"),
    ({"error": {"code": 400, "message": json.dumps({"error": {"message": NO_KEY}}, indent=2)}}, "http_401"),
    ({"error": {"code": "400", "message": f"{THROUGH}{body(CREDIT)}\nReceived Model Group=m"}}, "http_402"),
    ({"error": {"message": f"GeminiException BadRequestError - {body(NO_KEY).encode()!r}"}}, "http_401"),
    ({"error": {"message": f"Error code: 400 - {shown(NO_KEY)}"}}, "http_401"),
    ({"error": {"message": f"{THROUGH}{listed(NO_KEY)}. Received Model Group=m\nmore"}}, "http_401"),
    ({"error": {"message": THROUGH + json.dumps({"error": {"code": "invalid_api_key"}})}}, "http_401"),
    (
        {"error": {"message": THROUGH + json.dumps({"error": {"message": THROUGH + body(CREDIT)}})}},
        "http_402",
    ),
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
    {"message": f"ValidationError: '{CREDIT}' is too long"},
    {"message": f"The user said: {THROUGH}{CREDIT}"},
    {"message": f"Invalid value: {body(CREDIT)}"},
    {"message": f"Invalid value: {THROUGH}{body(CREDIT)}"},
    {"message": f"Error code: 400 - {shown(f'Invalid value: {NO_KEY}')}"},
    {"message": f"Error code: 400 - {{'detail': [{{'input': {{'message': '{NO_KEY}'}}}}]}}"},
    {"detail": f'say "message": "{NO_KEY}"'},
    {"input": f"x 'message': '{NO_KEY}' y", "reason": "bad"},
    {"input": f"x 'message': '{NO_KEY}' y", "message": "Invalid value"},
    {"input": f"x'message': \"{NO_KEY}\"", "message": "Invalid value"},
    {"input": {"error": {"message": NO_KEY}}, "message": "Invalid value"},
    {"message": f"ValueError: {CREDIT}"},
    {"message": f"jinja2.exceptions.TemplateError: {NO_KEY}"},
    {"message": f"{body(CREDIT)} is not of type 'object'"},
    {"code": "invalid_value", "message": CREDIT},
    {"type": "invalid_request_error", "param": "messages[0]", "message": NO_KEY},
]


@pytest.mark.parametrize(("body", "code"), TOLD_AS_400)
def test_a_400_that_is_no_fault_of_the_request_is_told_as_what_it_is(body: Any, code: str) -> None:
    assert failed(400, body, "m")[1] == code
    assert failed(500, body, "m")[1] == "http_500"


WRAPS: list[Callable[[dict[str, Any]], str]] = [
    json.dumps,
    str,
    lambda told: repr(json.dumps(told).encode()),
    lambda told: json.dumps({"error": {"message": THROUGH + str(told)}}),
]


@pytest.mark.parametrize("error", ECHOES)
def test_what_a_provider_repeats_of_a_request_closes_nothing(error: dict[str, Any]) -> None:
    told = {"error": error}
    for message in (CREDIT, f"Error code: 400 - {told}", f"Error code: 400 - {shown(NO_KEY)}"):
        assert failed(400, told, message)[1] == "http_400"
        assert failed(400, None, message)[1] == "http_400"
    for before in ("", THROUGH, "Error code: 400 - ", "GeminiException BadRequestError - "):
        for wrap in WRAPS:
            assert (
                failed(400, {"error": {"code": "400", "message": before + wrap(told)}}, "m")[1] == "http_400"
            )


FLAGGED = {"code": 403, "message": "x", "metadata": {"reasons": ["violence"], "flagged_input": "y"}}
PREVENTED = "litellm.ContentPolicyViolationError: "
LONGER = "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - Longer than allowed"
TOLD_BY_NAME = [
    (403, {"code": "content_policy_violation", "message": "x"}, Ending.CONTENT_FILTER),
    (403, FLAGGED, Ending.CONTENT_FILTER),
    (403, {"metadata": {"reasons": ["violence"]}}, Ending.CONTENT_FILTER),
    (403, {"metadata": {"reasons": [], "flagged_input": "", "provider_name": "x"}}, Ending.FAILED),
    (422, {"code": "content_filter"}, Ending.CONTENT_FILTER),
    (422, {"code": "context_length_exceeded"}, Ending.CONTEXT_EXCEEDED),
    (422, {"message": "prompt is too long"}, Ending.FAILED),
    (500, {"code": "content_filter"}, Ending.FAILED),
    (400, {"code": "content_filter", "message": "prompt is too long"}, Ending.CONTENT_FILTER),
    (400, {"code": "400", "type": None, "message": f"{PREVENTED}AzureException - no"}, Ending.CONTENT_FILTER),
    (400, {"message": f"litellm.BadRequestError: {PREVENTED * 2}AzureException - no"}, Ending.CONTENT_FILTER),
    (400, {"code": "400", "message": LONGER}, Ending.CONTEXT_EXCEEDED),
    (400, {"message": f"OpenAIException - '{PREVENTED}'"}, Ending.FAILED),
    (400, {"message": THROUGH + json.dumps({"error": {"code": "content_filter"}})}, Ending.CONTENT_FILTER),
    (400, {"message": THROUGH + str({"error": FLAGGED})}, Ending.CONTENT_FILTER),
    (
        400,
        {"message": THROUGH + json.dumps({"error": {"code": "context_length_exceeded", "message": "no"}})},
        Ending.CONTEXT_EXCEEDED,
    ),
]


@pytest.mark.parametrize(("status", "error", "ending"), TOLD_BY_NAME)
def test_what_is_filtered_or_too_long_is_so_by_any_name_and_status_and_is_not_free(
    status: int, error: dict[str, Any], ending: Ending
) -> None:
    assert failed(status, {"error": error}, "m")[0] is ending
    assert unbilled(status, ending) is (ending is Ending.FAILED and status < 500)


def test_what_a_provider_repeats_of_a_request_makes_it_no_longer_than_it_is() -> None:
    echo = {"error": {"message": "Invalid value: 'it's too many tokens'. Use \"prompt is too long\"."}}
    assert failed(400, echo, "m")[0] is Ending.FAILED
    told = {"error": {"message": "This model's maximum context length is 8192 tokens, not 'infinite'."}}
    assert failed(400, told, "m")[0] is Ending.CONTEXT_EXCEEDED


LONG = "This model's maximum context length is 8192 tokens, not 'infinite'."


@pytest.mark.parametrize("told", [str, body, shown, as_bytes, listed])
@pytest.mark.parametrize("before", ["", THROUGH, "Error code: 400 - ", f"{THROUGH}Error code: 400 - "])
def test_what_is_too_long_is_so_through_a_gateway(told: Callable[[str], str], before: str) -> None:
    assert failed(400, {"error": {"message": before + told(LONG)}}, "m")[0] is Ending.CONTEXT_EXCEEDED
    echo = LONG.replace("This model's", "Invalid value: 'this").replace("'infinite'.", "much.'")
    assert failed(400, {"error": {"message": before + told(echo)}}, "m")[0] is Ending.FAILED


@pytest.mark.parametrize(
    "piece",
    [
        "xError: ",
        "Error code: 400 - ",
        "aError",
        ".",
        "{",
        "\\",
        '"error":{',
        '"',
        "[",
        "-",
        "x'",
        "not ",
        "9",
    ],
)
def test_no_text_takes_long_to_be_read(piece: str) -> None:
    begun = time.process_time()
    failed(400, {"error": {"message": THROUGH + '{"error":{"message":"' + piece * 10_000}}, "m")
    for many in (10, 300, 1500, 10_000):
        failed(400, {"error": {"message": THROUGH + '{"error":{' + piece * many}}, "m")
        failed(400, {"error": {"message": f"{THROUGH}{{'error':{piece * many}1}}"}}, "m")
    failed(400, {"error": {"message": piece * 10_000}}, "m")
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("code", ["http_401", "http_402", "http_407"])
def test_an_account_fails_for_everybody_who_has_it(code: str) -> None:
    assert set_up_wrong(code)
    assert learnt_of_model(code, None).failed


REDIRECTS = [f"http_{status}" for status in (300, 301, 302, 303, 305, 306, 307, 308)]


@pytest.mark.parametrize("code", [*REDIRECTS, "http_403", "http_404", "http_405", "http_410"])
def test_what_is_not_there_is_an_answer(code: str) -> None:
    assert set_up_wrong(code)
    assert learnt_of_model(code, None).answered


OTHERS = {
    "http_304": FailureClass.UNCLEAR,
    "http_400": FailureClass.REFUSED,
    "http_408": FailureClass.REFUSED,
    "http_409": FailureClass.REFUSED,
    "http_413": FailureClass.REFUSED,
    "http_422": FailureClass.REFUSED,
    "http_429": FailureClass.THROTTLED,
    "http_500": FailureClass.SERVER,
    "timeout": FailureClass.TIMEOUT,
    "planner_error": FailureClass.OURS,
}


@pytest.mark.parametrize(("code", "kind"), OTHERS.items())
def test_everything_else_is_judged_as_of_any_other_dependency(code: str, kind: FailureClass) -> None:
    assert not set_up_wrong(code)
    assert failure_class(code) is kind
    theirs = kind in {FailureClass.THROTTLED, FailureClass.SERVER}
    heard = not theirs and kind not in {FailureClass.OURS, FailureClass.TIMEOUT}  # slow is not ill
    assert learnt_of_model(code, None) == Learnt(failed=theirs, answered=heard, code=code)


def test_what_was_never_asked_says_nothing_of_its_provider() -> None:
    assert not set_up_wrong("")
    assert learnt_of_model("", None) == Learnt()
