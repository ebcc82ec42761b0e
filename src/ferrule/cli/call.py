"""`ferrule call`: one call, through every step of a model's call."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from ferrule import Runner, Tool, ToolCall, ToolResult
from ferrule.approval import printable
from ferrule.cli import journals, servers
from ferrule.cli.bars import Bars
from ferrule.cli.interrupt import CODE, Stages
from ferrule.cli.runners import find_tool, grant_scope, make_runner
from ferrule.cli.screen import make_console
from ferrule.cli.shared_options import add_shared
from ferrule.cli.text import format_blocks, format_refusal, has_traceback, shorten, warn
from ferrule.cli.timeline import Timeline
from ferrule.cli.usage import VERBOSE_HINT, UsageError, read_standard_input
from ferrule.providers._schemas import follow_pointer
from ferrule.values.content import Text
from ferrule.values.json_text import json_or_text

_ARGUMENTS_HELP = (
    "an argument; or all arguments as one JSON object, '{\"key\": …}'; or - for JSON on standard input, which is also "
    "read if you write no arguments and the tool requires some"
)
_WORD_SHOWN = 200
_SCALAR_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tool, its arguments, and how the call runs."""
    add_call_arguments(parser)
    add_shared(parser, "--yes", "--policy", "--lock", "--session", "--journal")


def add_call_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the commands about one call."""
    parser.add_argument("name", metavar="TOOL", help="name of the tool")
    parser.add_argument("arguments", nargs="*", metavar="key=value", default=[], help=_ARGUMENTS_HELP)


def read_call(options: argparse.Namespace, runner: Runner) -> ToolCall:
    """Return the call that the command line describes."""
    tool = find_tool(runner.tools, options.name, options)
    return ToolCall("", tool.name, read_arguments(options.arguments, tool))


def command(options: argparse.Namespace) -> int:
    """Make the call. Its content goes to standard output; errors and progress go to standard error."""
    with servers.connect_servers(options) as (work, extra):
        console = make_console(errors=True)
        # If both streams are one terminal, the content of the result is on the screen soon enough.
        timeline = Timeline(console, time.monotonic, Bars(console), chunks=not sys.stdout.isatty())
        runner = make_runner(options, extra, pause=timeline.pause, remember=grant_scope(options))
        call = read_call(options, runner)
        journaled = journals.open_journal(work, runner, options.journal)
        with journaled as runner, Stages(timeline.aside) as stages, closing(timeline):
            result = work.run(_make_call(runner, call, options.session, timeline, stages))
        code = _print_result(result)
        if has_traceback(result) and not options.verbose:
            warn(VERBOSE_HINT)
        return CODE if stages.pressed else code


async def _make_call(
    runner: Runner, call: ToolCall, session: str | None, timeline: Timeline, stages: Stages
) -> ToolResult:
    batch = runner.batch([call], session=session, observers=[timeline.report])
    stages.steer(batch.cancel)
    [result] = await batch
    return result


def _print_result(result: ToolResult) -> int:
    content = result.content
    if not result.success:
        print(printable(format_refusal(result)), file=sys.stderr)
        # Show the content that a failed call produced.
        content = tuple(block for block in content if not (isinstance(block, Text) and block.text == result.error))
    if result.success or (content and result.output is not None):
        text = format_blocks(content)
        print(printable(text) if sys.stdout.isatty() else text)
    return 0 if result.success else 1


def read_arguments(words: Sequence[str], tool: Tool) -> str | dict[str, Any]:
    """Return the arguments that the words after the tool's name describe. `-` stands for standard input."""
    if list(words) == ["-"]:
        return read_standard_input()
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return words[0]
    if words:
        return parse_arguments(words, tool.input_schema)
    # A tool without required arguments must not wait for a standard input that stays open.
    return read_standard_input() if tool.input_schema.get("required") and not sys.stdin.isatty() else {}


def parse_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that words such as `key=value` describe, with the types of the schema."""
    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if word.lstrip().startswith(("{", "[")):
            raise UsageError(
                f"{shorten(word, _WORD_SHOWN)!r} is not key=value: write only key=value words, or one JSON object "
                "with all arguments"
            )
        if not equals or not key:
            raise UsageError(_argument_error(word, schema))
        if key in arguments:
            raise UsageError(f"the argument {key!r} is there twice; for a list, write JSON: {key}='[…]'")
        arguments[key] = _parse_value(text, declared_types(schema.get("properties", {}).get(key, {}), schema))
    return arguments


def _argument_error(word: str, schema: Mapping[str, Any]) -> str:
    """Return the error text for a value without a name. It shows how to write the value for the first parameter."""
    names = [*schema.get("required", ()), *schema.get("properties", ())]
    name, value = next(iter(names), "key"), shorten(word.strip("="), _WORD_SHOWN)
    if not value or value in names:  # `article tea`: the name is right, and its value is the next word
        name, value = value or name, "value"
    as_json = json.dumps({name: value}, ensure_ascii=False)
    remedy = f"write {shlex.quote(f'{name}={value}')}, or JSON: {shlex.quote(as_json)}"
    return f"{shorten(word, _WORD_SHOWN)!r} is not key=value: {remedy}"


def _parse_value(text: str, wanted: set[str]) -> Any:
    """Return the text if the schema takes text, else its JSON value. If it is not JSON, validation reports it."""
    if wanted and wanted <= {"string", "null"}:
        return text
    value = json_or_text(text)
    return text if "string" in wanted and _json_type(value) not in wanted else value


def _json_type(value: Any) -> str:
    if isinstance(value, Mapping):  # the values in a schema are frozen, and have their own classes
        return "object"
    return "array" if isinstance(value, list) else _SCALAR_TYPES[type(value)]


def declared_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that `schema` declares. The set is empty if any type fits."""
    if not isinstance(schema, Mapping) or depth > 20:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return declared_types(follow_pointer(root, reference) if reference.startswith("#/") else None, root, depth + 1)
    types = schema.get("type", [])
    values = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    found = {*([types] if isinstance(types, str) else types), *map(_json_type, values)}
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(word, []):
            found |= declared_types(inner, root, depth + 1)
    return found
