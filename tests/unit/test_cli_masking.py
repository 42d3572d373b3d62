"""What people see of bodies and addresses that were sent: no value under a secret's name."""

import json

import pytest

from fencepost_ops.commands.masking import masked_target, masked_text, secret

NAMES = [
    ("password", True),
    ("dbPassword", True),
    ("smtp_pwd", True),
    ("passphrase", True),
    ("client_secret", True),
    ("clientSecret", True),
    ("token", True),
    ("access_token", True),
    ("accessToken", True),
    ("api_key", True),
    ("apiKey", True),
    ("api-key", True),
    ("private_key", True),
    ("Authorization", True),
    ("cvc", True),
    ("card_number", True),
    ("cardNumber", True),
    ("pan", True),
    ("pin", True),
    ("account", False),
    ("amount_minor", False),
    ("span", False),
    ("company", False),
    ("key", False),
    ("passenger", False),
    ("author", False),
    ("tokens_used", False),
    ("opinion", False),
]


@pytest.mark.parametrize(("name", "hidden"), NAMES)
def test_a_secret_is_known_by_its_name(name: str, hidden: bool) -> None:
    assert secret(name) is hidden


BODIES = [
    ('{"account":"ann","password":"hunter2"}', '{"account":"ann","password":"***"}'),
    ('{"card":{"number":"4242","cvc":"123"}}', '{"card":{"number":"4242","cvc":"***"}}'),
    ('[{"token":{"deep":"hunter2"}},1]', '[{"token":"***"},1]'),
    ('{"dsn":"postgresql://ann:hunter2@host/db"}', '{"dsn":"postgresql://ann:***@host/db"}'),
    ("amount=100&api_key=hunter2", "amount=100&api_key=***"),
    ("plain words, password=hunter2", "plain words, password=***"),
    ("amount=100&currency=EUR", "amount=100&currency=EUR"),
    ("", ""),
    ('"a text"', '"a text"'),
]


@pytest.mark.parametrize(("body", "shown"), BODIES)
def test_a_body_is_shown_without_its_secrets(body: str, shown: str) -> None:
    assert masked_text(body) == shown
    assert "hunter2" not in masked_text(body)


@pytest.mark.parametrize("depth", [800, 3_000, 100_000])
def test_a_body_that_is_nested_too_deeply_is_not_shown(depth: int) -> None:
    told = masked_text("[" * depth + '{"password":"hunter2"}' + "]" * depth)
    assert "hunter2" not in told


def test_a_nested_body_is_shown() -> None:
    assert json.loads(masked_text('{"a":' * 50 + "1" + "}" * 50))


TARGETS = [
    ("https://api.example/v1/charges?api_key=hunter2&x=1", "https://api.example/v1/charges?api_key=***&x=1"),
    ("https://ann:hunter2@api.example/v1", "https://ann:***@api.example/v1"),
    ("https://api.example/v1/charges?order=o-1", "https://api.example/v1/charges?order=o-1"),
    ("https://api.example/v1", "https://api.example/v1"),
]


@pytest.mark.parametrize(("target", "shown"), TARGETS)
def test_an_address_is_shown_without_its_secrets(target: str, shown: str) -> None:
    assert masked_target(target) == shown
