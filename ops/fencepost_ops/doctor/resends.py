"""Which clients send again by themselves, and the line that turns it off.

A client is known by the names of its classes, so nothing foreign is imported here; it is looked at, and never
called. What was measured with the versions named in a rule may be otherwise in others: the request-counting
tests of this repository are how to find out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Resend:
    """One way to send again. `harmful`: the same effect may be asked for twice within one attempt."""

    says: str
    off: str
    harmful: bool = True


@dataclass(frozen=True, slots=True)
class Looked:
    """A client that was looked at: what it is, and how it sends again, if it does."""

    client: str
    resends: tuple[Resend, ...]


OFF: Final[Mapping[str, str]] = {
    "openai": "openai.OpenAI(max_retries=0)",
    "anthropic": "anthropic.Anthropic(max_retries=0)",
    "groq": "groq.Groq(max_retries=0)",
    "stripe": "stripe.max_network_retries = 0",
    "boto3": 'boto3.client(..., config=botocore.config.Config(retries={"total_max_attempts": 1}))',
    "botocore": 'botocore.config.Config(retries={"total_max_attempts": 1})',
    "requests": 'session.mount("https://", requests.adapters.HTTPAdapter(max_retries=0))',
    "urllib3": "urllib3.PoolManager(retries=False)",
    "httpx": "httpx.HTTPTransport(retries=0) and follow_redirects=False",
    "httpx2": "httpx2.HTTPTransport(retries=0) and follow_redirects=False",
    "mcp": "await client.session.call_tool(..., allow_input_required=True)",
    "redis": "retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)",
    "valkey": "retry=valkey.retry.Retry(valkey.backoff.NoBackoff(), 0)",
    "kombu": "producer.publish(..., retry=False)",
    "celery": "app.conf.task_publish_retry = False",
}
"""By package: how to make its client send once."""


def look(value: object) -> Looked | None:
    """What a client does by itself; None for what is no client that is known here."""
    if issubclass(type(value), type):
        return None
    for cls in type(value).__mro__:
        rule = _RULES.get(f"{cls.__module__}.{cls.__qualname__}")
        if rule is None and cls.__module__.endswith("._base_client") and cls.__qualname__ == "BaseClient":
            rule = _stainless
        if rule is not None:
            kind = type(value)
            name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
            return Looked(name, tuple(rule(value)))
    return None


def look_at_module(name: str) -> Looked | None:
    """What the functions of an imported package do by themselves; None where only its clients do anything."""
    module = sys.modules.get(name)
    if name != "stripe" or module is None:
        return None
    retries = getattr(module, "max_network_retries", None)
    return Looked("stripe, its module", tuple(_counted("stripe", retries, "409, 5xx, lost connections")))


def wraps_in_retries(function: object) -> str | None:
    """The package of retries whose wrapper a function is."""
    if _get(function, "__wrapped__") is None:
        return None
    code = getattr(function, "__code__", None)
    parts = set(str(getattr(code, "co_filename", "")).replace("\\", "/").split("/"))
    return next((name for name in ("tenacity", "backoff", "stamina", "retrying") if name in parts), None)


def _get(value: object, *names: str) -> Any:
    for name in names:
        try:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        except Exception:  # noqa: BLE001 - whatever a foreign client's attribute raises, there is none
            return None
    return value


def _counted(package: str, retries: object, when: str) -> Iterator[Resend]:
    if isinstance(retries, int) and not isinstance(retries, bool) and retries != 0:
        times = "without end" if retries < 0 else f"up to {retries + 1} times"
        yield Resend(f"sends one call {times}: on {when}", OFF.get(package, "max_retries=0"))


def _root(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _stainless(client: object) -> Iterator[Resend]:
    # openai 3.57 and anthropic 2.14: two retries by default, and the server may ask for more.
    when = "408, 409, 429, 5xx, timeouts and lost connections"
    package = _root(client)
    for resend in _counted(package, _get(client, "max_retries"), when):
        yield Resend(resend.says, f"{package}.{type(client).__qualname__}(max_retries=0)")
    kind = "Async" if type(client).__qualname__.startswith("Async") else ""
    for resend in _httpx(_get(client, "_client")):
        client_off = f"http_client={package}.Default{kind}HttpxClient(follow_redirects=False)"
        yield replace(resend, off=client_off) if "redirects" in resend.says else resend


def _stripe(client: object) -> Iterator[Resend]:
    retries = _get(client, "_requestor", "_options", "max_network_retries")
    for resend in _counted("stripe", retries, "409, 5xx, lost connections"):
        yield Resend(resend.says, "stripe.StripeClient(..., max_network_retries=0)")


def _botocore(client: object) -> Iterator[Resend]:
    config: Mapping[str, Any] = _get(client, "meta", "config", "retries") or {}
    attempts = config.get("total_max_attempts")
    if attempts is None:
        legacy, dynamo = config.get("mode") == "legacy", type(client).__qualname__ == "DynamoDB"
        attempts = 5 if legacy else 4 if dynamo else 3  # boto3 1.44
    when = "429, 5xx, timeouts and lost connections"
    yield from _counted("boto3", int(attempts) - 1, when)


def _resource(resource: object) -> Iterator[Resend]:
    if (client := _get(resource, "meta", "client")) is not None:
        yield from _botocore(client)


def _session(_session: object) -> Iterator[Resend]:
    says = "makes clients that send one call up to 3 times where they are not told"
    yield Resend(says, OFF["boto3"], False)


def _retry_total(retry: object) -> int:
    """How often a Retry of urllib3 tries again: the total, or the largest of its parts without one."""
    if isinstance(retry, bool) or retry is None:
        return 0
    if isinstance(retry, int):
        return retry
    total = _get(retry, "total")
    if total is False:
        return 0
    parts = [_get(retry, name) for name in ("connect", "read", "status", "other")]
    numbers = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    return total if isinstance(total, int) else max(numbers, default=0)


def _requests(session: object) -> Iterator[Resend]:
    adapters: Mapping[str, Any] = _get(session, "adapters") or {}
    for prefix, adapter in adapters.items():
        retries = _retry_total(_get(adapter, "max_retries"))
        for resend in _counted("requests", retries, "what its Retry lists, lost connections too"):
            off = f'session.mount("{prefix}", requests.adapters.HTTPAdapter(max_retries=0))'
            yield Resend(f"for {prefix} {resend.says}", off)
    yield Resend(
        "follows redirects: 307 and 308 send a POST again", "session.post(..., allow_redirects=False)", False
    )


def _urllib3(pool: object) -> Iterator[Resend]:
    keywords: Mapping[str, Any] = _get(pool, "connection_pool_kw") or {}
    retry = keywords["retries"] if "retries" in keywords else _get(pool, "retries")
    if retry is None:
        retry = 3  # urllib3 2.8, for GET, PUT and DELETE
    when = "lost connections, timeouts and Retry-After; POST only where its Retry allows it"
    yield from _counted("urllib3", _retry_total(retry), when)


def _httpx(client: object) -> Iterator[Resend]:
    if client is None:
        return
    package = next((c.__module__.partition(".")[0] for c in type(client).__mro__ if _is_httpx(c)), "httpx")
    mounted: Mapping[Any, Any] = _get(client, "_mounts") or {}
    for transport in dict.fromkeys([_get(client, "_transport"), *mounted.values()]):
        kind = type(transport)
        if transport is not None and kind.__module__.partition(".")[0] not in {package, "fencepost_workers"}:
            off = f"give it {package}.HTTPTransport(retries=0), or see to it that this one sends once"
            name = f"{kind.__module__}.{kind.__qualname__}"
            yield Resend(f"sends by {name}, which cannot be looked into", off, False)
        retries = _get(transport, "_pool", "_retries")
        if isinstance(retries, int) and retries > 0:
            off = f"{package}.HTTPTransport(retries=0)"
            says = f"connects up to {retries + 1} times, within one attempt; it sends once"
            yield Resend(says, off, False)
    if _get(client, "follow_redirects"):
        says = "follows redirects: 307 and 308 send a POST again"
        yield Resend(says, f"{package}.Client(follow_redirects=False)", False)


def _is_httpx(cls: type) -> bool:
    return cls.__module__ in {"httpx._client", "httpx2._client"} or cls.__module__ in {"httpx", "httpx2"}


def _mcp(client: object) -> Iterator[Resend]:
    rounds = _get(client, "input_required_max_rounds")
    says = f"call_tool sends again, up to {rounds} rounds where input is asked for, once for another header"
    yield Resend(says, OFF["mcp"])


def _redis(client: object) -> Iterator[Resend]:
    package = next(c.__module__.partition(".")[0] for c in type(client).__mro__ if _is_redis(c))
    retry = _get(client, "connection_pool", "connection_kwargs", "retry") or _get(client, "retry")
    yield from _counted(
        package, _get(retry, "_retries"), "lost connections and timeouts, INCR and SET NX too"
    )


def _is_redis(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in {"redis", "valkey"}


def _celery(app: object) -> Iterator[Resend]:
    if _get(app, "conf", "task_publish_retry"):
        yield Resend("publishes a message again when its connection is lost meanwhile", OFF["celery"])


def _kombu(_: object) -> Iterator[Resend]:
    yield Resend(
        "publishes again where publish(retry=True) asks for it, which shows only there", OFF["kombu"], False
    )


_RULES: Final[Mapping[str, Callable[[object], Iterator[Resend]]]] = {
    "stripe._stripe_client.StripeClient": _stripe,
    "botocore.client.BaseClient": _botocore,
    "boto3.resources.base.ServiceResource": _resource,
    "boto3.session.Session": _session,
    "requests.sessions.Session": _requests,
    "urllib3.poolmanager.PoolManager": _urllib3,
    "urllib3.connectionpool.HTTPConnectionPool": _urllib3,
    "httpx._client.BaseClient": _httpx,
    "httpx2._client.BaseClient": _httpx,
    "mcp.client.client.Client": _mcp,
    "redis.client.Redis": _redis,
    "redis.asyncio.client.Redis": _redis,
    "redis.cluster.RedisCluster": _redis,
    "redis.asyncio.cluster.RedisCluster": _redis,
    "valkey.client.Valkey": _redis,
    "valkey.asyncio.client.Valkey": _redis,
    "celery.app.base.Celery": _celery,
    "kombu.messaging.Producer": _kombu,
}
