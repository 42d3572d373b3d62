"""Figures of a process for Prometheus, served where FENCEPOST_METRICS_ADDRESS says; off by default.

Names are ours and stay. No label is a tenant, a run or a key: they are the names an application declares and
closed sets of words. Figures of the whole ledger are read by the reconcilers' sweep alone (`ledger`): take
the maximum over them. All others are of one process: add them up.

Until `serve` is called, and without prometheus_client, each function here costs one comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from fencepost.errors import UsageError

log = logging.getLogger(__name__)

Hop = Literal["queue", "model", "tool", "lookup", "memory", "retrieval", "child"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Book:
    """The figures of one process."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, what: str, *labels: str) -> Any:
            return Counter(f"fencepost_{name}", what, labels, registry=self.registry)

        def gauge(name: str, what: str, *labels: str) -> Any:
            return Gauge(f"fencepost_{name}", what, labels, registry=self.registry)

        self.effects = counter("effects", "Attempts of tools that ended, by outcome", "tool", "outcome")
        self.attempts = counter(
            "attempts", "Attempts of tools begun; of `first` ones each is a call", "tool", "first"
        )
        self.lookups = counter("lookups", "Questions what became of an attempt, by answer", "tool", "outcome")
        self.asked = counter("model_requests", "Requests to models, by outcome", "model", "outcome")
        self.tokens = counter("model_tokens", "Tokens that models used, by kind", "model", "kind")
        self.cost = counter(
            "model_cost", "What models cost, in units of the currency they are priced in", "model"
        )
        self.runs = counter("runs", "Runs whose planner said that they are done, by planner", "planner")
        self.published = counter("outbox_published", "Rows of the outbox that were published")
        self.http = counter("http_requests", "Requests to the HTTP interface, by status", "status")
        self.hops = Histogram(
            "fencepost_hop_seconds",
            "How long one step took",
            ["hop"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.busy = gauge("slots_busy", "Items this process works on")
        self.unknown = gauge("unknown_calls", "Calls whose outcome is not known, 10,000 at most")
        self.unknown_age = gauge("unknown_oldest_age_seconds", "For how long the oldest of them has been")
        self.repairs = gauge("repair_calls", "Calls that need a person, 10,000 at most")
        self.owed = gauge("owed_effects", "Effects that stopped runs were to offset and did not")
        self.outbox_age = gauge(
            "outbox_oldest_age_seconds", "How long the oldest due row has not been published"
        )
        self.waiting_age = gauge(
            "waiting_oldest_age_seconds", "How long the oldest published row has been due"
        )


_book: Final[list[_Book]] = []


def serve(address: str) -> str | None:
    """Serve this process's figures at HOST:PORT from now on, `:0` on any free port of the loopback; where.

    None if the address is empty. UsageError for one that cannot be listened on, and without
    prometheus_client.
    """
    if not address:
        return None
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"FENCEPOST_METRICS_ADDRESS is HOST:PORT, or :0 for any free port, not {address}")
    try:
        from prometheus_client import start_http_server
    except ImportError:
        raise UsageError(
            "FENCEPOST_METRICS_ADDRESS needs prometheus_client: pip install 'fencepost[telemetry]'"
        ) from None
    book = _Book()
    host = host.strip("[]") or "127.0.0.1"
    try:
        server, _ = start_http_server(int(port), host, book.registry)
    except OSError as error:
        raise UsageError(f"FENCEPOST_METRICS_ADDRESS: {address} cannot be listened on: {error}") from None
    _book[:] = [book]
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{server.server_port}/metrics"
    log.info("figures at %s", where)
    return where


def on() -> bool:
    """Whether figures are kept."""
    return bool(_book)


def hop(name: Hop, seconds: float) -> None:
    """One step took so long."""
    if _book:
        _book[0].hops.labels(name).observe(max(0.0, seconds))


def attempt(tool: str, *, first: bool) -> None:
    """An attempt begins. Retry amplification is all of them over the first ones."""
    if _book:
        _book[0].attempts.labels(tool, "true" if first else "false").inc()


def effect(tool: str, outcome: str) -> None:
    """An attempt has ended."""
    if _book:
        _book[0].effects.labels(tool, outcome).inc()


def lookup(tool: str, outcome: str) -> None:
    """A question was answered, or not."""
    if _book:
        _book[0].lookups.labels(tool, outcome).inc()


def asked(model: str, outcome: str, tokens: Mapping[str, int], cost: int | None) -> None:
    """A model was asked; `cost` is in millionths."""
    if not _book:
        return
    book = _book[0]
    book.asked.labels(model, outcome).inc()
    for kind, count in tokens.items():
        book.tokens.labels(model, kind).inc(count)
    if cost:
        book.cost.labels(model).inc(cost / 1_000_000)


def finished(planner: str) -> None:
    """A planner said that its run is done."""
    if _book:
        _book[0].runs.labels(planner).inc()


def published(rows: int) -> None:
    """The relay has published so many rows."""
    if _book and rows:
        _book[0].published.inc(rows)


def answered(status: int) -> None:
    """The HTTP interface has answered."""
    if _book:
        _book[0].http.labels(str(status)).inc()


def busy(items: int) -> None:
    """So many items are being worked on."""
    if _book:
        _book[0].busy.set(items)


def ledger(figures: Mapping[str, float]) -> None:
    """Figures of the whole ledger, as `ledger.figures.read` found them."""
    if not _book:
        return
    book = _book[0]
    book.unknown.set(figures["unknown"])
    book.unknown_age.set(figures["unknown_age_s"])
    book.repairs.set(figures["repairs"])
    book.owed.set(figures["owed"])
    book.outbox_age.set(figures["outbox_age_s"])
    book.waiting_age.set(figures["waiting_age_s"])
