"""The SDKs and frameworks of models, imported when a test first uses them: that takes five seconds, which
every process that only collects tests need not spend.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "AgentInfo",
    "AnthropicModel",
    "AnthropicProvider",
    "FunctionModel",
    "FunctionToolset",
    "NativeTool",
    "OpenAIChatModel",
    "OpenAIProvider",
    "OpenAIResponsesModel",
    "Toolset",
    "WebSearch",
    "WebSearchTool",
    "agents",
    "anthropic",
    "openai",
    "pydantic_ai",
]

if TYPE_CHECKING:
    import agents
    import anthropic
    import openai
    import pydantic_ai
    from pydantic_ai import WebSearchTool
    from pydantic_ai.capabilities import NativeTool, Toolset, WebSearch
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.toolsets import FunctionToolset
else:

    class _Later:
        """A module, or one of its classes, that is imported when something is asked of it."""

        def __init__(self, module: str, name: str = "") -> None:
            self._module, self._name = module, name

        def _found(self) -> Any:
            module = import_module(self._module)
            return getattr(module, self._name) if self._name else module

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # pytest asks what a test's module holds whether it is a fixture
                raise AttributeError(name)
            return getattr(self._found(), name)

        def __call__(self, *given: Any, **named: Any) -> Any:
            return self._found()(*given, **named)

    agents, anthropic, openai, pydantic_ai = map(_Later, ("agents", "anthropic", "openai", "pydantic_ai"))
    WebSearchTool = _Later("pydantic_ai", "WebSearchTool")
    NativeTool, Toolset, WebSearch = (
        _Later("pydantic_ai.capabilities", name) for name in ("NativeTool", "Toolset", "WebSearch")
    )
    AnthropicModel = _Later("pydantic_ai.models.anthropic", "AnthropicModel")
    AgentInfo, FunctionModel = (
        _Later("pydantic_ai.models.function", name) for name in ("AgentInfo", "FunctionModel")
    )
    OpenAIChatModel, OpenAIResponsesModel = (
        _Later("pydantic_ai.models.openai", name) for name in ("OpenAIChatModel", "OpenAIResponsesModel")
    )
    AnthropicProvider = _Later("pydantic_ai.providers.anthropic", "AnthropicProvider")
    OpenAIProvider = _Later("pydantic_ai.providers.openai", "OpenAIProvider")
    FunctionToolset = _Later("pydantic_ai.toolsets", "FunctionToolset")
