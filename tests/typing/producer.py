"""Typical code of a producer and an operator, type-checked strictly; never run."""

from datetime import timedelta
from uuid import UUID

from fencepost import Budget, Client, Conflict, Enqueued, OnStop, RunInfo, RunRequest


def enqueue_one(order: dict[str, str]) -> UUID:
    with Client() as client:
        run: Enqueued = client.enqueue(
            "fulfil",
            order,
            run_key=order["id"],
            tenant="shop",
            principal="svc:checkout",
            deadline=timedelta(minutes=5),
            budget=Budget(turns=8),
            on_stop=OnStop.COMPENSATE,
        )
        infos: list[RunInfo] = client.wait([run.run_id], timeout=timedelta(minutes=1))
        assert infos[0].ended
        return run.run_id


def enqueue_many(client: Client, orders: list[dict[str, str]]) -> list[Conflict]:
    outcomes = client.enqueue_many(
        RunRequest(
            planner="fulfil",
            input=order,
            run_key=order["id"],
            tenant="shop",
            principal="svc:checkout",
            deadline=timedelta(minutes=5),
        )
        for order in orders
    )
    return [outcome for outcome in outcomes if isinstance(outcome, Conflict)]


def stop(client: Client, run: UUID) -> str:
    info = client.cancel(run, by="pat", reason="the customer called")
    return f"{info.status} ({info.stop_reason})"


def settle(client: Client, call: UUID) -> str:
    return client.repair(call, "SUCCEEDED", by="pat", reason="seen in their books", receipt="d-1")
