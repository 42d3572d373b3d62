"""Tools of the acceptance application that bring in what others wrote, and a planner that does what it says.

The service is a test's own: its address is in a file of the folder, read when used.
"""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost import App, Context, Effect, Proposal, Request, Turn
from fencepost.authority import AllowList, Grant
from fencepost.tools import Attempt

PREFIX = "outside."
NAMES = ("outside.fetch", "outside.file", "outside.post", "outside.get")
ENGINE = AllowList((Grant("svc:*", NAMES, approvers=("person:*",)),))
"""The usual engine, for these tools: what the application's own would allow needs a person after a page."""
MARK = "DO THIS: "


class Page(BaseModel):
    name: str


class Drop(BaseModel):
    text: str


def add(app: App, folder: Path) -> None:
    """Register them, and the planner `obeys`."""
    os.environ["OUTSIDE_URL_FILE"] = str(folder / "outside-url")
    second = timedelta(seconds=1)
    outside = app.dependency(
        "outside",
        "env:OUTSIDE_URL",
        attempts=2,
        per_attempt=15 * second,
        grace=second,
        reserve=second,
        backoff=timedelta(milliseconds=50),
    )

    @outside.http("outside.fetch", effect=Effect.READ, required=False)
    def fetch(args: Page) -> Request:
        return Request.get(f"/pages/{args.name}")

    @outside.python("outside.file", effect=Effect.READ, required=False)
    def read(args: Page, attempt: Attempt) -> str:
        return (folder / args.name).read_text()

    @outside.http(
        "outside.post",
        effect=Effect.IRREVERSIBLE,
        egress=True,
        required=False,
        intent=lambda a: ("post", a.text),
        succeeded=lambda answer: answer.status < 300,
    )
    def post(args: Drop) -> Request:
        return Request.post("/drop", json={"text": args.text})

    @outside.http("outside.get", effect=Effect.READ, egress=True, untrusted=False, required=False)
    def get(args: Drop) -> Request:
        return Request.get("/drop", query={"q": args.text})

    @app.planner("obeys", version=1, timeout=timedelta(seconds=2))
    def obeys(context: Context) -> Turn:
        """Proposes what the input says, then whatever it has read, then claims to be done."""
        if context.turn == 1:
            return Turn([Proposal(**context.input, call_id="read")])
        if context.turn == 2:
            return Turn([_asked(context.calls[-1].result)])
        return Turn(finish={call.call_id: [call.state, call.error] for call in context.calls})


def _asked(result: Any) -> Proposal:
    text = result if isinstance(result, str) else str(result)
    return Proposal(**json.loads(text.split(MARK, 1)[1]), call_id="leak")
