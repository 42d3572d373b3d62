"""What an MCP server's answer proves, held against what is declared of its tool. PURE.

Three outcomes, as for HTTP (`fencepost.outcomes`). A result without `isError` is the effect if its tool
understands it and it fits the pinned schema of its server. `isError` proves nothing, unless the tool is
declared so: a tool that raised, unknown arguments and an unknown tool look the same. A JSON-RPC error
proves that nothing happened only where the specification means it to come before the tool, and only of a
server declared as conforming; -32000, -32001 and -32603 are also what a client makes up by itself when an
answer is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from fencepost.canonical import marked, sanitize
from fencepost.contracts import Effect
from fencepost.errors import NotApplied
from fencepost.mcp import CHANGED, RPC, ToolResult, changed, contradiction, definition_digest
from fencepost.outcomes import (
    MAX_TEXT_CHARS,
    Answered,
    Applied,
    NotSent,
    Outcome,
    Refused,
    Sent,
    Unsure,
    answers_other,
    classify,
    heard,
    names_nothing,
    not_understood,
    receipt_of,
    refused,
    result_text,
    told,
    without_effect,
)
from fencepost.tools import LookupResult, Response, Tool, Unclear

HEADER_MISMATCH: Final = -32020
BEFORE_THE_TOOL: Final = frozenset({-32601, -32602, HEADER_MISMATCH, -32021, -32022})
"""JSON-RPC errors that the specification (2026-07-28) means to be answered before a tool is begun."""
STRANGE: Final = "strange"


def answer_of(*, result: Mapping[str, Any] | None = None, error: Any = None, strange: str = "") -> Response:
    """A JSON-RPC response as the engine hands it on. `strange`: why it is not what its schema declares."""
    said = {"error": error} if result is None else {"result": result}
    headers = {STRANGE: strange} if strange else {}
    return Response(RPC, headers, json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def offered(
    tool: Tool, name: str, offers: Sequence[Mapping[str, Any]], *, question: bool, repeat: bool
) -> NotSent | None:
    """Why a call is not sent, by what its server says the tool of this `name` is; None where it may be.

    One that is offered twice, even as the same, is no definition: nobody knows which of them is called.
    `question`: it is asked for a lookup, of which the server's `pins` speak: it is another tool.
    """
    server, remote = tool.dependency.mcp, tool.mcp
    known = server.pins.get(name) if server is not None else None
    pinned = remote.definition if remote is not None and not question else known
    of_name = [one for one in offers if one.get("name") == name]
    listed = of_name[0] if of_name else None
    found = None if listed is None else definition_digest(listed)
    if pinned is not None and (found != pinned or len(of_name) > 1):
        return NotSent(CHANGED, changed(name, pinned, found, len(of_name)))
    if len(of_name) > 1:
        several = f"nothing was sent: the server offers {len(of_name)} tools named {name}"
        return NotSent("ambiguous_tool", several, retryable=False)
    if listed is None:
        return NotSent("unknown_tool", f"nothing was sent: the server offers no tool {name}", retryable=False)
    effect = Effect.READ if question else tool.effect
    forbidden = contradiction(effect, tool.contract, listed.get("annotations") or {}, repeat=repeat)
    if forbidden is None:
        return None
    return NotSent("hints_forbid", f"nothing was sent: {forbidden}", retryable=False)


def classify_call(tool: Tool, sent: Sent, *, now: datetime, args: Any = None) -> Outcome:
    """The outcome of a `tools/call`; total. Without a JSON-RPC response HTTP's own rules hold."""
    if isinstance(sent, Answered) and sent.response.status == RPC:
        outcome = _response(tool, sent.response, args)
        return without_effect(outcome) if tool.effect is Effect.READ else outcome
    if isinstance(sent, Answered) and 200 <= sent.response.status < 300:
        return _without_response(tool, sent.response.status)
    if isinstance(sent, NotSent) and sent.code == CHANGED:  # whole, for `held_pin`
        return Refused(CHANGED, sanitize(sent.message, MAX_TEXT_CHARS), retryable=True)
    return classify(tool, sent, now=now, args=args)


def _without_response(tool: Tool, status: int) -> Outcome:
    said = Unsure("unreadable_answer", f"the server answered {status}, without a JSON-RPC response")
    return without_effect(said) if tool.effect is Effect.READ else said


def _response(tool: Tool, response: Response, args: Any) -> Outcome:
    said = _said(response)
    if said is None:
        return Unsure("unreadable_answer", "the answer cannot be read")
    if "result" not in said:
        return _error(tool, said["error"])
    result = said["result"]
    kind = result.get("resultType", "complete")
    if kind != "complete":
        what = f"the server answered {sanitize(kind, 40)!r} and waits for more, which nobody gives"
        code = "input_required" if kind == "input_required" else "incomplete"
        return Unsure(code, what, repair=not tool.has_lookup)
    answer = ToolResult.of(result)
    if answer.is_error:
        text = sanitize(answer.text, MAX_TEXT_CHARS)
        if tool.mcp is not None and tool.mcp.errors_apply_nothing:
            return Refused("tool_error", text, retryable=False)
        return Unsure("tool_error", text)
    return _applied(tool, answer, args, response.headers.get(STRANGE, ""))


def _said(response: Response) -> dict[str, Any] | None:
    """A response as `answer_of` made it; None where hiding a credential in it has left no JSON."""
    try:
        said = json.loads(response.body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and said.keys() & {"result", "error"} else None


def _error(tool: Tool, error: Mapping[str, Any]) -> Outcome:
    number = error.get("code")
    code, text = f"rpc_{sanitize(number, 20)}", sanitize(error.get("message", ""), MAX_TEXT_CHARS)
    server = tool.dependency.mcp
    if number in BEFORE_THE_TOOL and server is not None and server.conforming:
        # Each attempt lists the tools anew, so what its headers were made from may be right the next time.
        return Refused(code, text, retryable=number == HEADER_MISMATCH)
    return Unsure(code, text)


def _applied(tool: Tool, answer: ToolResult, args: Any, strange: str) -> Outcome:
    if strange and tool.effect is not Effect.READ:
        return Unsure("unreadable_answer", f"it is not what its server's schema declares: {strange}")
    try:
        if (why := not_understood(tool, answer)) is not None:
            return why
        result = read_answer(tool, answer)
    except NotApplied as refusal:
        return refused(refusal)
    except Exception as error:  # noqa: BLE001 - an answer nobody can read is an unknown outcome, whatever broke
        return Unsure("unreadable_answer", told(error))
    if (other := answers_other(tool, args, result) or names_nothing(tool, result)) is not None:
        return other
    return Applied(result_text(result, most=tool.output.max_bytes), receipt_of(tool, result), bool(strange))


def read_answer(tool: Tool, answer: ToolResult) -> Any:
    """What an answer says, by the tool's parse or its result model. Raises what they raise, and NotApplied
    also where parse returns it.
    """
    result = answer.value if tool.parse is None else tool.parse(answer)
    if isinstance(result, NotApplied):
        raise result
    if tool.returns is None or isinstance(result, tool.returns):
        return result
    return tool.returns.model_validate_json(marked(json.dumps(result)))


def classify_question(tool: Tool, args: Any, sent: Sent) -> LookupResult:
    """What a lookup's answer says about the effect it asked for; total. Only a complete result can say
    anything, and what it says is the tool's `lookup_parse`.
    """
    if not isinstance(sent, Answered):
        return Unclear(sanitize(f"{sent.code}: {sent.message}", MAX_TEXT_CHARS))
    if sent.response.status != RPC:
        return Unclear(f"http_{sent.response.status}")
    said = _said(sent.response)
    if said is None:
        return Unclear("the answer cannot be read")
    if "result" not in said:
        error = said["error"]
        return Unclear(f"rpc_{sanitize(error.get('code'), 20)}: {sanitize(error.get('message', ''), 400)}")
    if said["result"].get("resultType", "complete") != "complete":
        return Unclear("the server waits for more input")
    if sent.response.headers.get(STRANGE):
        return Unclear(f"the answer is not what its schema declares: {sent.response.headers[STRANGE]}")
    answer = ToolResult.of(said["result"])
    if answer.is_error:
        return Unclear(f"tool_error: {sanitize(answer.text, 400)}")
    if tool.lookup_parse is None:
        return Unclear("there is no lookup_parse to read the answer with")
    try:
        return heard(tool, args, tool.lookup_parse(answer, args))
    except Exception as error:  # noqa: BLE001 - an answer nobody can read says nothing
        return Unclear(told(error))
