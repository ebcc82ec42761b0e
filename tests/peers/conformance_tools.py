"""The tools that the official conformance suite of MCP calls; served by `ferrule serve`, or, as a program, with a tool
that changes their list."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any

import uvicorn
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, MISSING_REQUIRED_CLIENT_CAPABILITY

from ferrule import (
    InputRequired,
    Media,
    Runner,
    Text,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    build_tool,
    serve,
    tool,
)

# One pixel, and no sound.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="


def media(kind: str, data: str, mime_type: str) -> Media:
    return Media(kind, base64.b64decode(data), mime_type)  # type: ignore[arg-type]


def giving(name: str, description: str, value: Any) -> Tool:
    @tool(name=name, description=description, read_only=True)
    async def give() -> Any:
        return value

    return give


MIXED = Media("file", b'{"test":"data","value":123}', "application/json", uri="test://mixed-content-resource")
EMBEDDED = Media("file", b"This is an embedded resource content.", "text/plain", uri="test://embedded-resource")
IMAGE = media("image", PNG, "image/png")
ALL = ToolResult(content=[Text("Multiple content types test:"), IMAGE, MIXED])
GIVING = [
    giving("test_simple_text", "Say a text.", "This is a simple text response for testing."),
    giving("test_image_content", "Show an image.", IMAGE),
    giving("test_audio_content", "Play a sound.", media("audio", WAV, "audio/wav")),
    giving("test_embedded_resource", "Give a resource.", EMBEDDED),
    giving("test_multiple_content_types", "Give all three.", ALL),
    giving("test_logging_tool", "Log nothing: a server of tools has no log messages.", "done"),
]


@tool(read_only=True)
async def test_error_handling() -> None:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(read_only=True)
async def test_tool_with_progress(context: ToolContext) -> str:
    """Say how far it is."""
    for done in (0, 50, 100):
        context.progress(done, 100)
        await asyncio.sleep(0.05)
    return "done"


@tool(read_only=True)
async def test_missing_capability() -> None:
    """Need a client that samples."""
    required = {"requiredCapabilities": {"sampling": {}}}
    raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", required)


def _schema(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def asking(name: str, reason: str, schema: dict[str, Any]) -> Tool:
    """A tool that asks once, and says what it was told."""

    @tool(name=name, description="Ask, and say what was answered.", read_only=True)
    async def ask_once(context: ToolContext) -> str | InputRequired:
        if context.answer is None:
            return InputRequired(reason, schema)
        return f"Elicitation completed: action=accept, content={json.dumps(dict(context.answer.value))}"

    return ask_once


@tool(read_only=True)
async def test_elicitation(message: str, context: ToolContext) -> str | InputRequired:
    """Ask with the message of the caller."""
    if context.answer is None:
        text = {"type": "string"}
        return InputRequired(message, _schema(username=text, email=text))
    return f"User response: action=accept, content={json.dumps(dict(context.answer.value))}"


@tool(read_only=True)
async def test_input_required_result_elicitation(context: ToolContext) -> str | InputRequired:
    """Ask for a name."""
    if context.answer is None:
        schema = {**_schema(name={"type": "string"}), "title": "user_name"}
        return InputRequired("What is your name?", schema)
    return f"Hello, {context.answer.value['name']}!"


@tool(read_only=True)
async def test_input_required_result_request_state(context: ToolContext) -> str | InputRequired:
    """Confirm."""
    if context.answer is None:
        return InputRequired("Please confirm", _schema(ok={"type": "boolean"}), state={"checked": True})
    return "state-ok" if context.answer.state == {"checked": True} else "no state"


@tool(read_only=True)
async def test_input_required_result_multi_round(context: ToolContext) -> str | InputRequired:
    """Ask twice."""
    text = {"type": "string"}
    if context.answer is None:
        return InputRequired("Step 1: What is your name?", {**_schema(name=text), "title": "step1"}, state=1)
    if context.answer.state == 1:
        return InputRequired("Step 2: What is your favorite color?", {**_schema(color=text), "title": "step2"}, state=2)
    return "both steps are done"


DEFAULTS = _schema(
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
    required=[],
)
OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}]
ENUMS = _schema(
    untitledSingle={"type": "string", "enum": OPTIONS},
    titledSingle={"type": "string", "oneOf": TITLED},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    untitledMulti={"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    titledMulti={"type": "array", "items": {"anyOf": TITLED}},
    required=[],
)
SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@serve.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@serve.resource("test://static-binary", mime_type="image/png")
def static_binary() -> Media:
    """An image."""
    return IMAGE


@serve.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:
    """Data by id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@serve.prompt
def test_simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@serve.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1={arg1!r}, arg2={arg2!r}"


@serve.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> ToolResult:
    """A prompt with a resource."""
    resource = Media("file", b"Embedded resource content for testing.", "text/plain", uri=resourceUri)
    return ToolResult(content=[resource, Text("Please process the embedded resource above.")])


@serve.prompt
def test_prompt_with_image() -> ToolResult:
    """A prompt with an image."""
    return ToolResult(content=[IMAGE, Text("Please analyze the image above.")])


HEADERS = _schema(region={"type": "string", "x-mcp-header": "Region"}, limit={"type": "integer"})


async def say_arguments(payload: dict[str, Any]) -> str:
    return json.dumps(payload)


def defined(name: str, schema: dict[str, Any]) -> Tool:
    made = build_tool({"name": name, "description": f"{name}.", "inputSchema": schema}, say_arguments)
    return made.replace(guards=(), read_only=True)


@tool(read_only=True)
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@tool(background=True, read_only=True)
async def slow_compute(seconds: float = 0, label: str = "") -> str:
    """Compute for some time."""
    await asyncio.sleep(seconds)
    return label


@tool(background=True, read_only=True)
async def failing_job() -> None:
    """Fail after a while."""
    raise ToolError("This job intentionally fails")


@tool(background=True, read_only=True)
async def protocol_error_job() -> None:
    """Fail with an error of the protocol."""
    raise MCPError(INTERNAL_ERROR, "This job intentionally breaks")


CONFIRM = _schema(confirm={"type": "boolean"})


@tool(background=True, read_only=True)
async def confirm_delete(filename: str, context: ToolContext) -> str:
    """Ask before something is deleted."""
    return f"{filename}: {await context.ask(InputRequired('Delete it?', CONFIRM))}"


@tool(background=True, read_only=True)
async def multi_input(context: ToolContext) -> str:
    """Ask two questions at once."""
    questions = [InputRequired(f"{which}?", CONFIRM) for which in ("First", "Second")]
    return str(await asyncio.gather(*map(context.ask, questions)))


runner = Runner(
    [
        *GIVING,
        test_error_handling,
        test_tool_with_progress,
        test_elicitation,
        asking("test_elicitation_sep1034_defaults", "Please check", DEFAULTS),
        asking("test_elicitation_sep1330_enums", "Please choose", ENUMS),
        test_missing_capability,
        asking("test_streaming_elicitation", "Please confirm", _schema(ok={"type": "boolean"})),
        asking("test_input_required_result_tampered_state", "Please confirm", _schema(ok={"type": "boolean"})),
        test_input_required_result_elicitation,
        test_input_required_result_request_state,
        test_input_required_result_multi_round,
        defined("json_schema_2020_12_tool", SCHEMA_2020_12),
        defined("test_custom_headers", HEADERS),
        greet,
        slow_compute,
        failing_job,
        protocol_error_job,
        confirm_delete,
        multi_input,
    ]
)


async def main() -> None:
    @tool(read_only=True)
    async def test_trigger_tool_change() -> str:
        """Change the list."""
        await app.use(one if app.runner is other else other)
        return "changed"

    one = Runner([*runner.tools, test_trigger_tool_change])
    other = Runner([*[*runner.tools][1:], test_trigger_tool_change])
    app = serve.mcp(one)
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())
