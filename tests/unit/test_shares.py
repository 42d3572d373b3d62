"""How many of a process's slots the items of each dependency may take."""

import pytest
from pydantic import BaseModel

from fencepost import App, Context, Effect, Request, Turn
from fencepost.models import Wire
from fencepost.states import Queue
from fencepost_workers.worker import shares_of

SLOTS = 100


def app_of(*providers: str, slots: int | None = None, function: bool = False) -> App:
    app = App("shop")
    for name in providers:
        via = app.dependency(name, "http://127.0.0.1:9", slots=slots)
        model = app.model(f"m-{name}", via=via, wire=Wire.CHAT, model="m")
        app.agent(f"a-{name}", model=model, instructions="help")
    if function:

        @app.planner("plain")
        def plain(context: Context) -> Turn:
            return Turn(finish=context.turn)

    return app


def test_the_only_provider_of_an_application_of_agents_has_all_slots() -> None:
    assert shares_of(app_of("one"), Queue.PLANNER, SLOTS) == {"one/default": 100}


def test_a_planner_that_is_no_model_keeps_room_beside_the_only_provider() -> None:
    assert shares_of(app_of("one", function=True), Queue.PLANNER, SLOTS) == {"one/default": 50}


def test_one_slow_provider_leaves_half_to_the_others() -> None:
    found = shares_of(app_of("one", "two", "three"), Queue.PLANNER, SLOTS)
    assert found == {"one/default": 50, "two/default": 50, "three/default": 50}


def test_a_provider_has_the_slots_that_it_says() -> None:
    assert shares_of(app_of("one", slots=7), Queue.PLANNER, SLOTS) == {"one/default": 7}
    assert shares_of(app_of("one", slots=7000), Queue.PLANNER, SLOTS) == {"one/default": 100}


class Note(BaseModel):
    key: str


@pytest.mark.parametrize(("role", "share"), [(Queue.DISPATCHER, 100), (Queue.PLANNER, 50)])
def test_what_is_a_tools_home_and_a_models_provider_has_the_share_of_what_the_role_does(
    role: Queue, share: int
) -> None:
    app = App("shop")
    both = app.dependency("both", "http://127.0.0.1:9")
    model = app.model("m", via=both, wire=Wire.CHAT, model="m")
    app.agent("a", model=model, instructions="help")
    app.scripted("plain", 1, [])

    @both.http("both.note", effect=Effect.READ)
    def note(args: Note) -> Request:
        return Request.get(f"/notes/{args.key}")

    assert shares_of(app, role, SLOTS) == {"both/default": share}
