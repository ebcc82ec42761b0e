"""`fake(tools)`: the same tools, with answers made up from their output schemas."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from ferrule.arguments.exporting import EXPORT_ERRORS
from ferrule.definition.handler import Call, Handler
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError, ToolError
from ferrule.testing.answers import call_by_signature
from ferrule.testing.values import NoFittingValue, draw_below, draw_words, make_fitting
from ferrule.values.call import ToolCall
from ferrule.values.content import to_output
from ferrule.values.context import ToolContext
from ferrule.values.frozen import thaw
from ferrule.values.result import ToolResult

_NO_CONSTRAINTS = {"type", "title", "description", "$schema", "$id"}


def fake(
    tools: Toolset | Iterable[Any] | Any, *, seed: int | str = 0, answers: Mapping[str, Any] | None = None
) -> Toolset:
    """Return the same tools with a made-up handler: names, schemas, traits, guards and middleware stay as they are. See
    docs/testing.md.

    An answer fits the tool's output schema, and is an object of the return type if the tool has one. A tool without an
    output schema, or with plain text as output, answers with a short text that names it. The same seed, name and
    arguments have the same answer, in every process. The real handler is never called, and there is no thread and no
    process. A tool that would yield chunks answers as a whole.

    Values follow plain rules for types, bounds, lengths, properties, items, choices, references and common formats. A
    schema's `examples` are answers too. For the rest, such as `pattern` and `not`, give the answer in `answers`.

    Args:
        tools: A toolset, a list of anything that makes one, or one tool.
        seed: Other seeds have other answers.
        answers: Answers of some tools, by name: a value, an exception or exception class to raise, or a sync or async
            function, which may raise like any handler. Values are checked here, results of functions at each call.

    A function names the parameters of the tool that it needs, all, some or none, and gets them as the handler would:
    `answers={"convert": lambda amount, currency: …}`. With `**others` it gets the others too, and with `context` the
    `ToolContext`. A single parameter called `arguments` (or `args`, `payload`, `params`, `input`, `_`) gets all
    arguments as a dict of JSON values, unless the tool has a parameter of that name.

    Raises:
        DefinitionError: An answer is for a missing tool, does not fit the output schema, or has a parameter that the
            tool lacks; or no fitting answer can be made up, so `answers` needs one.

    `tool.handler` is still the real function, for guards that look at it.
    """
    toolset, key = to_toolset(tools), format_seed("fake", seed)
    chosen: dict[str, Any] = {}
    for name, answer in (answers or {}).items():
        chosen[find_tool("fake: answers", toolset, name).name] = answer
    return toolset.map(
        lambda tool: replace_handler(
            tool, _make_answer(tool, chosen[tool.name]) if tool.name in chosen else _MadeUpAnswers(tool, key)
        )
    )


def to_toolset(tools: Any) -> Toolset:
    """Return the toolset of a toolset, of a list, or of one thing that makes a tool.

    Raises:
        DefinitionError: Something is no tool.
    """
    if isinstance(tools, Toolset):
        return tools
    one = isinstance(tools, Mapping | BaseModel) or hasattr(tools, "execute") or not isinstance(tools, Iterable)
    return Toolset([tools] if one else tools)


def format_seed(what: str, seed: Any) -> str:
    """Return a seed as text.

    Raises:
        DefinitionError: The seed is no whole number and no text. Only these are the same in every process.
    """
    if not isinstance(seed, int | str):
        raise DefinitionError(f"{what}: seed must be a whole number or a text, not {seed!r}")
    return str(seed)


def make_salt(seed: str, call: ToolCall, *more: Any) -> str:
    """Return the source of a call's randomness: the seed, the tool's name and the arguments, in any order."""
    return json.dumps([seed, call.name, thaw(call.arguments), *more], sort_keys=True)


def find_tool(who: str, toolset: Toolset, name: Any) -> Tool:
    """Return the tool of that name.

    Raises:
        DefinitionError: There is none; the error names the nearest.
    """
    found = toolset.find(name)
    if found is None:
        near = toolset.find_nearest(str(name))
        hint = f"did you mean {near[0]!r}?" if near else f"there are {[tool.name for tool in toolset]!r}"
        raise DefinitionError(f"{who}: there is no tool {name!r}; {hint}")
    return found


def replace_handler(tool: Tool, answer: Call) -> Tool:
    """Return a copy that runs `answer` instead, in the event loop: name, schema, traits and guards stay."""

    async def call(values: object, context: ToolContext) -> object:
        value = answer(values, context)
        return await value if inspect.isawaitable(value) else value

    def instead(handler: Handler) -> Handler:
        return replace(handler, call=call, target=call, kwargs_call=None)

    here = tool if tool.isolation is None else tool.replace(isolation=None)
    return here.with_adapter(instead)


def _make_answer(tool: Tool, answer: Any) -> Call:
    """Return the answer that the caller asked for."""
    if isinstance(answer, Tool):  # has no signature
        return call_by_signature(tool, lambda **arguments: answer(**arguments))
    if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
        return _raising(make_exception(f"fake: the answer of {tool.name!r}", answer))
    if callable(answer):
        return call_by_signature(tool, answer)
    if misfit := _find_misfit(tool, answer):
        raise DefinitionError(
            f"fake: the answer of {tool.name!r} does not fit its output schema: {misfit}; it is {answer!r}"
        )
    return lambda values, context: copy.deepcopy(answer)


def _find_misfit(tool: Tool, answer: Any) -> str:
    """Describe how an answer does not fit the tool's output schema. Return an empty text if it fits."""
    return "" if isinstance(answer, ToolResult) else tool.output.describe_misfit(to_output(answer, strict=False))


def make_exception(what: str, chosen: Any) -> Exception:
    """Return the exception, or an instance of the exception class.

    Raises:
        DefinitionError: No handler fails with it, or the class needs arguments.
    """
    try:
        error = chosen() if isinstance(chosen, type) else chosen
    except TypeError as wrong:
        raise DefinitionError(f"{what}: {chosen.__name__} needs arguments ({wrong}); give an instance of it") from None
    if not isinstance(error, Exception):
        raise DefinitionError(f"{what} is {chosen!r}, which is no exception that a handler fails with")
    return error


def _raising(error: Exception) -> Call:
    def call(values: object, context: ToolContext) -> Any:
        raise error.with_traceback(None)  # it would grow with each call

    return call


class _MadeUpAnswers:
    """The made-up answers of one tool.

    Raises:
        DefinitionError: A first call has no answer. The error comes early, rather than in the middle of a test.
    """

    def __init__(self, tool: Tool, seed: str) -> None:
        self._tool = tool
        self._seed = seed
        try:
            self._make_up(ToolCall("", tool.name))
        except ToolError as error:
            raise DefinitionError(str(error)) from None

    def __call__(self, values: object, context: ToolContext) -> Any:
        assert context.call is not None
        return self._make_up(context.call)

    def _make_up(self, call: ToolCall) -> Any:
        salt = make_salt(self._seed, call)
        schema = self._tool.output_schema
        if schema is None or (schema.get("type") == "string" and schema.keys() <= _NO_CONSTRAINTS):
            draw = Random(salt)
            answer = f"{call.name}: {draw_words(draw)} {draw_below(draw, 1000)}"
            with suppress(NoFittingValue):  # the output may be checked by more than its schema says
                return self._finish(answer)
        try:
            return make_fitting(self._schema, self._finish, salt)
        except NoFittingValue as unmet:
            at = f"at {'.'.join(map(str, unmet.path))!r}" if unmet.path else "as a whole"
            raise ToolError(
                f"fake: no answer of {call.name!r} could be made up: {at}, {unmet.why}; "
                f"give one: fake(…, answers={{{call.name!r}: …}})"
            ) from None

    @cached_property
    def _schema(self) -> Any:
        """Return the schema of the return type if there is one: the output schema may say less (a `Decimal` is a
        text).
        """
        enforced = self._tool.output.enforced
        if enforced is not None and enforced.adapter is not None:
            with suppress(*EXPORT_ERRORS):
                return enforced.adapter.json_schema()
        return thaw(self._tool.output_schema)

    def _finish(self, value: Any) -> Any:
        """Return the value as the handler would return it, judged by the tool's own check of its output."""
        enforced = self._tool.output.enforced
        adapter = None if enforced is None else enforced.adapter
        try:
            finished = value if adapter is None else adapter.validate_json(json.dumps(value), strict=True)
        except PydanticError as error:
            raise NoFittingValue((), f"{value!r:.200} does not fit: {error}") from None
        if misfit := _find_misfit(self._tool, finished):
            raise NoFittingValue((), f"{value!r:.200} does not fit: {misfit}")
        return finished
