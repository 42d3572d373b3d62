"""Proposals that must never be dispatched: one table, data only, for every suite that has a planner.

Each row is what a planner may write for one of the tools of `tools.py`, the step that refuses
it, and the code under which that step does. `TENANT` in the arguments stands for the run's own tenant.
"""

import json
from typing import NamedTuple

OWN = "TENANT"


class Hostile(NamedTuple):
    """One proposal: a name for it, the tool, the raw text of the arguments, the step and the code."""

    name: str
    tool: str
    arguments: str
    step: int
    code: str
    version: int | None = None

    def text(self, tenant: str) -> str:
        """The arguments as a planner of this tenant's run would write them."""
        return self.arguments.replace(OWN, tenant)


ORDER, PAY, FETCH = "hostile.order", "hostile.pay", "hostile.fetch"
_ID = '"order": "TENANT/order/o-1"'
_EURO = '"amount": {"currency": "EUR", "amount_minor": 1250, "scale": 2}'
_DUE = '"due": "2026-01-02T03:04:05Z"'


def _pay(order: str = _ID, amount: str = _EURO, due: str = _DUE, more: str = "") -> str:
    return "{" + ", ".join(part for part in (order, amount, due, more) if part) + "}"


def _of(currency: str, minor: str, scale: str) -> str:
    return f'"amount": {{"currency": {currency}, "amount_minor": {minor}, "scale": {scale}}}'


BENIGN = (
    (ORDER, '{"reference": "o-1", "minor": 100}'),
    (ORDER, '{"minor": 9007199254740991, "reference": "\\ud83d\\ude00 caf\u00e9 cafe\u0301"}'),
    (PAY, _pay()),
    (PAY, _pay(more='"rate": "1.50", "tags": ["b", "a"], "password": {"secret": "mailbox/anna"}')),
    (FETCH, '{"url": "https://files.example.com/a?b=c"}'),
    (FETCH, '{"url": "https://eu.files.example.org/"}'),
)
"""The same tools, used well: these are dispatched, or a table of refusals would show nothing."""

_SYNTAX = (
    ("nothing at all", ""),
    ("white space", " \n\t"),
    ("prose", "Sure! Here are the arguments you asked for."),
    ("prose around it", 'Arguments: {"reference": "x"}'),
    ("a fence of Markdown", '```json\n{"reference": "x"}\n```'),
    ("two calls merged", '{"reference": "a"}{"reference": "b"}'),
    ("two calls merged on two lines", '{"reference": "a"}\n{"reference": "b"}'),
    ("two calls interleaved", '{"reference": {"reference": "a", "b"}'),
    ("cut in a string", '{"reference": "order-1'),
    ("cut after a value", '{"reference": "order-1", "minor": 10'),
    ("cut after a key", '{"reference": "order-1", "minor"'),
    ("cut after a comma", '{"reference": "order-1",'),
    ("cut at once", "{"),
    ("a mark in front", '\ufeff{"reference": "x"}'),
    ("a comment", '{"reference": "x" /* or y */}'),
    ("a comment at the end of a line", '{"reference": "x"} // approved'),
    ("single quotes", "{'reference': 'x'}"),
    ("bare keys", '{reference: "x"}'),
    ("a comma too many", '{"reference": "x",}'),
    ("a comma too few", '{"reference": "x" "minor": 1}'),
    ("trailing garbage", '{"reference": "x"} ; DROP TABLE runs'),
    ("a raw line end in a string", '{"reference": "a\nb"}'),
    ("a raw control character", '{"reference": "a\x01b"}'),
    ("a raw NUL", '{"reference": "a\x00b"}'),
    ("an unknown escape", '{"reference": "\\x41"}'),
    ("half an escape", '{"reference": "\\u12"}'),
    ("Python's words", '{"reference": "x", "minor": None}'),
    ("a hexadecimal number", '{"reference": "x", "minor": 0x10}'),
    ("a leading zero", '{"reference": "x", "minor": 010}'),
    ("a plus", '{"reference": "x", "minor": +1}'),
    ("digits of another script", '{"reference": "x", "minor": \u0661}'),
    ("separators in a number", '{"reference": "x", "minor": 1_000}'),
)
_SHAPE = (
    ("a list", "[]", "not_an_object"),
    ("a list of arguments", '[{"reference": "x"}]', "not_an_object"),
    ("text", '"reference"', "not_an_object"),
    ("JSON within text", '"{\\"reference\\": \\"x\\"}"', "not_an_object"),
    ("null", "null", "not_an_object"),
    ("true", "true", "not_an_object"),
    ("a number", "1", "not_an_object"),
    ("an empty object", "{}", "schema"),
    ("a field of its own", '{"reference": "x", "approved": true}', "schema"),
    ("a prototype", '{"reference": "x", "__proto__": {"minor": 1}}', "schema"),
    ("a look-alike key", '{"referenc\u0435": "x"}', "schema"),
    ("a key with an invisible character", '{"reference\u200b": "x"}', "schema"),
    ("a key in capitals", '{"Reference": "x"}', "schema"),
    ("null for text", '{"reference": null}', "schema"),
    ("a number for text", '{"reference": 7}', "schema"),
    ("a list for text", '{"reference": ["x"]}', "schema"),
    ("an object for text", '{"reference": {"$ne": ""}}', "schema"),
    ("text for a number", '{"reference": "x", "minor": "1"}', "schema"),
    ("true for one", '{"reference": "x", "minor": true}', "schema"),
    ("less than the least", '{"reference": "x", "minor": 0}', "schema"),
    ("minus zero", '{"reference": "x", "minor": -0}', "schema"),
    ("longer than allowed", '{"reference": "' + "x" * 101 + '"}', "schema"),
    ("larger than any arguments", '{"reference": "' + "x" * 70_000 + '"}', "too_large"),
    ("larger in bytes only", '{"reference": "' + "\u00e9" * 40_000 + '"}', "too_large"),
    ("nested beyond the limit", '{"reference": ' + "[" * 33 + "]" * 33 + "}", "too_deep"),
    ("nested without an end", "[" * 60_000, "too_deep"),
    ("nested objects", '{"a":' * 40 + "1" + "}" * 40, "too_deep"),
)
_CANONICAL = (
    ("a key twice", '{"reference": "x", "minor": 1, "minor": 1000}', "duplicate_key"),
    ("a key twice with one value", '{"reference": "x", "reference": "x"}', "duplicate_key"),
    ("a key twice, once escaped", '{"minor": 1, "reference": "x", "min\\u006fr": 1000}', "duplicate_key"),
    ("a key twice further in", '{"reference": {"a": [{"b": 1, "b": 2}]}}', "duplicate_key"),
    ("a key twice further in, escaped", '{"reference": [{"b": 1, "\\u0062": 2}]}', "duplicate_key"),
    ("a float of a whole number", '{"reference": "x", "minor": 1.0}', "float"),
    ("an exponent", '{"reference": "x", "minor": 1e0}', "float"),
    ("a small float", '{"reference": "x", "minor": 1e-7}', "float"),
    ("a huge float", '{"reference": "x", "minor": 1e400}', "float"),
    ("minus zero as a float", '{"reference": "x", "minor": -0.0}', "float"),
    ("a decimal number", '{"reference": "x", "minor": 12.50}', "float"),
    ("NaN", '{"reference": "x", "minor": NaN}', "not_finite"),
    ("infinity", '{"reference": "x", "minor": Infinity}', "not_finite"),
    ("minus infinity", '{"reference": "x", "minor": -Infinity}', "not_finite"),
    ("an integer that is rounded", '{"reference": "x", "minor": 9007199254740993}', "number_range"),
    ("the first integer that is not exact", '{"reference": "x", "minor": 9007199254740992}', "number_range"),
    ("an integer that wraps", '{"reference": "x", "minor": 18446744073709551617}', "number_range"),
    ("a large negative integer", '{"reference": "x", "minor": -9007199254740993}', "number_range"),
    ("thousands of digits", '{"reference": "x", "minor": ' + "1" * 5000 + "}", "number_range"),
    ("an escaped NUL", '{"reference": "a\\u0000b"}', "nul"),
    ("an escaped NUL in a key", '{"reference": "x", "a\\u0000": 1}', "nul"),
    ("half a character", '{"reference": "\\ud83d"}', "surrogate"),
    ("the other half", '{"reference": "\\ude00\\ud83d"}', "surrogate"),
    ("half a character, raw", '{"reference": "\ud83d"}', "surrogate"),
    ("half a character in a key", '{"reference": "x", "\\udc00": 1}', "surrogate"),
)
_VALUES = (
    ("money of another scale", _pay(amount=_of('"EUR"', "1250", "3")), "money_scale"),
    ("money without decimals that has two", _pay(amount=_of('"EUR"', "1250", "0")), "money_scale"),
    ("yen with decimals", _pay(amount=_of('"JPY"', "1250", "2")), "money_scale"),
    ("a currency that is none", _pay(amount=_of('"EUX"', "1250", "2")), "currency"),
    ("gold", _pay(amount=_of('"XAU"', "1250", "2")), "currency"),
    ("money as a float", _pay(amount=_of('"EUR"', "12.50", "2")), "float"),
    ("a time without a zone", _pay(due='"due": "2026-01-02T03:04:05"'), "instant"),
    ("a date", _pay(due='"due": "2026-01-02"'), "instant"),
    ("a leap second", _pay(due='"due": "2016-12-31T23:59:60Z"'), "instant"),
    ("a time finer than kept", _pay(due='"due": "2026-01-02T03:04:05.0000001Z"'), "instant"),
    ("a day that is none", _pay(due='"due": "2026-02-30T03:04:05Z"'), "instant"),
    ("seconds since 1970", _pay(due='"due": 1767322800'), "instant"),
    ("a decimal with an exponent", _pay(more='"rate": "1e-7"'), "decimal"),
    ("a decimal that is not a number", _pay(more='"rate": "NaN"'), "decimal"),
    ("a decimal as a number", _pay(more='"rate": 1'), "decimal"),
    ("an item twice in a set", _pay(more='"tags": ["a", "b", "a"]'), "duplicate_item"),
    ("an id without a tenant", _pay(order='"order": "o-1"'), "tenant_id"),
    ("an id of another kind", _pay(order='"order": "TENANT/invoice/o-1"'), "tenant_id"),
    ("an id that climbs", _pay(order='"order": "TENANT/order/../o-2"'), "tenant_id"),
    ("a secret by its value", _pay(more='"password": "hunter2hunter2"'), "secret"),
    ("a secret's name that climbs", _pay(more='"password": {"secret": "../other/anna"}'), "secret"),
)
_BOUND = (
    ("an id of another tenant", _pay(order='"order": "other/order/o-1"'), "tenant"),
    ("an id of a tenant that looks like it", _pay(order='"order": "TENANT\u200b/order/o-1"'), "tenant"),
    ("an id of a tenant in other letters", _pay(order='"order": "TENANT /order/o-1"'), "tenant"),
    (
        "an id of another tenant in a list",
        _pay(more='"others": ["TENANT/order/o-2", "x/order/o-3"]'),
        "tenant",
    ),
    ("an id of another tenant under a key", _pay(more='"by_name": {"a": "other/order/o-1"}'), "tenant"),
    ("another tenant by name", _pay(more='"owner": {"tenant": "other"}'), "tenant"),
    ("another tenant by name in a list", _pay(more='"owners": [{"tenant": "other"}]'), "tenant"),
    ("a secret the tool may not have", _pay(more='"password": {"secret": "card/1"}'), "secret"),
    ("a secret beside the pattern", _pay(more='"password": {"secret": "mailboxes/anna"}'), "secret"),
)
_BUSINESS = (
    ("what the tool's check refuses", '{"reference": "forbidden"}', "business_rule"),
    ("what its check says no to", '{"reference": "unwanted"}', "business_rule"),
    ("what its check breaks on", '{"reference": "breaks the check"}', "check_failed"),
    ("what has no intent", '{"reference": "breaks the intent"}', "intent"),
)
_HOSTS = (
    ("a cloud's metadata", "http://169.254.169.254/latest/meta-data/"),
    ("another cloud's metadata", "http://100.100.100.200/latest/meta-data/"),
    ("a cloud's metadata by name", "http://metadata.google.internal/computeMetadata/v1/"),
    ("this machine", "http://127.0.0.1/"),
    ("this machine by name", "http://localhost/"),
    ("this machine in IPv6", "http://[::1]/"),
    ("this machine in IPv4 in IPv6", "http://[::ffff:127.0.0.1]/"),
    ("this machine as one number", "http://2130706433/"),
    ("this machine in octal", "http://0177.0.0.1/"),
    ("this machine in hexadecimal", "http://0x7f.0.0.1/"),
    ("this machine cut short", "http://127.1/"),
    ("a file", "file:///etc/passwd"),
    ("another protocol", "gopher://files.example.com/"),
    ("no protocol", "//evil.example/"),
    ("another host", "https://evil.example/"),
    ("a host that ends like it", "https://files.example.com.evil.example/"),
    ("a host that begins like it", "https://evilfiles.example.com/"),
    ("the domain of a pattern", "https://example.org/"),
    ("a user that looks like the host", "https://files.example.com@evil.example/"),
    ("a backslash before the host", "https://evil.example\\.example.org/"),
    ("a look-alike host", "https://files.\u0435xample.com/"),
    ("a host with an invisible character", "https://files.example.com\u200b/"),
    ("a host with a dot too many", "https://files.example.com./"),
    ("another port", "https://files.example.com:8443/"),
    ("without TLS", "http://files.example.com/"),
    ("a path that climbs", "https://files.example.com/a/../../b"),
    ("a header in the URL", "https://files.example.com/a\r\nX-Admin: 1"),
    ("the dependency's own host", "http://127.0.0.1:9/admin"),
)
_NAMES = (
    ("a tool that is none", "hostile.nothing", "unknown_tool"),
    ("no tool", "", "unknown_tool"),
    ("a tool in capitals", "Hostile.Order", "unknown_tool"),
    ("a tool and a blank", "hostile.order ", "unknown_tool"),
    ("a look-alike tool", "hostile.\u043erder", "unknown_tool"),
    ("a NUL in a tool", "hostile\x00order", "unknown_tool"),
    ("half a character in a tool", "hostile\ud83d", "unknown_tool"),
    ("a path for a tool", "../hostile.order", "unknown_tool"),
    ("a very long tool", "h" * 10_000, "unknown_tool"),
    ("a function of Python", "__import__('os').system", "unknown_tool"),
)

HOSTILE: tuple[Hostile, ...] = (
    *(Hostile(name, ORDER, text, 1, "syntax") for name, text in _SYNTAX),
    *(Hostile(name, ORDER, text, 1, code) for name, text, code in _SHAPE),
    *(Hostile(name, tool, '{"reference": "x"}', 2, code) for name, tool, code in _NAMES),
    Hostile("a version that is none", ORDER, '{"reference": "x"}', 2, "unknown_version", version=2),
    Hostile("version zero", ORDER, '{"reference": "x"}', 2, "unknown_version", version=0),
    *(Hostile(name, ORDER, text, 3, code) for name, text, code in _CANONICAL),
    *(Hostile(name, PAY, text, 3, code) for name, text, code in _VALUES),
    *(Hostile(name, PAY, text, 4, code) for name, text, code in _BOUND),
    *(Hostile(name, ORDER, text, 5, code) for name, text, code in _BUSINESS),
    *(Hostile(name, FETCH, json.dumps({"url": url}), 5, "outbound_refused") for name, url in _HOSTS),
)
