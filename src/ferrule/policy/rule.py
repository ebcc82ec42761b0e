"""A rule: of which calls it speaks, in three ways: it does, it does not, it cannot be known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.policy.conditions import Commands, Condition, check_glob, check_tag, every, fits, some
from ferrule.security.command_arguments import is_command_name, lines_in, lines_of, options_in
from ferrule.security.similar_names import lookalike_key
from ferrule.values.call import ToolCall
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.frozen import FrozenDict

Decide: TypeAlias = Literal["allow", "ask", "deny"]
Scope: TypeAlias = Literal["managed", "user", "project", "session"]
DECIDES: Final = ("deny", "ask", "allow")
ANY_COMMAND: Final = "(command)"
"""The place of a condition on all that has the name of a shell line, at any depth of the arguments."""
_PLACE = re.compile(r"[^.\[\]]+(\[\])*(\.[^.\[\]]+(\[\])*)*")
_NOT_IN_NAMES = re.compile(r"[\s?\[\]{}!,;|&'\"<>=]")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a policy says of some calls. See docs/policy.md#rules.

    Attributes:
        decide: `"allow"`, `"ask"` or `"deny"`.
        tools: Globs, of which one has to fit the name of the tool.
        tags: Of which the tool has one, where any are given.
        traits: All of which the tool has for these arguments, such as `"destructive"` and `"not read_only"`.
        principals: Globs, of which one has to fit, where any are given.
        arguments: Conditions by the place of the argument: `amount`, `order.amount`, `files[].path`.
        reason: What the model and the person read.
        into: For an ask: the parameter whose value the person supplies.
        match, no_match: Examples of arguments.
        source: The name of its file.
        line: Of its file, from 1.
        scope: Of its file.
        text: As a person reads it.
    """

    decide: Decide
    tools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    arguments: Mapping[str, Condition] = field(default_factory=FrozenDict)
    reason: str = ""
    into: str | None = None
    match: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    no_match: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)
    source: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    scope: Scope = field(default="managed", compare=False)
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.decide not in DECIDES:
            raise DefinitionError(f'decide is "allow", "ask" or "deny", not {self.decide!r}')
        if not (self.tools or self.tags or self.traits or self.principals):
            raise DefinitionError(
                'a rule says of which calls it speaks, by tools, tags, traits or principals; tools = ["*"] are all'
            )
        for pattern in (*self.tools, *self.principals):
            check_glob(pattern)
        for tag in self.tags:
            check_tag(tag)
        for pattern in self.tools:
            if _NOT_IN_NAMES.search(pattern):
                raise DefinitionError(f"{pattern!r} is no pattern of tools: write one name; * is the one wildcard")
        _check_traits(self.traits)
        for place, one in self.arguments.items():
            if place == ANY_COMMAND and isinstance(one, Commands):
                continue
            if place == ANY_COMMAND or not _PLACE.fullmatch(place):
                raise DefinitionError(f"{place!r} names no argument: write amount, order.amount or files[].path")
        if self.decide != "allow" and any(isinstance(one, Commands) and one.within for one in self.arguments.values()):
            raise DefinitionError('within beside commands says where an allow may write; it is for decide = "allow"')
        if self.into is not None and self.decide != "ask":
            raise DefinitionError('into is for decide = "ask": who is asked supplies the value')
        object.__setattr__(self, "text", self.text or self._described())

    @property
    def name(self) -> str:
        """Where it stands: `policy.toml:12`."""
        return f"{self.source}:{self.line}"

    def _described(self) -> str:
        tools = ", ".join(self.tools) or "*"
        given = [f"{place} {one.text}" for place, one in self.arguments.items()]
        more = [f"{key} {', '.join(names)}" for key, names in self._besides().items() if names]
        arguments = f"({', '.join(given)})" if given else ""
        return f"{self.decide} {tools}{arguments}" + "".join(f" with {one}" for one in more)

    def _besides(self) -> dict[str, tuple[str, ...]]:
        return {"tags": self.tags, "traits": self.traits, "principals": self.principals}

    def speaks_of(self, tool: Any) -> bool:
        """Whether there may be a call of this tool of which it speaks, by name, tags and traits."""
        return self._of_tool(tool.name, tool) is not False

    def matches(self, call: ToolCall, context: ToolContext, tool: Any) -> bool | None:
        """Whether it speaks of this call.

        Args:
            tool: What the tool is for these arguments; `None` where that is not known.
        """
        answer = self.of_call(call, context, tool)
        if answer is False or not self.arguments:
            return answer
        return every((answer, self.of_arguments(call.arguments, context)))

    def of_call(self, call: ToolCall, context: ToolContext, tool: Any) -> bool | None:
        """Whether tool and principal are such, whatever the arguments."""
        answer = self._of_tool(call.name, tool)
        return every((answer, self._of_principal(context))) if self.principals else answer

    def of_arguments(
        self, arguments: Mapping[str, Any], context: ToolContext, leave_out: Callable[[Condition], bool] | None = None
    ) -> bool | None:
        """Whether its conditions hold for these arguments; those left out are taken to hold."""
        answers = [
            of_place(one, place, arguments, context, allows=self.decide == "allow")
            for place, one in self.arguments.items()
            if leave_out is None or not leave_out(one)
        ]
        if self.decide == "allow" and self.has_commands and self._unjudged_options(arguments, context):
            answers.append(None)
        return every(answers, empty=True)

    @property
    def has_commands(self) -> bool:
        """Whether it speaks of shell lines."""
        return any(isinstance(one, Commands) for one in self.arguments.values())

    def _unjudged_options(self, arguments: Mapping[str, Any], context: ToolContext) -> list[str]:
        """The arguments that may change what a shell line runs, and for which the rule has no condition."""
        hidden = getattr(getattr(context, "tool", None), "hidden", ())
        given = {name: value for name, value in arguments.items() if name not in hidden}
        lines = {place.rstrip("[]") for place, one in self.arguments.items() if isinstance(one, Commands)}
        options = options_in(given, lambda key, place: is_command_name(key) or place_of(place) in lines)
        return [place for place in map(place_of, options) if place not in self.arguments]

    def _of_tool(self, name: str, tool: Any) -> bool | None:
        if (
            self.tools
            and not self._names(name)
            and not (self.decide != "allow" and any(map(self._names, names_where_mounted_from(tool))))
        ):
            return False
        if not (self.tags or self.traits):
            return True
        if tool is None:
            return None
        if self.tags and not any(tag in self.tags for tag in tool.tags):
            return False
        return every((_has_trait(tool, trait) for trait in self.traits), empty=True)

    def _names(self, name: str) -> bool:
        return any(fits(glob, name) for glob in self.tools)

    def _of_principal(self, context: ToolContext) -> bool | None:
        """Whether it is one of them; a name that looks like one of them may be that one, written otherwise."""
        who = context.principal
        if who is None or not who.strip():
            return None
        if any(fits(glob, who) for glob in self.principals):
            return True
        seen = lookalike_key(who)
        return None if any(fits(lookalike_key(glob), seen) for glob in self.principals) else False

    def covers(self, other: Rule) -> bool:
        """Whether it matches whatever `other` matches. May be false where it does."""
        if self.decide == "allow" and self.has_commands and other.arguments.keys() - self.arguments.keys():
            return False  # a further condition lets through an argument beside the command that this rule does not
        return (
            _cover_all(self.tools, other.tools)
            and _cover_all(self.principals, other.principals)
            and (not self.tags or (other.tags != () and set(other.tags) <= set(self.tags)))
            and set(self.traits) <= set(other.traits)
            and all(
                place in other.arguments and one.covers(other.arguments[place]) for place, one in self.arguments.items()
            )
        )


def names_where_mounted_from(tool: Any) -> list[str]:
    """The names that a tool has in the runners that it was mounted from by `Runner.as_tools`: an ask or a deny by one
    of these holds under whatever name it is mounted."""
    return [mount.name for mount in getattr(getattr(tool, "definition", tool), "mounts", ())]


def _cover_all(globs: Sequence[str], others: Sequence[str]) -> bool:
    """Whether one of the globs fits whatever one of the others does; none of them is any name."""
    if not globs or globs == others:
        return True
    return bool(others) and all(any(fits(glob, other) for glob in globs) for other in others)


def _check_traits(traits: Iterable[str]) -> None:
    given = set(traits)
    for trait in given:
        plain = trait.removeprefix("not ")
        if plain not in JUDGED_TRAITS:
            raise DefinitionError(
                f'{trait!r} is no trait: there are {", ".join(JUDGED_TRAITS)}, each also after "not "'
            )
        if plain != trait and plain in given:
            raise DefinitionError(f"no tool is {plain} and {trait}, so this can never match")


def _has_trait(tool: Any, trait: str) -> bool | None:
    """Whether a tool has a trait; not known where that depends on arguments which are not known."""
    plain = trait.removeprefix("not ")
    value = getattr(tool, plain)
    return value is (plain == trait) if isinstance(value, bool) else None


# -- at a place --------------------------------------------------------------------------------------------------------


def of_place(
    one: Condition, place: str, arguments: Mapping[str, Any], context: ToolContext, *, allows: bool
) -> bool | None:
    """What a condition answers of the values at a place: for an allow of all of them, else of any. What is not there,
    null, or empty is not so."""
    together = every if allows else some
    if isinstance(one, Commands):
        if place == ANY_COMMAND:
            return one.of_lines([line for _, line in lines_in(arguments)], context, allows=allows)
        return _at(
            arguments, parts_of(place), lambda *found: one.of_lines(lines_of(*found), context, allows=allows), together
        )
    test = one.matches if allows else one.found
    return _at(arguments, parts_of(place), lambda name, value, beside: test(value, context), together)


def parts_of(place: str) -> list[str]:
    """The keys that lead to a place, and `[]` for each list."""
    return place.replace("[]", ".[]").split(".")


def place_of(keys: Iterable[str | int]) -> str:
    """The place that these keys lead to, as a rule writes it: `files[].path`."""
    return "".join("[]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def _at(
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
        return together(_at(item, others, test, together, "", around) for item in value)
    if not isinstance(value, Mapping):
        return None
    try:
        item = value[part]
    except KeyError:
        return False
    return _at(item, others, test, together, part, value)
