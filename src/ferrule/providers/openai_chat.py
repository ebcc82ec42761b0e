"""OpenAI's Chat Completions API, and whatever is compatible with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers._read import (
    FORMATS,
    Names,
    Stop,
    allowed_names,
    arguments,
    block_text,
    call_of,
    check_strict,
    chosen_name,
    in_order,
    left_open,
    marked_error_text,
    not_run,
    object_text,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    strict_wanted,
    with_ids,
)

if TYPE_CHECKING:
    from ferrule.core.tool import Tool

_STOPS: dict[str, Stop] = {"stop": "end", "tool_calls": "calls", "length": "cut", "content_filter": "refused"}
# https://platform.openai.com/docs/guides/structured-outputs
_NOT_STRICT = ("oneOf", "allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays cached.

    Raises:
        DefinitionError: where a tool's schema does not fit strict mode, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    wanted = strict_wanted(first + later, strict)
    return [{"type": "function", "function": _function(tool, wanted(tool))} for tool in first + later]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.wire_name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if strict:
        check_strict(tool, "OpenAI", all_required=True, nowhere=_NOT_STRICT, not_at_root=("anyOf",), formats=FORMATS)
        function["strict"] = True
    return function


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    said: Any = choice
    if only is not None:
        listed = [_named(name) for name in allowed_names(choice, only, "OpenAI")]
        said = {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": listed}}
    elif choice not in {"auto", "required", "none"}:
        said = _named(chosen_name(choice))
    return {"tool_choice": said} if parallel else {"tool_choice": said, "parallel_tool_calls": False}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first choice, in order. `data` is `{"type": "custom"}` for a call of a custom tool."""
    problem = _problem(_choice(response))
    return [_call(item, problem) for item in _message(response).get("tool_calls", ())]


def _call(item: dict[str, Any], problem: str | None) -> ToolCall:
    custom = item.get("custom")
    if isinstance(custom, dict):
        text = {"input": read_text(custom, "input")}
        return ToolCall(item["id"], read_text(custom, "name"), text, problem=problem, data={"type": "custom"})
    function = item.get("function")
    return ToolCall(item["id"], read_text(function, "name"), arguments(read(function, "arguments")), problem=problem)


def _problem(choice: Any) -> str | None:
    reason = read_text(choice, "finish_reason")
    if reason in {"length", "content_filter"}:
        return not_run(f"the turn was cut off ({reason!r})")
    if left_open(choice, "finish_reason"):
        return not_run("the turn has no end yet (its finish_reason is null)")
    if reason and reason not in _STOPS:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return None


def _choice(response: Any) -> Any:
    choices = read_list(response, "choices")
    return choices[0] if choices else {}


def _message(response: Any) -> dict[str, Any]:
    message = plain(read(_choice(response), "message", {}))
    if not isinstance(message, dict):
        return {}
    if "tool_calls" in message:
        message["tool_calls"] = plain_list(message["tool_calls"])
        with_ids(response, message["tool_calls"], "id")
    # Compatible servers send these as null or [], which the API does not take back.
    for key in ("tool_calls", "function_call", "audio"):
        if key in message and not message[key]:
            del message[key]
    return message


def turn(response: Any) -> list[dict[str, Any]]:
    """The first choice's message; only what the SDK's `parse` adds is left out, which the API does not take."""
    message = _message(response)
    message.pop("parsed", None)
    for item in message.get("tool_calls", ()):
        function = item.get("function")
        if isinstance(function, dict):
            function["arguments"] = object_text(function.get("arguments"))
            function.pop("parsed_arguments", None)
    if not any(value for key, value in message.items() if key != "role"):
        return []
    return [{"role": "assistant", **message}]


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    choice = _choice(response)
    reason = read_text(choice, "finish_reason")
    found = _STOPS.get(reason, "other")
    if found not in {"end", "calls"} and (reason or not choice or left_open(choice, "finish_reason")):
        return found
    message = read(choice, "message", {})
    if read(message, "tool_calls"):
        return "calls"
    if found == "calls":
        return "malformed"
    return "refused" if read(message, "refusal") else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_call_id", "content"}` for each result; this API takes text only."""
    return [{"role": "tool", "tool_call_id": call_of(result).id, "content": _content(result)} for result in results]


def _content(result: ToolResult) -> str:
    if result.status != "ok":
        return marked_error_text(result)
    return "\n".join(block_text(block) for block in result.content)
