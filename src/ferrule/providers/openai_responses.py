"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from ferrule.core.content import Block, Media
from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers._read import (
    FORMATS,
    Names,
    Stop,
    allowed_names,
    arguments,
    base64_text,
    block_text,
    call_of,
    check_strict,
    chosen_name,
    in_order,
    left_open,
    marked_error_text,
    not_run,
    object_text,
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

_CALLS = ("function_call", "custom_tool_call")
_CUT = {"max_output_tokens", "max_messages"}
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
# https://platform.openai.com/docs/guides/structured-outputs
_NOT_STRICT = ("oneOf", "allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"type": "function", "name", "description", "parameters", "strict"}]`, deferred tools behind the others.

    `strict` is always said: without it the API tries strict mode, which changes what the model sends.

    Args:
        strict: Whether the API holds the model to the schema: for all, or for the tools of these names.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that the model finds by a tool search.

    Raises:
        DefinitionError: where a tool's schema does not fit strict mode, or a name is no tool's.
    """
    first, later = in_order(toolset, deferred)
    wanted = strict_wanted(first + later, strict)
    definitions = [_definition(tool, wanted(tool)) for tool in first]
    return definitions + [_definition(tool, wanted(tool)) | {"defer_loading": True} for tool in later]


def _definition(tool: Tool, strict: bool) -> dict[str, Any]:
    definition: dict[str, Any] = {"type": "function", "name": tool.wire_name}
    if tool.description:
        definition["description"] = tool.description
    if strict:
        check_strict(tool, "OpenAI", all_required=True, nowhere=_NOT_STRICT, not_at_root=("anyOf",), formats=FORMATS)
    return definition | {"parameters": tool.input_schema, "strict": strict}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
    """`{"tool_choice": ...}`, and `"parallel_tool_calls": False` where one call at a time is wanted.

    Raises:
        DefinitionError: for `only` beside `"none"` or a name.
    """
    said: Any = choice
    if only is not None:
        names = allowed_names(choice, only, "OpenAI")
        said = {"type": "allowed_tools", "mode": choice, "tools": [{"type": "function", "name": n} for n in names]}
    elif choice not in {"auto", "required", "none"}:
        said = {"type": "function", "name": chosen_name(choice)}
    return {"tool_choice": said} if parallel else {"tool_choice": said, "parallel_tool_calls": False}


def calls(response: Any) -> list[ToolCall]:
    """The calls in a response, in order. `data` holds the item's kind, its namespace and its caller where the answer
    needs them."""
    problem = _problem(response)
    return [_call(item, problem) for item in _items(response) if item.get("type") in _CALLS]


def _call(item: dict[str, Any], problem: str | None) -> ToolCall:
    custom = item["type"] == "custom_tool_call"
    if problem is None and item.get("status") in ("incomplete", "in_progress"):
        problem = not_run(f"the call was cut off (its status is {item['status']!r})")
    data = {key: item[key] for key in ("namespace", "caller") if item.get(key)}
    if custom:
        data["type"] = "custom_tool_call"
    given = {"input": read_text(item, "input")} if custom else arguments(item.get("arguments"))
    return ToolCall(item["call_id"], read_text(item, "name"), given, problem=problem, data=data or None)


def _problem(response: Any) -> str | None:
    status = read_text(response, "status")
    if status == "completed" or (not status and not left_open(response, "status")):
        return None
    reason = read_text(read(response, "incomplete_details"), "reason") or status or "no status yet"
    return not_run(f"the turn was not completed ({reason!r})")


def _items(response: Any) -> list[dict[str, Any]]:
    items = plain_list(read_list(response, "output"))
    with_ids(response, [item for item in items if item.get("type") in _CALLS], "call_id")
    return items


def turn(response: Any) -> list[dict[str, Any]]:
    """The output's items, reasoning with its encrypted content and all; only what the SDK's `parse` adds is left
    out, which the API does not take."""
    items = _items(response)
    for item in items:
        if item.get("type") == "function_call":
            item["arguments"] = object_text(item.get("arguments"))
            item.pop("parsed_arguments", None)
        for part in read_list(item, "content") if item.get("type") == "message" else ():
            if isinstance(part, dict):
                part.pop("parsed", None)
    return items


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    status = read_text(response, "status")
    if status == "incomplete":
        reason = read_text(read(response, "incomplete_details"), "reason")
        return "cut" if reason in _CUT else "refused" if reason == "content_filter" else "other"
    if status not in {"completed", ""} or left_open(response, "status"):
        return "other"
    items = read_list(response, "output")
    if any(read(item, "type") in _CALLS for item in items):
        return "calls"
    parts = [part for item in items if read(item, "type") == "message" for part in read_list(item, "content")]
    return "refused" if any(read(part, "type") == "refusal" for part in parts) else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `function_call_output` or `custom_tool_call_output` item for each result."""
    return [_result(result) for result in results]


def _result(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    data = call.data if isinstance(call.data, dict) else {}
    custom = data.get("type") == "custom_tool_call"
    item: dict[str, Any] = {"type": "custom_tool_call_output" if custom else "function_call_output"}
    item["call_id"] = call.id
    item["output"] = _output(result)
    if data.get("caller"):
        item["caller"] = data["caller"]
    if data.get("namespace") and not custom:
        item |= {"name": call.name, "namespace": data["namespace"]}
    return item


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    if result.status != "ok":
        return marked_error_text(result)
    parts = [_content(block) for block in result.content]
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [part for part in parts if part != {"type": "input_text", "text": ""}]


def _content(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        address = f"data:{block.mime_type};base64,{base64_text(block)}" if block.data else web_address(block)
        if address and block.mime_type in _IMAGES:
            return {"type": "input_image", "image_url": address}
        if address and block.mime_type == "application/pdf":
            if block.data:
                return {"type": "input_file", "filename": block.name or "file.pdf", "file_data": address}
            return {"type": "input_file", "file_url": address}
    return {"type": "input_text", "text": block_text(block)}
