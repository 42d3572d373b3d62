"""What models think is sealed in its place: it goes back there, over the official SDKs, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from tests.integration.model_desk import KEY, NOTE, WIRES, modelled, seated
from tests.sdks import anthropic, openai

THINKING = {
    "text": "I note it.",
    "calls": [{**NOTE, "id": "one"}, {**NOTE, "id": "two", "arguments": {"key": "l"}}],
    "thoughts": ["Hm.", "#nobody reads this", "And once more."],
}
AGAIN = {"calls": [NOTE], "thoughts": ["One more."]}
THINKERS = list(WIRES)


@pytest.fixture(scope="module")
def thinking(provider: SandboxProcess) -> SandboxProcess:
    turns = [THINKING, AGAIN, {"text": "Noted.", "thoughts": ["Done."]}]
    provider.post(
        "/models/script", {"models": {name: {"turns": turns, "nine": name == "chat"} for name in THINKERS}}
    )
    return provider


def test_a_run_goes_on_with_what_its_model_thought_between_its_words_and_calls(
    database: LedgerDatabase, valkey: LocalValkey, thinking: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    with seated(database, valkey, thinking, modelled(thinking)) as desk:
        runs = [desk.enqueue(name, name) for name in THINKERS]
        desk.go()
        for run in runs:
            lost = desk.events(run, "ModelOutcomeUnknown")
            assert (desk.run(run, "status", "turn"), lost) == (("COMPLETED", 3), [])
        assert [one["outcome"] for one in desk.asked()] == ["answered"] * 9


CHAT_ANSWER: dict[str, Any] = {"reasoning_content": None, "reasoning_details": None, "tool_calls": None}


@pytest.mark.parametrize("left_out", [None, *CHAT_ANSWER])
def test_a_model_of_chat_goes_on_only_if_it_is_told_all_that_it_thought(
    thinking: SandboxProcess, left_out: str | None
) -> None:
    with openai.OpenAI(api_key=KEY, base_url=f"{thinking.url}/v1", max_retries=0) as client:
        asked: Any = {"role": "user", "content": "Note."}
        first = client.chat.completions.create(model="chat", messages=[asked])
        said: Any = first.choices[0].message.model_dump(exclude_none=True)
        for number, call in enumerate(said["tool_calls"]):
            call["id"] = f"call0000{number}"
            if left_out == "tool_calls":
                call.pop("extra_content", None)
        if left_out in ("reasoning_content", "reasoning_details"):
            del said[left_out]
        results: Any = [
            {"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in said["tool_calls"]
        ]
        if left_out is None:
            assert client.chat.completions.create(model="chat", messages=[asked, said, *results]).id
            said["tool_calls"][0]["id"] = results[0]["tool_call_id"] = "call_0000"
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="chat", messages=[asked, said, *results])


def by_messages(url: str, order: list[int]) -> Any:
    with anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        how: dict[str, Any] = {"model": "messages", "max_tokens": 99}
        asked: Any = {"role": "user", "content": "Note."}
        said = [block.model_dump() for block in client.messages.create(messages=[asked], **how).content]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
            for block in said
            if block["type"] == "tool_use"
        ]
        told: Any = [asked, {"role": "assistant", "content": [said[n] for n in order]}]
        told.append({"role": "user", "content": results})
        return client.messages.create(messages=told, **how)


def by_responses(url: str, order: list[int]) -> Any:
    with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        first = client.responses.create(model="responses", input="Note.")
        said = [item.model_dump(exclude_none=True) for item in first.output]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
            for item in said
            if item["type"] == "function_call"
        ]
        told: Any = [{"role": "user", "content": "Note."}, *[said[n] for n in order], *results]
        return client.responses.create(model="responses", input=told)


@pytest.mark.parametrize("ask", [by_messages, by_responses])
def test_what_was_thought_elsewhere_is_refused(thinking: SandboxProcess, ask: Any) -> None:
    assert ask(thinking.url, [0, 1, 2, 3, 4, 5]).id.startswith("answer_")  # thought, text, thought, call, ...
    assert ask(thinking.url, [1, 3, 5]).id  # what is not told at all is missed by nobody
    refused = (anthropic.BadRequestError, openai.BadRequestError)
    for order in ([0, 2, 4, 1, 3, 5], [1, 0, 2, 3, 4, 5], [0, 1, 3, 2, 4, 5], [0, 1, 2, 3, 5, 4]):
        with pytest.raises(refused, match=r"invalid signature|has to follow"):
            ask(thinking.url, order)
