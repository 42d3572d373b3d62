"""Every name that a convention gave us, and whose: one place to change when a convention does.

GenAI names are those of `open-telemetry/semantic-conventions-genai` as of `GENAI`, all of them still in
development there: their dashboards may have to follow. Our own (`fencepost.*`) stay.
"""

from typing import Final

GENAI: Final = "0.1.0"
SCOPE: Final = "fencepost"
"""The instrumentation scope of all our spans."""

# -- names of spans: an operation and what it is of --
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"
LOOKUP: Final = "fencepost.lookup"
COMPENSATE: Final = "fencepost.compensate"

# -- attributes: GenAI --
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_VERSION: Final = "gen_ai.agent.version"

# -- attributes: ours, named as the fields of a log line --
OURS: Final = "fencepost."
OUTCOME: Final = "fencepost.outcome"

# -- W3C Trace Context --
TRACEPARENT: Final = "traceparent"
"""The header of a request, and the key in `_meta` of an MCP call."""
