"""`ferrule call`: one call, through every step of a model's call."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from ferrule import Runner, Tool, ToolCall, ToolResult, Toolset
from ferrule.approval import printable
from ferrule.cli import find, journals, openapi, policies, servers
from ferrule.cli.bars import Bars
from ferrule.cli.interrupt import CODE, Stages
from ferrule.cli.screen import screen
from ferrule.cli.text import refusal, short, shown, traced
from ferrule.cli.timeline import Timeline
from ferrule.cli.usage import VERBOSE_SHOWS, UsageError
from ferrule.providers._schemas import follow_pointer
from ferrule.values.content import Text
from ferrule.values.json_text import json_or_text

_ARGUMENTS_HELP = (
    "or all of them as one JSON object, '{\"key\": …}'; or - for JSON on standard input, which is also read where "
    "nothing is given and something is required"
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
    add_call(parser)
    find.add_yes(parser)
    find.add_lock(parser)
    find.add_session(parser)
    policies.add_policy(parser)
    journals.add_journal(parser)


def add_call(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the commands about one call."""
    parser.add_argument("name", help="the tool")
    parser.add_argument("arguments", nargs="*", metavar="key=value", default=[], help=_ARGUMENTS_HELP)


def command(options: argparse.Namespace) -> int:
    """Make the call; content goes to standard output, an error and progress to standard error."""
    with servers.connected(options) as (work, more):
        return _command(options, work, more)


def _command(options: argparse.Namespace, work: asyncio.Runner, more: Toolset | None) -> int:
    console = screen(errors=True)
    # On one terminal for both, the content is below soon enough.
    timeline = Timeline(console, time.monotonic, Bars(console), chunks=not sys.stdout.isatty())
    judge = policies.of(options)
    runner = find.runner(
        options.tools,
        timeline.paused,
        options.yes,
        more,
        lock=options.lock,
        policy=judge,
        remember=find.scope_of(options),
        secrets=openapi.secrets(options),
    )
    tool = find.tool(runner.tools, options.name, options.tools or servers.named(options) or None)
    call = ToolCall("", tool.name, given_arguments(options.arguments, tool))
    journaled = journals.kept(work, runner, options.journal)
    with journaled as runner, Stages(timeline.aside) as stages, closing(timeline):
        result = work.run(_make_call(runner, call, options.session, timeline, stages))
    code = _print_result(result)
    if traced(result) and not options.verbose:
        print(f"ferrule: {VERBOSE_SHOWS}", file=sys.stderr)
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
        print(printable(refusal(result)), file=sys.stderr)
        # Show the content that a failed call had produced, if any.
        content = tuple(block for block in content if not (isinstance(block, Text) and block.text == result.error))
    if result.success or (content and result.output is not None):
        text = shown(content)
        print(printable(text) if sys.stdout.isatty() else text)
    return 0 if result.success else 1


def given_arguments(words: Sequence[str], tool: Tool) -> str | dict[str, Any]:
    """Return the arguments that the words after the tool's name stand for: key=value, JSON, or JSON on standard
    input.
    """
    if list(words) == ["-"]:
        return _standard_input()
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return words[0]
    if words:
        return typed(words, tool.input_schema)
    # A tool without required arguments must not wait for a standard input that nobody closes.
    return _standard_input() if tool.input_schema.get("required") and not sys.stdin.isatty() else {}


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no {error.encoding} text (byte {error.start})") from None


def typed(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `words` of the form key=value, by `schema`."""
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if word.lstrip().startswith(("{", "[")):
            raise UsageError(
                f"{short(word, _WORD_SHOWN)!r} is no key=value: JSON stands alone, as one object with all arguments"
            )
        if not equals or not key:
            raise UsageError(_no_argument(word, schema))
        if key in given:
            raise UsageError(f"{key!r} is given twice; for a list write JSON: {key}='[…]'")
        given[key] = _typed_value(text, kinds(schema.get("properties", {}).get(key, {}), schema))
    return given


def _no_argument(word: str, schema: Mapping[str, Any]) -> str:
    """Return the error text for a value without a name. It shows how to write the value for the first parameter."""
    names = [*schema.get("required", ()), *schema.get("properties", ())]
    first, meant = next(iter(names), "key"), short(word.strip("="), _WORD_SHOWN)
    if not meant or meant in names:  # `article tea`: the name is right, and its value stands apart
        first, meant = meant or first, "value"
    as_json = json.dumps({first: meant}, ensure_ascii=False)
    right = f"write {shlex.quote(f'{first}={meant}')}, or JSON: {shlex.quote(as_json)}"
    return f"{short(word, _WORD_SHOWN)!r} is no argument: {right}"


def _typed_value(text: str, wanted: set[str]) -> Any:
    """Return text if a text is wanted, else JSON. Text that is no JSON stays, and the schema's check reports it."""
    if wanted and wanted <= {"string", "null"}:
        return text
    value = json_or_text(text)
    return text if "string" in wanted and _type_of(value) not in wanted else value


def _type_of(value: Any) -> str:
    if isinstance(value, Mapping):  # a schema's own values are frozen, and of classes of their own
        return "object"
    return "array" if isinstance(value, list) else _SCALAR_TYPES[type(value)]


def kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that `schema` declares. The set is empty if any type fits."""
    if not isinstance(schema, Mapping) or depth > 20:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return kinds(follow_pointer(root, reference) if reference.startswith("#/") else None, root, depth + 1)
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else set(named)
    found |= {_type_of(value) for value in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]}
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(word, []):
            found |= kinds(inner, root, depth + 1)
    return found
