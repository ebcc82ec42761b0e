"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ferrule.core.content import Block, Media
from ferrule.core.errors import DefinitionError
from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers._read import (
    FORMATS,
    Names,
    Stop,
    arguments,
    as_json_text,
    base64_text,
    block_text,
    call_of,
    check_strict,
    chosen_name,
    error_text,
    in_order,
    left_open,
    not_run,
    object_value,
    plain_list,
    read,
    read_list,
    read_text,
    strict_wanted,
    web_address,
    with_ids,
)

if TYPE_CHECKING:
    from ferrule.core.tool import Tool

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "pause_turn": "pause",
    "max_tokens": "cut",
    "model_context_window_exceeded": "cut",
    "refusal": "refused",
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}

# https://docs.claude.com/en/docs/build-with-claude/structured-outputs; the SDK's lib/_parse/_transform.py
_NOT_STRICT = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "maxItems"),
)
_FORMATS = FORMATS | {"uri"}


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"name", "description", "input_schema"}]`, deferred tools behind the others.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Marks the last tool that is not deferred, so that the definitions up to it are cached.
        deferred: Names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: where a tool's schema does not fit strict mode, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    wanted = strict_wanted(first + later, strict)
    definitions = [_definition(tool, wanted(tool)) for tool in first]
    if cache and definitions:
        definitions[-1]["cache_control"] = {"type": "ephemeral"}
    return definitions + [_definition(tool, wanted(tool)) | {"defer_loading": True} for tool in later]


def _definition(tool: Tool, strict: bool) -> dict[str, Any]:
    definition: dict[str, Any] = {"name": tool.wire_name}
    if tool.description:
        definition["description"] = tool.description
    definition["input_schema"] = tool.input_schema
    if strict:
        check_strict(
            tool,
            "Anthropic",
            all_required=False,
            nowhere=_NOT_STRICT,
            formats=_FORMATS,
            most_min_items=1,
            recursion=False,
        )
        definition["strict"] = True
    return definition


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": {...}}`.

    Raises:
        DefinitionError: for `only`, which this API cannot say.
    """
    if only is not None:
        raise DefinitionError("Anthropic has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    kind = _CHOICES.get(choice)
    said: dict[str, Any] = {"type": kind} if kind else {"type": "tool", "name": chosen_name(choice)}
    if not parallel and kind != "none":
        said["disable_parallel_tool_use"] = True
    return {"tool_choice": said}


def calls(response: Any) -> list[ToolCall]:
    """The calls in a message, in order. `data` holds a caller and a toolset's name where they came."""
    problem = _problem(response)
    return [
        ToolCall(
            block["id"],
            read_text(block, "name"),
            arguments(block.get("input")),
            problem=problem,
            data={key: block[key] for key in ("caller", "toolset_name") if block.get(key)} or None,
        )
        for block in _blocks(response)
        if block.get("type") == "tool_use"
    ]


def _problem(response: Any) -> str | None:
    reason = read_text(response, "stop_reason")
    if reason == "pause_turn":
        return not_run("the turn was paused ('pause_turn')")
    if reason == "refusal":
        return not_run("the turn ended in a refusal ('refusal')")
    if _STOPS.get(reason) == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if left_open(response, "stop_reason"):
        return not_run("the turn has no end yet (its stop_reason is null)")
    if reason and reason not in _STOPS:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return None


def _blocks(response: Any) -> list[dict[str, Any]]:
    content = read(response, "content", [])
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else plain_list(content)
    with_ids(response, [block for block in blocks if block.get("type") == "tool_use"], "id")
    return blocks


def turn(response: Any) -> list[dict[str, Any]]:
    """`[{"role": "assistant", "content": [...]}]`, thinking blocks and all.

    Empty text blocks stay behind: this API sends them and does not take them
    (github.com/anthropics/anthropic-sdk-python/issues/461).
    """
    kept = [block for block in _blocks(response) if block.get("type") != "text" or block.get("text")]
    for block in kept:
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            block["input"] = object_value(block.get("input"))
    return [{"role": "assistant", "content": kept}] if kept else []


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    reason = read_text(response, "stop_reason")
    found = _STOPS.get(reason, "other")
    if found not in {"end", "calls"} and (reason or left_open(response, "stop_reason")):
        return found
    if any(read(block, "type") == "tool_use" for block in read_list(response, "content")):
        return "calls"
    return "malformed" if found == "calls" else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """`[{"role": "user", "content": [tool_result, ...]}]`: one message for all, as this API wants it."""
    blocks = [_result(result) for result in results]
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id}
    if result.status == "ok":
        block["content"] = [_content(item) for item in result.content] or [{"type": "text", "text": '""'}]
    else:
        block["content"] = [{"type": "text", "text": error_text(result)}]
        block["is_error"] = True
    if isinstance(call.data, dict) and call.data.get("toolset_name"):
        block["toolset_name"] = call.data["toolset_name"]
    return block


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        source = _source(block)
        if source and block.mime_type in _IMAGES:
            return {"type": "image", "source": source}
        if source and block.mime_type == "application/pdf":
            return {"type": "document", "source": source} | ({"title": block.name} if block.name else {})
    return {"type": "text", "text": as_json_text(block_text(block))}


def _source(block: Media) -> dict[str, Any] | None:
    if block.data:
        return {"type": "base64", "media_type": block.mime_type, "data": base64_text(block)}
    address = web_address(block)
    return {"type": "url", "url": address} if address else None
