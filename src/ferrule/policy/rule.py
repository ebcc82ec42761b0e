"""A rule: it matches a call, does not match it, or cannot know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import Commands, Condition, check_glob, check_tag, every, matches_glob, some
from ferrule.policy.when import SessionFacts, When
from ferrule.security.command_arguments import Place, find_lines, find_options, is_command_name, read_lines
from ferrule.security.shell_syntax import Line
from ferrule.security.similar_names import lookalike_key
from ferrule.values.call_key import hash_parts
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.frozen import FrozenDict

Decide: TypeAlias = Literal["allow", "ask", "deny"]
Scope: TypeAlias = Literal["managed", "user", "project", "session"]
DECISIONS: Final = ("deny", "ask", "allow")
ANY_COMMAND: Final = "(command)"
"""The place of a condition on every argument with the name of a shell line, at any depth."""
_PLACE = re.compile(r"[^.\[\]]+(\[\])*(\.[^.\[\]]+(\[\])*)*")
_KEY_CHARACTERS = 16
_NOT_IN_NAMES = re.compile(r"[\s?\[\]{}!,;|&'\"<>=]")


class JudgedCall:
    """A call for the rules of a policy. A fact that several rules need is found once.

        rule = Rule("allow", tools=("pay_*",))
        assert rule.matches(JudgedCall("pay_invoice", {"euros": 5}, ToolContext()))

    Attributes:
        name: The name of its tool.
        arguments: Its arguments.
        context: Its context.
        tool: The tool for these arguments; `None` if it is unknown.
        facts: The facts about its session; `None` if they are unknown.
        answers: Whether a rule matches the call, by the `id` of its entry, as far as that was asked.
    """

    __slots__ = ("_lines", "_options", "answers", "arguments", "context", "facts", "name", "tool")

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        context: ToolContext,
        tool: Any = None,
        facts: SessionFacts | None = None,
    ) -> None:
        self.name = name
        self.facts = facts
        self.arguments = arguments
        self.context = context
        self.tool = tool
        self.answers: dict[int, bool | None] = {}
        self._lines: list[tuple[Place, Line]] | None = None
        self._options: dict[frozenset[str], list[str]] = {}

    def with_facts(self, facts: SessionFacts | None) -> JudgedCall:
        """Return the same call with these facts about its session, and without answers."""
        return JudgedCall(self.name, self.arguments, self.context, self.tool, facts)

    @property
    def lines(self) -> list[tuple[Place, Line]]:
        """The shell lines in the arguments, at any depth, each with its place."""
        if self._lines is None:
            self._lines = list(find_lines(self.arguments))
        return self._lines

    def find_options(self, lines: frozenset[str]) -> list[str]:
        """Return the places of all arguments that may change a shell line. `lines` are further places of lines."""
        found = self._options.get(lines)
        if found is None:
            hidden = getattr(getattr(self.context, "tool", None), "hidden", ())
            visible = {name: value for name, value in self.arguments.items() if name not in hidden}
            options = find_options(visible, lambda key, place: is_command_name(key) or join_place(place) in lines)
            found = self._options[lines] = list(map(join_place, options))
        return found


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision for some calls. See docs/policy.md#rules.

    Attributes:
        decide: `"allow"`, `"ask"` or `"deny"`.
        tools: Globs for the name of the tool. At least one must match.
        tags: Tags of the tool. It must have one of them, if there are any.
        traits: Traits of the tool for these arguments, such as `"destructive"` and `"not read_only"`. It must have all.
        principals: Globs for the principal. One must match, if there are any.
        arguments: Conditions by the place of the argument: `amount`, `order.amount`, `files[].path`.
        when: Conditions on the session and on the time.
        reason: The text for the model and the person.
        into: For an ask: the parameter that takes the person's answer.
        match, no_match: Examples of arguments.
        source: The name of its file.
        line: Its line in the file, from 1.
        scope: The scope of its file.
        text: The rule as text for a person.
    """

    decide: Decide
    tools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    arguments: Mapping[str, Condition] = field(default_factory=FrozenDict)
    when: When | None = None
    reason: str = ""
    into: str | None = None
    match: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    no_match: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    scope: Scope = field(default="managed", compare=False)
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.decide not in DECISIONS:
            raise DefinitionError(f'decide is "allow", "ask" or "deny", not {self.decide!r}')
        if not (self.tools or self.tags or self.traits or self.principals):
            raise DefinitionError('a rule needs tools, tags, traits or principals; tools = ["*"] covers every tool')
        for pattern in (*self.tools, *self.principals):
            check_glob(pattern)
        for pattern in (*self.principals, *self.tags):
            if pattern.strip().lower().startswith(("!", "not ")):
                raise DefinitionError(f"{pattern!r} does not mean all others: name those that the rule is about")
        for tag in self.tags:
            check_tag(tag)
        for pattern in self.tools:
            if _NOT_IN_NAMES.search(pattern):
                raise DefinitionError(f"{pattern!r} is not a pattern of tools: write one name; the only wildcard is *")
        _check_traits(self.traits)
        for place, one in self.arguments.items():
            if place == ANY_COMMAND and isinstance(one, Commands):
                continue
            if place == ANY_COMMAND or not _PLACE.fullmatch(place):
                raise DefinitionError(
                    f"{place!r} is not the place of an argument: write amount, order.amount or files[].path"
                )
        if self.decide != "allow" and any(isinstance(one, Commands) and one.within for one in self.arguments.values()):
            raise DefinitionError(
                'within beside commands is only for decide = "allow": it says where the commands may write'
            )
        if self.into is not None and self.decide != "ask":
            raise DefinitionError('into is only for decide = "ask": the person who is asked supplies the value')
        if self.when is not None:
            self.when.check_decision(self.decide)
        object.__setattr__(self, "text", self.text or self._describe())

    @property
    def name(self) -> str:
        """The position of the rule: `policy.toml:12`."""
        return f"{self.source}:{self.line}"

    @property
    def key(self) -> str:
        """The key of the rule in the marks of a session. It stays the same if only its numbers change."""
        per = "" if self.when is None else self.when.per or "session"
        return hash_parts(self._describe(with_when=False), per)[:_KEY_CHARACTERS]

    def _describe(self, *, with_when: bool = True) -> str:
        tools = ", ".join(self.tools) or "*"
        conditions = ", ".join(f"{place} {one.text}" for place, one in self.arguments.items())
        lists = {"tags": self.tags, "traits": self.traits, "principals": self.principals}
        more = "".join(f" with {key} {', '.join(names)}" for key, names in lists.items() if names)
        when = f" {self.when.text}" if self.when is not None and with_when else ""
        return f"{self.decide} {tools}{f'({conditions})' if conditions else ''}{more}{when}"

    def may_match_tool(self, tool: Any) -> bool:
        """Return whether the rule may match a call of this tool, by name, tags and traits."""
        return self._match_tool(tool.name, tool) is not False

    def matches(self, judged: JudgedCall) -> bool | None:
        """Return whether the rule matches this call, or None if that is unknown."""
        answer = self.match_call(judged)
        if answer is False or not self.arguments:
            return answer
        return every((answer, self.match_arguments(judged)))

    def match_call(self, judged: JudgedCall, *, counts: bool = True) -> bool | None:
        """Return whether tool, principal, session and time match, whatever the arguments.

        Args:
            counts: Whether the number of calls counts.
        """
        answer = self._match_tool(judged.name, judged.tool)
        if self.principals:
            answer = every((answer, self._match_principal(judged.context)))
        if self.when is None or answer is False:
            return answer
        allows = self.decide == "allow"
        return every((answer, self.when.matches(judged.facts, self.key, allows=allows, counts=counts)))

    def may_count(self, judged: JudgedCall) -> bool:
        """Return whether the rule counts this call, if it lets the call through."""
        if self.when is None or self.when.limit is None:
            return False
        return every((self.match_call(judged, counts=False), self.match_arguments(judged))) is not False

    def match_arguments(self, judged: JudgedCall, *, without_commands: bool = False) -> bool | None:
        """Return whether the conditions hold for the arguments, or all but those on shell lines."""
        allows = self.decide == "allow"
        answers = [
            match_place(one, place, judged, allows=allows)
            for place, one in self.arguments.items()
            if not (without_commands and isinstance(one, Commands))
        ]
        if allows and self.has_commands and self._find_unjudged_options(judged):
            answers.append(None)
        return every(answers, empty=True)

    @property
    def has_commands(self) -> bool:
        """Whether the rule has a condition on shell lines."""
        return any(isinstance(one, Commands) for one in self.arguments.values())

    def _find_unjudged_options(self, judged: JudgedCall) -> list[str]:
        """Return the arguments without a condition that may change the commands of a shell line."""
        lines = frozenset(place.rstrip("[]") for place, one in self.arguments.items() if isinstance(one, Commands))
        return [place for place in judged.find_options(lines) if place not in self.arguments]

    def _match_tool(self, name: str, tool: Any) -> bool | None:
        if (
            self.tools
            and not self._has_name(name)
            and not (self.decide != "allow" and any(map(self._has_name, list_mounted_names(tool))))
        ):
            return False
        if not (self.tags or self.traits):
            return True
        if tool is None:
            return None
        if self.tags and not any(tag in self.tags for tag in tool.tags):
            return False
        return every((_has_trait(tool, trait) for trait in self.traits), empty=True)

    def _has_name(self, name: str) -> bool:
        return any(matches_glob(glob, name) for glob in self.tools)

    def _match_principal(self, context: ToolContext) -> bool | None:
        """Return whether the principal matches, or None if it is missing or only looks like a match."""
        principal = context.principal
        if principal is None or not principal.strip():
            return None
        if any(matches_glob(glob, principal) for glob in self.principals):
            return True
        key = lookalike_key(principal)
        return None if any(matches_glob(lookalike_key(glob), key) for glob in self.principals) else False

    def covers(self, other: Rule) -> bool:
        """Return whether this rule matches every call that `other` matches. False is also possible if it does."""
        if self.decide == "allow" and self.has_commands and other.arguments.keys() - self.arguments.keys():
            return False  # its extra condition allows an argument beside the command, and this rule does not
        return (
            _cover_all(self.tools, other.tools)
            and _cover_all(self.principals, other.principals)
            and self.when in (None, other.when)
            and (not self.tags or (other.tags != () and set(other.tags) <= set(self.tags)))
            and set(self.traits) <= set(other.traits)
            and all(
                place in other.arguments and one.covers(other.arguments[place]) for place, one in self.arguments.items()
            )
        )


def list_mounted_names(tool: Any) -> list[str]:
    """Return the names of a tool in the runners it was mounted from by `Runner.as_tools`.

    An ask or a deny for one of these names applies under every mounted name.
    """
    return [mount.name for mount in getattr(getattr(tool, "definition", tool), "mounts", ())]


def _cover_all(globs: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether each of the others is covered by one of the globs. No globs at all match any name."""
    if not globs or globs == others:
        return True
    return bool(others) and all(any(matches_glob(glob, other) for glob in globs) for other in others)


def _check_traits(traits: Iterable[str]) -> None:
    wanted = set(traits)
    for trait in wanted:
        plain = trait.removeprefix("not ")
        if plain not in JUDGED_TRAITS:
            raise DefinitionError(
                f'{trait!r} is not a trait: write one of {", ".join(JUDGED_TRAITS)}, also with "not " before it'
            )
        if plain != trait and plain in wanted:
            raise DefinitionError(f"no tool is {plain} and {trait}, so this can never match")


def _has_trait(tool: Any, trait: str) -> bool | None:
    """Return whether a tool has a trait, or None if that depends on unknown arguments."""
    plain = trait.removeprefix("not ")
    value = getattr(tool, plain)
    return value is (plain == trait) if isinstance(value, bool) else None


# -- at a place --------------------------------------------------------------------------------------------------------


def match_place(one: Condition, place: str, judged: JudgedCall, *, allows: bool) -> bool | None:
    """Return the answer of a condition for the values at a place: all of them for an allow, otherwise any.

    A missing, null or empty value does not match.
    """
    arguments, context = judged.arguments, judged.context
    keys = split_place(place)
    if len(keys) == 1 and not isinstance(one, Commands):
        value = arguments.get(place)
        return one.matches(value, context) if allows else one.has_match(value, context)
    together = every if allows else some
    if isinstance(one, Commands):
        if place == ANY_COMMAND:
            return one.match_lines([line for _, line in judged.lines], context, allows=allows)
        return _match_below(
            arguments,
            keys,
            lambda *found: one.match_lines(read_lines(*found), context, allows=allows),
            together,
        )
    test = one.matches if allows else one.has_match
    return _match_below(arguments, keys, lambda name, value, beside: test(value, context), together)


@lru_cache(maxsize=1024)
def split_place(place: str) -> tuple[str, ...]:
    """Return the keys on the way to a place, with `[]` for each list."""
    return tuple(place.replace("[]", ".[]").split("."))


def join_place(keys: Iterable[str | int]) -> str:
    """Return the place at the end of these keys in the form of a rule: `files[].path`."""
    return "".join("[]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def _match_below(
    value: Any,
    parts: Sequence[str],
    test: Callable[[str, Any, Mapping[str, Any]], bool | None],
    together: Callable[[Iterable[bool | None]], bool | None],
    name: str = "",
    beside: Mapping[str, Any] = FrozenDict(),
) -> bool | None:
    if value is None:
        return False
    if not parts:
        return test(name, value, beside)
    part, *others = parts
    if part == "[]":
        if not isinstance(value, list | tuple):
            return None
        around = {key: one for key, one in beside.items() if key != name}
        return together(_match_below(item, others, test, together, "", around) for item in value)
    if not isinstance(value, Mapping):
        return None
    try:
        item = value[part]
    except KeyError:
        return False
    return _match_below(item, others, test, together, part, value)
