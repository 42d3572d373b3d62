"""What models are measured with: agents at the sandbox's provider, and a planner beside them that asks none.

`FENCEPOST_APP=fencepost_ops.examples.models_app:app` names this application. MODELS_WIRE is the protocol its
models are asked by, MODELS_CONCURRENCY how many requests at once the whole fleet sends the one of `works`,
MODELS_TIMEOUT_S how long one answer may take.
"""

import os
from datetime import timedelta

from pydantic import BaseModel

from fencepost import App, Context, Effect, Request, Turn
from fencepost.models import Wire

KEY = "MODELS_KEY"
THINKS, WORKS = "thinks", "works"
"""Models: one answers with its end and is asked without a limit, the other calls a tool first."""

app = App("models")
_URL = "env:FENCEPOST_SANDBOX_URL"
_WIRE = Wire(os.environ.get("MODELS_WIRE", Wire.MESSAGES))
_CONCURRENCY = int(os.environ.get("MODELS_CONCURRENCY", "50"))
_TIMEOUT = timedelta(seconds=float(os.environ.get("MODELS_TIMEOUT_S", "60")))
_AT = {THINKS: app.dependency("open", _URL), WORKS: app.dependency("limited", _URL, concurrency=_CONCURRENCY)}
mail = app.dependency("mail", _URL)


class Message(BaseModel):
    """Whom to write to, and for which run."""

    key: str


class Receipt(BaseModel):
    """The service's own reference to the message."""

    id: str


@mail.http("mail.send", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=lambda a: ("mail", a.key))
def send(args: Message) -> Request:
    """One message in the sandbox's mail."""
    return Request.post("/mail/messages", json={"to": "someone", "reference": args.key})


for _name, _provider in _AT.items():
    app.agent(
        _name,
        model=app.model(_name, via=_provider, wire=_WIRE, model=_name, key=f"env:{KEY}", timeout=_TIMEOUT),
        instructions="Answer at once.",
        tools=("mail.send",),
    )


@app.planner("beside", version=1)
def beside(context: Context) -> Turn:
    """One message, and no model."""
    if context.call("it") is None:
        return Turn([send.propose(Message(key=context.input["key"]), call_id="it")])
    return Turn(finish={"done": True})


# What nothing can offset has to be named.
app.allow("svc:*", tools=["mail.send"])
