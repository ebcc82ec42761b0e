"""Google's Gemini API, by generateContent or by Interactions.

`tools` and `tool_choice` are told which; the other functions see it. Dicts have the names of the JSON (`functionCall`),
which the SDK takes as well; what goes in may have the SDK's own (`function_call`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.providers import _gemini_generate as generate
from ferrule.providers import _gemini_interactions as interactions
from ferrule.providers._read import Names, Stop, allowed_names, call_of, chosen_name, in_order, read, view
from ferrule.providers._stream import TurnStream
from ferrule.providers._strict import refuse_strict
from ferrule.providers._write import definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Api: TypeAlias = Literal["generate", "interactions"]

_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_LONGEST_NAME = 64
_INSTEAD = "; tool_choice('required'), or 'auto' with only=[...], holds the model to the schemas"


def tools(
    toolset: Iterable[Tool],
    *,
    strict: Names = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Api = "generate",
) -> list[dict[str, Any]]:
    """`[{"functionDeclarations": [{"name", "description", "parametersJsonSchema"}]}]`; for Interactions
    `[{"type": "function", "name", "description", "parameters"}]`. Deferred tools stand behind the others.

    Args:
        strict: Nothing that this API has for single tools.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that came later. Interactions finds them by a tool search; generateContent cannot
            defer: they are placed last, in this order.
        api: Which of the two.

    Raises:
        DefinitionError: where a tool is to be strict, a parameter has a name that this API does not take, or a name
            is no tool's.
    """
    first, later = in_order(toolset, deferred)
    refuse_strict(first + later, strict, "Gemini", _INSTEAD)
    if _which(api) == "interactions":
        written = definitions(first + later, False, _function)
        for definition in written[len(first) :]:
            definition["defer_loading"] = True
        return written
    declarations = definitions(first + later, False, _declaration)
    return [{"functionDeclarations": declarations}] if declarations else []


def _which(api: str) -> str:
    if api not in {"generate", "interactions"}:
        raise DefinitionError(f"api is 'generate' or 'interactions', not {api!r}")
    return api


def _declaration(tool: Tool, strict: bool) -> dict[str, Any]:
    schema = _schema(tool)
    if not tool.description:
        return {"name": tool.wire_name, "parametersJsonSchema": schema}
    return {"name": tool.wire_name, "description": tool.description, "parametersJsonSchema": schema}


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "name": tool.wire_name, **described, "parameters": _schema(tool)}


def _schema(tool: Tool) -> Mapping[str, Any]:
    """The tool's schema, whose parameters have names that this API takes, `[A-Za-z_][A-Za-z0-9_]{0,63}`."""
    for name in tool.input_schema.get("properties", ()):
        if not (name.isidentifier() and name.isascii() and len(name) <= _LONGEST_NAME):
            raise DefinitionError(
                f"tool {tool.name!r} has a parameter {name!r}, at $.properties, whose name Gemini does not take: it "
                f"wants a letter or an underscore, then letters, digits and underscores, 64 at most. Rename it"
            )
    return tool.input_schema


def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Api = "generate"
) -> dict[str, Any]:
    """`{"toolConfig": {"functionCallingConfig": {"mode", "allowedFunctionNames"}}}`, for the SDK in its `config`; for
    Interactions `{"generation_config": {"tool_choice": ...}}`.

    Raises:
        DefinitionError: for `parallel=False`, which this API cannot say, and for `only` beside `"none"` or a name.
    """
    if not parallel:
        raise DefinitionError("Gemini has no switch for parallel calls: leave parallel=False out")
    names = None
    if only is not None:
        names = allowed_names(choice, only, "Gemini")
    elif choice not in _MODES:
        choice, names = "required", [chosen_name(choice)]
    if _which(api) == "interactions":
        mode = _MODES[choice].lower()
        return {
            "generation_config": {
                "tool_choice": mode if names is None else {"allowed_tools": {"mode": mode, "tools": names}}
            }
        }
    if names is None:
        return {"toolConfig": {"functionCallingConfig": {"mode": _MODES[choice]}}}
    # Names may stand beside ANY and VALIDATED alone; VALIDATED is AUTO, held to the schemas.
    mode = "VALIDATED" if choice == "auto" else "ANY"
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}}


def _is_interaction(response: Any) -> bool:
    return "steps" in view(response)


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first candidate, or in an interaction, in order. `data` says of the latter that they are."""
    seen = response if type(response) is dict else view(response)
    return interactions.calls(seen) if "steps" in seen else generate.calls(seen)


def turn(response: Any) -> list[dict[str, Any]]:
    """`[{"role": "model", "parts": [...]}]`, each thought signature on its own part; of an interaction the steps that
    the model made."""
    return interactions.turn(response) if _is_interaction(response) else generate.turn(response)


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    return interactions.stop(response) if _is_interaction(response) else generate.stop(response)


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """`[{"role": "user", "parts": [{"functionResponse": ...}, ...]}]`: one content for all, as this API wants it; for
    the calls of an interaction one `function_result` step for each."""
    parts: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for result in results:
        data = call_of(result).data
        if isinstance(data, dict) and data.get("type") == "function_call":
            steps.append(interactions.answer(result))
        else:
            parts.append({"functionResponse": generate.answer(result)})
    return ([{"role": "user", "parts": parts}] if parts else []) + steps


class Stream(TurnStream, reading=(calls, turn, stop)):
    """The same from a stream: feed it each chunk of generateContent, or each event of an interaction. Until one has a
    `finishReason`, or is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        super().__init__()
        self._of: Any = None
        """The stream of the API whose events these are, from the first one on."""

    def _goes_on(self, event: Any) -> bool:
        return self._of._goes_on(event)  # type: ignore[no-any-return]

    def _take(self, event: Any) -> None:
        if self._of is None:
            interaction = read(read(event, "data", event), "event_type") is not None
            self._of = interactions.Stream() if interaction else generate.Stream()
        self._of._take(event)
        self._error = self._error or self._of.error

    def _so_far(self) -> dict[str, Any]:
        return {} if self._of is None else self._of._so_far()

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        return {} if self._of is None else self._of.partial()

    @property
    def reason(self) -> str | None:
        """Why the prompt was blocked, or what the API says of an end before the end."""
        return None if self._of is None else self._of.reason
