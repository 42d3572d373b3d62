"""The application of protocols about what models use: `fencepost_ops.drill.thrift:app`.

It has the drill's own tools. For the ledger its planner `model` is one: each request holds 300 tokens and
400 millionths at most, and is charged what the answer says, 250 and 310. No model is asked: it proposes an
effect after the other, as many as the run's input says under `calls`, and then finishes.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

from fencepost import App, Context, Proposal
from fencepost.models import AgentSpec, ModelSpec, Price, Spent, Wire
from fencepost_ops.drill import app as usual
from fencepost_ops.drill.app import Order
from fencepost_ops.drill.services import SUFFIX
from fencepost_workers.models import ModelTurn

SPENT: Final = Spent(250, 310)
_PRICE: Final = Price(date(2000, 1, 1), input=1_000_000, output=2_000_000)


class _Modelled(App):
    """An application of which the ledger takes one planner for a model, and no worker does."""

    def agent_of(self, name: str, version: int) -> AgentSpec | None:
        """See `App`."""
        return AGENT if name == "model" else super().agent_of(name, version)


app = _Modelled("thrift", authority=usual.app.authority)
app.registry.update(usual.app.registry)
_provider = app.dependency("provider", f"http://provider{SUFFIX}")
AGENT: Final = AgentSpec(
    models=(
        ModelSpec(
            name="drilled",
            wire=Wire.CHAT,
            model="drilled",
            dependency=_provider.spec,
            max_output=100,
            prices=(_PRICE,),
        ),
    ),
    instructions="",
    window=200,
)


@app.planner("model", version=1, timeout=timedelta(seconds=10))
def model(context: Context) -> ModelTurn:
    """One effect more, or the end."""
    done = len(context.calls)
    if done >= context.input["calls"]:
        return ModelTurn(finish={"done": True}, spent=SPENT, said={})
    args = Order(reference=f"{context.run_id}-{done + 1}")
    return ModelTurn([Proposal("dedupes.do", args, call_id=f"call-{done + 1}")], spent=SPENT, said={})
