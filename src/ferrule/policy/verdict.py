"""The verdict of many rules. Their order makes no difference.

    any deny that matches                                           deny
    else any ask that matches, any deny or ask that may match       ask
    else any allow that matches                                     allow
    else                                                            ask; nothing for a read-only call

The modes apply on top: `read_only` allows only reads, and `never_ask` turns an ask into a deny. No other code decides
about the unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.policy.conditions import Commands, every
from ferrule.policy.rule import ANY_COMMAND, Rule, match_place
from ferrule.security.command_arguments import find_lines
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny

Mode: TypeAlias = Literal["ask", "read_only", "never_ask"]
MODES: Final = ("ask", "read_only", "never_ask")
_MAX_REASONS = 5
_HIDDEN_REASON = "the policy has a rule for this call"


class PolicyDecision(NamedTuple):
    """The decision of a policy on a call, with the answer of each rule. See docs/policy.md#explained."""

    decision: Decision | None
    """`None` for no objection to a read-only call."""
    answers: tuple[tuple[Rule, bool | None], ...]
    """Each rule, in order, and whether it matches the call; `None` if that is unknown."""

    joint_rules: tuple[Rule, ...] = ()
    """Rules that together allow a shell line. Each allows some of its commands, and none allows all."""

    @property
    def deciding_rules(self) -> tuple[Rule, ...]:
        """The rules behind the decision, if any."""
        names = () if self.decision is None else str(self.decision.rule).split("; ")
        allows = self.decision is not None and self.decision.kind == "allow"
        matching = (rule for rule, answer in self.answers if answer or (answer is None and not allows))
        return self.joint_rules or tuple(
            rule for rule in matching if rule.name in names and (rule.decide == "allow") is allows
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule with its relation to one tool.

    Attributes:
        problem: The reason why its match for this tool is unknown; empty if it can be known.
        is_hidden: Whether it has a condition on a hidden value. Its text is not shown then.
    """

    rule: Rule
    problem: str = ""
    is_hidden: bool = False
    decision: Decision = field(init=False)
    """Its decision if it matches."""

    def __post_init__(self) -> None:
        rule = self.rule
        reason = rule.reason or (_HIDDEN_REASON if self.is_hidden else f"the policy says: {rule.text}")
        object.__setattr__(self, "decision", Decision(rule.decide, reason, into=rule.into, rule=rule.name))

    @property
    def unknown_text(self) -> str:
        """The text about this rule if its match is unknown."""
        which = self.rule.reason or ("a rule of the policy" if self.is_hidden else self.rule.text)
        return f"{which} ({self.problem})" if self.problem else which

    def match(self, call: ToolCall, context: ToolContext, tool: Any) -> bool | None:
        return None if self.problem else self.rule.matches(call, context, tool)


class ToolRules(NamedTuple):
    """The rules that may match calls of one tool."""

    deny: tuple[Entry, ...]
    ask: tuple[Entry, ...]
    allow: tuple[Entry, ...]

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ToolRules:
        listed = list(entries)
        return cls(*(tuple(entry for entry in listed if entry.rule.decide == kind) for kind in cls._fields))

    def verdict(self, call: ToolCall, context: ToolContext, tool: Any, modes: Mapping[Mode, str]) -> Decision | None:
        """Return the decision of all rules, or None for a read-only call without a rule.

        Args:
            tool: The tool for these arguments.
            modes: The modes of the files, each with its position.
        """
        decision = self._apply_rules(call, context, tool)
        is_read_only = tool is not None and tool.read_only is True
        if decision is not None and decision.kind == "deny":
            return decision
        if "read_only" in modes and not is_read_only:
            return deny("the policy allows only reading, and this call changes things", rule=modes["read_only"])
        if decision is None and not is_read_only:
            decision = ask(f"{_quote_name(call.name)} changes things, and no rule of the policy allows it")
        if decision is not None and decision.kind == "ask" and "never_ask" in modes:
            rule = decision.rule or modes["never_ask"]
            return deny(f"{decision.reason}; the policy never asks a person", rule=rule)
        return decision

    def _apply_rules(self, call: ToolCall, context: ToolContext, tool: Any) -> Decision | None:
        asks: list[Decision] = []
        unknown: list[Entry] = []
        for entry in self.deny:
            answer = entry.match(call, context, tool)
            if answer:
                return entry.decision
            if answer is None:
                unknown.append(entry)
        for entry in self.ask:
            answer = entry.match(call, context, tool)
            if answer is None:
                unknown.append(entry)
            elif answer:
                asks.append(entry.decision)
        if unknown:
            asks.append(_ask_about_unknown(unknown, _find_doubt(unknown, call, tool)))
        if asks:
            return _join_asks(asks)
        return self._find_allow(call, context, tool)

    def _find_allow(self, call: ToolCall, context: ToolContext, tool: Any) -> Decision | None:
        for entry in self.allow:
            if entry.match(call, context, tool):
                return entry.decision
        joint = self.find_joint_allows(call, context, tool)
        if not joint:
            return None
        rules = dict.fromkeys(entry.rule.name for entry in joint)
        texts = "; ".join(entry.rule.reason or entry.rule.text for entry in joint)
        reason = _HIDDEN_REASON if any(entry.is_hidden for entry in joint) else f"the policy says: {texts}"
        return Decision("allow", reason, rule="; ".join(rules))

    def find_joint_allows(self, call: ToolCall, context: ToolContext, tool: Any) -> list[Entry]:
        """Return the allow rules that together allow a shell line.

        Each allows some of its commands, and its other conditions hold.
        """
        groups: dict[frozenset[str], list[Entry]] = {}
        for entry in self.allow:
            places = _find_commands(entry.rule, call) if entry.rule.has_commands else {}
            if places and not entry.problem and _holds_but_for_commands(entry.rule, call, context, tool):
                groups.setdefault(frozenset(places), []).append(entry)
        for places_of_group, group in groups.items():
            if len(group) > 1 and _allow_jointly([entry.rule for entry in group], places_of_group, call, context):
                return [entry for entry in group if _has_any_match(entry.rule, call, context)]
        return []


def _quote_name(name: str) -> str:
    return name if name.isidentifier() else repr(name[:100])


def _ask_about_unknown(entries: Sequence[Entry], doubt: str) -> Decision:
    """Return the question for rules with an unknown match."""
    reason = f"it is unknown whether this applies: {_format_reasons(entry.unknown_text for entry in entries)}"
    rule = _format_rule_names(entry.decision for entry in entries)
    return ask(f"{reason}; unknown is {doubt}" if doubt else reason, rule=rule)


def _find_doubt(entries: Sequence[Entry], call: ToolCall, tool: Any) -> str:
    """Return the unknown part of a shell line that the model may see, or "" if something else is unknown."""
    hidden = getattr(tool, "hidden", ())
    lines = [line for place, line in find_lines(call.arguments) if place[0] not in hidden]
    conditions = [one for entry in entries for one in entry.rule.arguments.values() if isinstance(one, Commands)]
    texts = (one.find_unknown_part(line) for one in conditions for line in lines)
    return next(filter(None, texts), "")


def _format_rule_names(decisions: Iterable[Decision]) -> str:
    """Return the positions of the first five rules, each once."""
    return "; ".join(dict.fromkeys(str(one.rule) for one in [*decisions][:_MAX_REASONS]))


def _format_reasons(reasons: Iterable[str]) -> str:
    """Return the reasons, each once, and the number of further ones."""
    listed = list(dict.fromkeys(reasons))
    more = len(listed) - _MAX_REASONS
    return "; ".join(listed[:_MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _join_asks(asks: Sequence[Decision]) -> Decision:
    """Return one question for several. The person sees all reasons."""
    if len(asks) == 1:
        return asks[0]
    text = _format_reasons(one.reason for one in asks)
    into = next((one.into for one in asks if one.into), None)
    return ask(text, into=into, rule=_format_rule_names(asks))


def _allow_jointly(rules: Iterable[Rule], places: Iterable[str], call: ToolCall, context: ToolContext) -> bool:
    merged = {place: Commands.merge([_find_commands(rule, call)[place] for rule in rules]) for place in places}
    answers = (match_place(one, place, call.arguments, context, allows=True) for place, one in merged.items())
    return every(answers) is True


def _holds_but_for_commands(rule: Rule, call: ToolCall, context: ToolContext, tool: Any) -> bool:
    is_match = rule.match_call(call, context, tool) is True
    return is_match and rule.match_arguments(call.arguments, context, without_commands=True) is True


def _find_commands(rule: Rule, call: ToolCall) -> dict[str, Commands]:
    """Return the shell-line conditions of a rule by place.

    A condition on any command belongs to the one place of shell lines, if there is one only and it is a top-level
    parameter.
    """
    places = {place for place, _ in find_lines(call.arguments)}
    only = str(min(places)[0]) if len(places) == 1 and {len(place) for place in places} == {1} else ANY_COMMAND
    conditions = ((place, one) for place, one in rule.arguments.items() if isinstance(one, Commands))
    return {only if place == ANY_COMMAND else place: one for place, one in conditions}


def _has_any_match(rule: Rule, call: ToolCall, context: ToolContext) -> bool:
    """Return whether any command of the line may be one of the rule's."""
    parts = _find_commands(rule, call).items()
    return any(match_place(one, place, call.arguments, context, allows=False) is not False for place, one in parts)
