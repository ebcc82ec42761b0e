"""Checks of a toolset before it is sent to a model API: refused definitions, tools that a model may mix up, and costs.

Pure functions over tools. An `error` is refused by a provider, or by Ferrule on its behalf; a `warning` is likely to
mislead a model; a `note` is a fact worth knowing. `ferrule lint` prints them:

    for finding in findings([convert], ["anthropic"], strict=True):
        print(finding.level, finding.rule)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.providers import (
    WHERE_POSSIBLE,
    _plain,
    _strict,
    anthropic,
    bedrock,
    cohere,
    gemini,
    mistral,
    ollama,
    openai_chat,
    openai_responses,
)
from ferrule.providers._instructions import (
    HOSTILE_SIGNS,
    find_hidden_characters,
    find_instructions,
    find_orders,
    list_texts,
)
from ferrule.providers._schemas import find_broken_rule, follow_pointer, inner
from ferrule.providers._write import refused_keys
from ferrule.values.count import format_count

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool

Level = Literal["error", "warning", "note"]
"""The severity of a finding."""

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
"""The levels, the worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the checks."""

    level: Level
    rule: str
    """Its kind: `count`, `definition`, `description-size`, `strict`, `strict-limit`, `provider`, `wire-name`,
    `context-parameter`, `no-description`, `no-parameter-description`, `confusable`, `hidden`, `instruction` or
    `no-sandbox`."""
    text: str
    provider: str = ""
    """Empty: any provider."""
    tool: str = ""
    """Empty: all tools together."""
    path: str = ""
    """The place in the tool's schema."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one tool in every request."""

    tool: str
    description: int
    """Characters."""
    schema: int
    """Characters, as compact JSON."""
    tokens: Mapping[str, int | None]
    """The estimated tokens of its definition, for each provider; `None` if that refuses it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one provider."""

    definitions: Callable[..., Any]
    plain: _plain.PlainRules
    rules: _strict.Rules | None = None
    """The rules of its strict mode, if it has one."""
    most_tools: int | None = None
    most_description: int | None = None
    """Characters."""


# OpenAI Chat answers "array too long. Expected an array with maximum length 128", and for a function's description
# "string too long. Expected a string with maximum length 1024". google-genai's types.Tool: "Maximum 512 function
# declarations can be provided". Names have one form for all APIs (`wire_name`).
LIMITS: dict[str, Limits] = {
    "anthropic": Limits(anthropic.tools, _plain.PLAIN_ANTHROPIC, _strict.ANTHROPIC),
    "bedrock": Limits(bedrock.tools, _plain.PLAIN_BEDROCK, _strict.BEDROCK),
    "cohere": Limits(cohere.tools, _plain.PLAIN_COHERE, _strict.COHERE),
    "gemini": Limits(gemini.tools, _plain.PLAIN_GEMINI, most_tools=512),
    "mistral": Limits(mistral.tools, _plain.PLAIN_MISTRAL, _strict.MISTRAL),
    "ollama": Limits(ollama.tools, _plain.PLAIN_OLLAMA),
    "openai_chat": Limits(
        openai_chat.tools,
        _plain.PLAIN_CHAT,
        _strict.OPENAI,
        most_tools=128,
        most_description=openai_chat.MOST_DESCRIPTION,
    ),
    "openai_responses": Limits(openai_responses.tools, _plain.PLAIN_OPENAI, _strict.OPENAI),
}
"""The limits of each provider, by the name of its module."""

WhetherStrict: TypeAlias = bool | Literal["where possible"]
"""Whether the tools are checked as strict ones: all, none, or all that can be. See docs/models.md."""


def not_strict(tools: Iterable[Tool], provider: str) -> dict[str, str]:
    """Return the tools of a request that `tools(…, strict="where possible")` of a provider leaves plain, by name, with
    the reason: a part of the schema that cannot be expressed, or an exceeded limit of the request.

    Raises:
        DefinitionError: There is no such provider.
    """
    if provider not in LIMITS:
        raise DefinitionError(f"there is no provider {provider!r}; there are {', '.join(LIMITS)}")
    return _strict.explain_left_plain(list(tools), LIMITS[provider].rules)


def findings(
    tools: Iterable[Tool], providers: Collection[str] = tuple(LIMITS), strict: WhetherStrict = False
) -> list[Finding]:
    """Return all findings, errors first.

    Args:
        tools: The tools of one request.
        providers: The providers to check.
        strict: Whether all tools are meant to be strict. If not, a tool that cannot be strict is a note; with
            `"where possible"`, a tool that stays plain is a note.
    """
    tools = list(tools)
    found = [finding for name in providers for finding in _find_refusals(tools, name, strict)]
    found += [
        *_find_wire_names(tools),
        *_find_undescribed(tools),
        *_find_confusable(tools),
        *_find_hidden_texts(tools),
        *_find_instructions(tools),
        *_find_unsandboxed(tools),
    ]
    return sorted([*_find_untyped_contexts(tools), *found], key=lambda finding: LEVELS.index(finding.level))


# Refusals of a provider


def _find_refusals(tools: Sequence[Tool], provider: str, strict: WhetherStrict) -> Iterator[Finding]:
    limits = LIMITS[provider]
    if limits.most_tools is not None and len(tools) > limits.most_tools:
        text = f"takes {limits.most_tools} tools in one request, and these are {len(tools)}"
        yield Finding("error", "count", text, provider)
    for tool in tools:
        yield from _find_refusal(tool, provider, limits)
    if limits.rules is None:
        if strict:
            level: Level = "note" if strict == WHERE_POSSIBLE else "error"
            yield Finding(level, "strict", "has no strict mode for single tools", provider)
    elif strict == WHERE_POSSIBLE:
        for name, why in _strict.explain_left_plain(tools, limits.rules).items():
            yield Finding("note", "strict", f"stays plain: {why}", provider, name)
    else:
        yield from _find_not_strict(tools, provider, limits.rules, "error" if strict else "note")


def _find_refusal(tool: Tool, provider: str, limits: Limits) -> Iterator[Finding]:
    if problem := refused_keys(tool, provider):
        yield Finding("error", "provider", problem, provider, tool.name)
    broken = find_broken_rule(tool, limits.plain)
    if broken is not None:
        yield Finding("error", "definition", f"cannot be sent: {broken[1]}", provider, tool.name, broken[0])
    if limits.most_description is not None and len(tool.description) > limits.most_description:
        text = f"takes descriptions of {limits.most_description:,} characters, and this has {len(tool.description):,}"
        yield Finding("error", "description-size", text, provider, tool.name)


def _find_not_strict(tools: Sequence[Tool], provider: str, rules: _strict.Rules, level: Level) -> Iterator[Finding]:
    fitting = []
    for tool in tools:
        broken = find_broken_rule(tool, rules)
        if broken is None:
            fitting.append(tool)
        else:
            yield Finding(level, "strict", f"cannot be strict: {broken[1]}", provider, tool.name, broken[0])
    for over in _strict.find_exceeded_limits(fitting, rules):
        yield Finding(level, "strict-limit", f"cannot all be strict: {over}", provider)


# Texts for a model


def _find_wire_names(tools: Sequence[Tool]) -> Iterator[Finding]:
    for tool in tools:
        if tool.wire_name != tool.name:
            text = f"goes as {tool.wire_name!r}, as not every provider takes its name"
            yield Finding("note", "wire-name", text, tool=tool.name)


def _find_unsandboxed(tools: Sequence[Tool]) -> Iterator[Finding]:
    for tool in tools:
        if tool.metadata.get("sandbox") == "none":
            text = "runs a model's lines without a sandbox, with all rights of the program"
            yield Finding("warning", "no-sandbox", text, tool=tool.name)


def _find_untyped_contexts(tools: Sequence[Tool]) -> Iterator[Finding]:
    for tool in tools:
        for name, node in tool.input_schema.get("properties", {}).items():
            typed = not isinstance(node, Mapping) or {*node} - {"description", "title", "default"}
            if name in ("context", "ctx") and not typed:
                text = f"the model fills {name!r}: to get the call's context there, annotate it as a ToolContext"
                path = f"$.properties.{name}"
                yield Finding("warning", "context-parameter", text, tool=tool.name, path=path)


def _find_undescribed(tools: Sequence[Tool]) -> Iterator[Finding]:
    for tool in tools:
        if not tool.description:
            yield Finding("warning", "no-description", "has no description", tool=tool.name)
        for name, node, path in _parameters(tool.input_schema, "$"):
            if not _is_described(node, tool.input_schema):
                text = f"the parameter {name!r} has no description"
                yield Finding("note", "no-parameter-description", text, tool=tool.name, path=path)


_DECLARING = (
    *("properties", "$defs", "definitions", "items", "additionalProperties"),
    *("anyOf", "oneOf", "allOf", "prefixItems"),
)


def _parameters(schema: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    """Yield every parameter and field that a schema names, with its schema and its path."""
    if not isinstance(schema, Mapping):
        return
    for name, node in schema.get("properties", {}).items():
        yield name, node, f"{path}.properties.{name}"
    for at, node in inner({key: schema[key] for key in _DECLARING if key in schema}, path):
        yield from _parameters(node, at)


def _is_described(node: Any, root: Mapping[str, Any]) -> bool:
    """Return whether a parameter's schema is described: by its own words, by a definition's, or by a single possible
    value."""
    if not isinstance(node, Mapping):
        return True
    if node.get("description") or "const" in node:
        return True
    branches = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    reference = node.get("$ref", "")
    referred = follow_pointer(root, reference) if reference.startswith("#/") else None
    if isinstance(referred, Mapping) and referred.get("description"):
        return True
    return any(_is_described(branch, root) for branch in branches)


# Instructions to the model, and hidden characters


def _find_hidden_texts(tools: Sequence[Tool]) -> Iterator[Finding]:
    for tool in tools:
        for path, text in list_texts(tool):
            if (what := find_hidden_characters(text)) is not None:
                level: Level = "error" if ", which spell " in what else "warning"
                yield Finding(level, "hidden", f"has characters that nobody sees: {what}", "", tool.name, path)
        removed = tool.metadata.get("mcp", {}).get("removed")  # by the source, before anybody could see them
        if removed:
            text = f"its texts had {format_count(removed, 'character')} left out, hidden or too many"
            yield Finding("warning", "hidden", text, tool=tool.name)


def _find_instructions(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Yield texts that instruct the model instead of describing the tool, and texts with orders about the tools of
    others. Orders of a source about its own tools are descriptions."""
    names: dict[str | None, dict[str, str]] = {}
    for tool in tools:
        names.setdefault(_get_server(tool), {}).update(dict.fromkeys(_names_in_texts(tool), tool.name))
    others = {one: {k: v for other, own in names.items() if other != one for k, v in own.items()} for one in names}
    for tool in tools:
        for path, text in list_texts(tool):
            for sign, quoted in find_instructions(text):
                said = f"may instruct the model, as it {sign}: {quoted}"
                level: Level = "error" if sign in HOSTILE_SIGNS else "warning"
                yield Finding(level, "instruction", said, "", tool.name, path)
            for other, quoted in find_orders(text, others[_get_server(tool)]):
                said = f"may instruct the model, as it mentions {other!r}, a tool of another server: {quoted}"
                yield Finding("warning", "instruction", said, "", tool.name, path)


def _get_server(tool: Tool) -> str | None:
    server: str | None = tool.metadata.get("mcp", {}).get("server")
    return server


def _names_in_texts(tool: Tool) -> list[str]:
    """Return the names of a tool in texts that are no words of the language: its name, and that without its
    server's."""
    inner = tool.name.removeprefix(f"{_get_server(tool)}__")
    return [name for name in {tool.name, inner} if "_" in name or "-" in name]


# Tools that a model may mix up

_ALIKE = 0.75
_EMPTY_WORDS = frozenset(
    [
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "into"),
        *("is", "it", "its", "of", "on", "or", "that", "the", "this", "to", "with"),
    ]
)


@dataclass(frozen=True, slots=True)
class _Words:
    name: tuple[str, ...]
    joined: str
    """The name's words without anything between them."""
    description: tuple[str, ...]
    word_set: frozenset[str]
    """The description's words in no order."""
    parameters: frozenset[str]


def _find_confusable(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Find pairs with the same names except for case, separators and plurals; with the same words in their
    descriptions; or with three quarters of the words and of the parameters in common, unless each of the two names has
    a distinguishing word.

    The shared part is the size of the intersection over the size of the union (Jaccard's index). A distinguishing word
    is in the name and the description of one tool, and not in the description of the other.
    """
    each = [_words(tool) for tool in tools]
    for one, other in _pairs(each):
        why = _likeness(each[one], each[other])
        if why:
            text = f"may be taken for {tools[other].name!r}: {why}"
            yield Finding("warning", "confusable", text, tool=tools[one].name)


def _pairs(each: Sequence[_Words]) -> Iterator[tuple[int, int]]:
    """Yield the positions of pairs that may be alike, in order: with the same name, or with one of their rarest words
    in common.

    If two sets share three quarters of their words, then any quarter of one set plus one word contains a word of the
    other (prefix filtering: Chaudhuri, Ganti and Kaushik, "A Primitive Operator for Similarity Joins in Data
    Cleaning").
    """
    uses = Counter(word for words in each for word in words.word_set)
    positions: dict[tuple[str, str], list[int]] = {}
    keys = []
    for position, words in enumerate(each):
        rarest = sorted(words.word_set, key=lambda word: (uses[word], word))
        few = rarest[: len(rarest) - ceil(_ALIKE * len(rarest)) + 1]
        keys.append([("name", words.joined), *(("word", word) for word in few)])
        for key in keys[-1]:
            positions.setdefault(key, []).append(position)
    for one, its in enumerate(keys):
        for other in sorted({position for key in its for position in positions[key] if position > one}):
            yield one, other


def _words(tool: Tool) -> _Words:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", tool.name)
    name = tuple(map(_singular, re.findall(r"[^\W_]+", apart.casefold())))
    word_set = [_singular(word) for word in re.findall(r"\w+", tool.description.casefold()) if word not in _EMPTY_WORDS]
    parameters = frozenset(tool.input_schema.get("properties", ()))
    return _Words(name, "".join(name), tuple(word_set), frozenset(word_set), parameters)


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s"):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]


def _likeness(one: _Words, other: _Words) -> str | None:
    if one.joined == other.joined:
        return "their names say the same"
    fewer, more = sorted((len(one.word_set), len(other.word_set)))
    if not fewer or fewer < _ALIKE * more:  # too different in length to share as much
        return None
    if one.description == other.description:
        return "their descriptions say the same"
    words, parameters = _jaccard(one.word_set, other.word_set), _jaccard(one.parameters, other.parameters)
    if words < _ALIKE or parameters < _ALIKE or _names_tell_apart(one, other):
        return None
    return f"they share {words:.0%} of their descriptions' words and {parameters:.0%} of their parameters"


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    both = len(one | other)
    return len(one & other) / both if both else 1.0


def _names_tell_apart(one: _Words, other: _Words) -> bool:
    first, second = (
        (one.word_set - other.word_set).intersection(one.name),
        (other.word_set - one.word_set).intersection(other.name),
    )
    return bool(first and second)


# Costs


def costs(
    tools: Iterable[Tool], providers: Collection[str] = tuple(LIMITS), strict: WhetherStrict = False
) -> list[Cost]:
    """Return the cost of each tool in a request, in the order of the toolset."""
    found, tools = [], list(tools)
    is_strict = {name: _strict.make_strict_test(tools, strict, LIMITS[name].rules) for name in providers}
    for tool in tools:
        tokens = {name: _tokens(tool, LIMITS[name], is_strict[name](tool)) for name in providers}
        found.append(Cost(tool.name, len(tool.description), len(_compact_json(tool.input_schema)), tokens))
    return found


def _tokens(tool: Tool, limits: Limits, strict: bool) -> int | None:
    """Return a quarter of the bytes of the definition as compact JSON in UTF-8, rounded up.

    Four characters for a token is the estimate of google-genai's own types ("A token is approximately four
    characters"). No tokenizer is used, and no API documents the form of definitions in a prompt, or the text before
    them.
    """
    try:
        written = limits.definitions([tool], strict=strict and limits.rules is not None)
    except DefinitionError:
        return None
    definition = written["tools"][0] if isinstance(written, dict) else written[0]
    definition = definition.get("functionDeclarations", [definition])[0]
    return -(-len(_compact_json(definition).encode("utf-8", "replace")) // 4)


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
