"""A runner in which a text stands in every field that a stranger may fill: names, schemas, calls, results, reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ferrule import Decision, DefinitionError, Media, Runner, Text, Tool, ToolCall, ToolContext, ToolResult, ask, tool
from ferrule.values.context import ToolContext as Context

PAYLOADS = Path(__file__).with_name("payloads.txt").read_text(encoding="utf-8").splitlines()
KEY = b"k" * 32


def make_tool(number: int, text: str) -> Tool:
    """A tool whose definition and results consist of a text. Its name does too, if Ferrule takes that."""
    inner = {"type": "object", "title": text, "properties": {text: {"const": text}}}
    schema = {
        "type": "object",
        "title": text,
        "properties": {
            text: {"type": "string", "title": text, "description": text, "default": text},
            "choice": {"enum": [text], "description": text},
            "either": {"anyOf": [inner, {"type": "null"}]},
        },
    }

    def handle(payload: dict[str, Any], context: Context) -> ToolResult:
        kind = payload.get("kind")
        if kind == "error":
            raise ValueError(text)
        context.progress(1, 2, text)
        if kind == "json":
            return ToolResult([{text: text, "b": text}, {text: text, "b": text}], metadata={text: text})
        media = [Media("file", b"x", "text/html", name=text), Media("image", None, "image/png", uri=text)]
        return ToolResult(content=[Text(text), *media], metadata={"note": text})

    schema["properties"]["kind"] = {"type": "string"}  # type: ignore[index]
    options: dict[str, Any] = {"description": text, "input_schema": schema, "tags": [text], "metadata": {"title": text}}
    options |= {"preview": lambda arguments: text}
    try:
        return tool(name=f"{text}{number}", **options)(handle)
    except DefinitionError:
        return tool(name=f"tool_{number}", **options)(handle)


def make_runner(texts: list[str], **options: Any) -> Runner:
    """A runner whose guard asks about calls of the kind `ask`, with the text of the tool."""
    tools = [make_tool(number, text) for number, text in enumerate(texts)]
    by_name = {one.name: text for one, text in zip(tools, texts, strict=True)}

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        text = by_name[call.name]
        kind = call.arguments.get("kind")
        return ask(text, rule=text) if kind == "ask" else Decision("deny", text, rule=text) if kind == "deny" else None

    return Runner(tools, guards=[guard], resume_key=KEY, **options)


def list_calls(runner: Runner, texts: list[str]) -> list[tuple[ToolCall, ToolContext]]:
    """Calls of each kind of each tool, under hostile ids, principals and sessions."""
    made = []
    for one, text in zip(runner.tools, texts, strict=True):
        for kind in ("text", "json", "error", "deny", "ask"):
            call = ToolCall(f"{text}{kind}", one.name, {text: text, "kind": kind})
            made.append((call, ToolContext(principal=text, session=text)))
    made += [(ToolCall(f"{text}none", text, {text: text}), ToolContext()) for text in texts]
    return made


__all__ = ["PAYLOADS", "list_calls", "make_runner"]
