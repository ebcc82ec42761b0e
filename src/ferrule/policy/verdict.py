"""The verdict of many rules. Their order makes no difference.

    any deny that matches                                           deny
    else any ask that matches, any deny or ask that may match       ask
    else any allow that matches                                     allow
    else                                                            ask; nothing for a read-only call

Inside a sandbox, with `sandboxed = "allow"`, a rule about commands that may match does not ask: the sandbox is the
boundary, and the rules are for convenience.

The modes apply on top: `read_only` allows only reads, and `never_ask` turns an ask into a deny. No other code decides
about the unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.policy.conditions import TYPES, Commands, OneOf, every, find_type
from ferrule.policy.rule import ANY_COMMAND, JudgedCall, Rule, match_place, split_place
from ferrule.values.decision import Decision, ask, deny

Mode: TypeAlias = Literal["ask", "read_only", "never_ask"]
MODES: Final = ("ask", "read_only", "never_ask")
_MAX_REASONS = 5
_PLAIN_TYPES: Final = frozenset({str, int, float, bool})
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
        certain_name: The tool's name, if the rule matches each call of this name whose arguments match.
    """

    rule: Rule
    problem: str = ""
    is_hidden: bool = False
    certain_name: str | None = None
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

    def match(self, judged: JudgedCall) -> bool | None:
        """Return whether the rule matches the call, or None if that is unknown. The call remembers the answer."""
        key = id(self)
        if key not in judged.answers:
            judged.answers[key] = self._match(judged)
        return judged.answers[key]

    def _match(self, judged: JudgedCall) -> bool | None:
        if self.problem:
            return None
        if self.certain_name == judged.name:
            return self.rule.match_arguments(judged)
        return self.rule.matches(judged)


class EntryIndex:
    """Entries with the same decision, found by the values that a call has.

    A rule with `equals` or `one_of` on a parameter cannot match a call with another value of the same type, or without
    one. Only the other rules are tried, so the number of rules hardly counts.

    Attributes:
        needs_facts: Whether an entry looks at the session or at the time.
        needs_marks: Whether an entry looks at the session.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)
        whens = [entry.rule.when for entry in self.entries if entry.rule.when is not None]
        self.needs_facts = bool(whens)
        self.needs_marks = any(when.needs_marks for when in whens)
        self._others: list[int] = []
        self._equal: dict[str, dict[tuple[str, Any], list[int]]] = {}
        self._other_types: dict[str, dict[str, list[int]]] = {}
        for number, entry in enumerate(self.entries):
            place, values = _find_literals(entry)
            if place is None:
                self._others.append(number)
                continue
            types = {find_type(value) for value in values}
            equal = self._equal.setdefault(place, {})
            for key in {(find_type(value), value) for value in values}:
                equal.setdefault(key, []).append(number)
            other_types = self._other_types.setdefault(place, {})
            for other in TYPES - types:
                other_types.setdefault(other, []).append(number)

    def find(self, arguments: Mapping[str, Any]) -> Sequence[Entry]:
        """Return the entries that may match a call with these arguments, in their order."""
        if not self._equal:
            return self.entries
        found = [*self._others]
        for place, equal in self._equal.items():
            value = arguments.get(place)
            if value is None:
                continue
            kind = find_type(value)
            found += self._other_types[place].get(kind, ())
            if type(value) in _PLAIN_TYPES:
                found += equal.get((kind, value), ())
            else:  # an object of another class may be equal to a text and have another hash
                found += (number for numbers in equal.values() for number in numbers)
        return [self.entries[number] for number in sorted(set(found))]


def _find_literals(entry: Entry) -> tuple[str | None, tuple[Any, ...]]:
    """Return a parameter for which the rule lists the values, with these values; `(None, ())` if there is none."""
    for place, one in entry.rule.arguments.items():
        if isinstance(one, OneOf) and not entry.problem and len(split_place(place)) == 1:
            return place, one.values
    return None, ()


class ToolRules(NamedTuple):
    """The rules that may match calls of one tool."""

    deny: EntryIndex
    ask: EntryIndex
    allow: EntryIndex

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> ToolRules:
        listed = list(entries)
        return cls(*(EntryIndex(entry for entry in listed if entry.rule.decide == kind) for kind in cls._fields))

    def find_answers(self, judged: JudgedCall) -> dict[int, bool | None]:
        """Return the answers of the rules that may match a call, by `id`; no other rule matches it."""
        return {id(entry.rule): entry.match(judged) for index in self for entry in index.find(judged.arguments)}

    def verdict(self, judged: JudgedCall, modes: Mapping[Mode, str]) -> Decision | None:
        """Return the decision of all rules, or None for a call without a rule that changes nothing itself.

        Args:
            modes: The modes of the files, each with its position.
        """
        decision = self._apply_rules(judged)
        is_read_only = judged.tool is not None and (judged.tool.read_only is True or judged.tool.recorded is True)
        if decision is not None and decision.kind == "deny":
            return decision
        if "read_only" in modes and not is_read_only:
            return deny("the policy allows only reading, and this call changes things", rule=modes["read_only"])
        if decision is None and not is_read_only:
            decision = ask(f"{_quote_name(judged.name)} changes things, and no rule of the policy allows it")
        if decision is not None and decision.kind == "ask" and "never_ask" in modes:
            rule = decision.rule or modes["never_ask"]
            return deny(f"{decision.reason}; the policy never asks a person", rule=rule)
        return decision

    def denies_tool(self, judged: JudgedCall, modes: Mapping[Mode, str]) -> bool:
        """Return whether the rules deny each call of the tool, whatever the arguments. `judged` has none."""
        changes = judged.tool.read_only is False and not judged.tool.recorded
        if "read_only" in modes and changes:
            return True
        never_asks = "never_ask" in modes
        entries = (*self.deny.entries, *(self.ask.entries if never_asks else ()))
        if any(entry.match(judged) for entry in entries if not entry.rule.arguments):
            return True
        allows = (entry.rule for entry in self.allow.entries if not entry.problem)
        return never_asks and changes and all(rule.match_call(judged) is False for rule in allows)

    def find_counting_rules(self, judged: JudgedCall, decision: Decision | None) -> list[Rule]:
        """Return the rules that count a call with this decision.

        An allow counts if it decides. An ask or a deny counts each call that it might stop later.
        """
        if decision is not None and decision.kind == "deny":
            return []
        names = () if decision is None or decision.kind == "ask" else str(decision.rule).split("; ")
        allows = [one for one in self.allow.find(judged.arguments) if one.rule.name in names and one.match(judged)]
        others = [*self.deny.find(judged.arguments), *self.ask.find(judged.arguments)]
        return [one.rule for one in (*allows, *others) if not one.problem and one.rule.may_count(judged)]

    def _apply_rules(self, judged: JudgedCall) -> Decision | None:
        asks: list[Decision] = []
        unknown: list[Entry] = []
        for entry in self.deny.find(judged.arguments):
            answer = entry.match(judged)
            if answer:
                return entry.decision
            if answer is None:
                unknown.append(entry)
        for entry in self.ask.find(judged.arguments):
            answer = entry.match(judged)
            if answer is None:
                unknown.append(entry)
            elif answer:
                asks.append(entry.decision)
        if unknown and self._allows_sandboxed(judged):
            unknown = [entry for entry in unknown if not _is_doubt_about_line(entry, judged)]
        if unknown:
            asks.append(_ask_about_unknown(unknown, _find_doubt(unknown, judged)))
        if asks:
            return _join_asks(asks)
        return self._find_allow(judged)

    def _allows_sandboxed(self, judged: JudgedCall) -> bool:
        """Return whether the policy allows what a sandbox contains, and one contains this call."""
        return any("sandboxed" in entry.rule.traits and entry.match(judged) for entry in self.allow.entries)

    def _find_allow(self, judged: JudgedCall) -> Decision | None:
        for entry in self.allow.find(judged.arguments):
            if entry.match(judged):
                return entry.decision
        joint = self.find_joint_allows(judged)
        if not joint:
            return None
        rules = dict.fromkeys(entry.rule.name for entry in joint)
        texts = "; ".join(entry.rule.reason or entry.rule.text for entry in joint)
        reason = _HIDDEN_REASON if any(entry.is_hidden for entry in joint) else f"the policy says: {texts}"
        return Decision("allow", reason, rule="; ".join(rules))

    def find_joint_allows(self, judged: JudgedCall) -> list[Entry]:
        """Return the allow rules that together allow a shell line.

        Each allows some of its commands, and its other conditions hold.
        """
        groups: dict[frozenset[str], list[Entry]] = {}
        for entry in self.allow.find(judged.arguments):
            places = _find_commands(entry.rule, judged) if entry.rule.has_commands else {}
            if places and not entry.problem and _holds_but_for_commands(entry.rule, judged):
                groups.setdefault(frozenset(places), []).append(entry)
        for places_of_group, group in groups.items():
            if len(group) > 1 and _allow_jointly([entry.rule for entry in group], places_of_group, judged):
                return [entry for entry in group if _has_any_match(entry.rule, judged)]
        return []


def _is_doubt_about_line(entry: Entry, judged: JudgedCall) -> bool:
    """Return whether only a shell line makes the match of a rule unknown. Inside a sandbox, that asks nobody."""
    return entry.rule.has_commands and not entry.problem and _holds_but_for_commands(entry.rule, judged)


def _quote_name(name: str) -> str:
    return name if name.isidentifier() else repr(name[:100])


def _ask_about_unknown(entries: Sequence[Entry], doubt: str) -> Decision:
    """Return the question for rules with an unknown match."""
    reason = f"it is unknown whether this applies: {_format_reasons(entry.unknown_text for entry in entries)}"
    rule = _format_rule_names(entry.decision for entry in entries)
    return ask(f"{reason}; unknown is {doubt}" if doubt else reason, rule=rule)


def _find_doubt(entries: Sequence[Entry], judged: JudgedCall) -> str:
    """Return the unknown part of a shell line that the model may see, or "" if something else is unknown."""
    hidden = getattr(judged.tool, "hidden", ())
    lines = [line for place, line in judged.lines if place[0] not in hidden]
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


def _allow_jointly(rules: Iterable[Rule], places: Iterable[str], judged: JudgedCall) -> bool:
    merged = {place: Commands.merge([_find_commands(rule, judged)[place] for rule in rules]) for place in places}
    return every(match_place(one, place, judged, allows=True) for place, one in merged.items()) is True


def _holds_but_for_commands(rule: Rule, judged: JudgedCall) -> bool:
    return rule.match_call(judged) is True and rule.match_arguments(judged, without_commands=True) is True


def _find_commands(rule: Rule, judged: JudgedCall) -> dict[str, Commands]:
    """Return the shell-line conditions of a rule by place.

    A condition on any command belongs to the one place of shell lines, if there is one only and it is a top-level
    parameter.
    """
    places = {place for place, _ in judged.lines}
    only = str(min(places)[0]) if len(places) == 1 and {len(place) for place in places} == {1} else ANY_COMMAND
    conditions = ((place, one) for place, one in rule.arguments.items() if isinstance(one, Commands))
    return {only if place == ANY_COMMAND else place: one for place, one in conditions}


def _has_any_match(rule: Rule, judged: JudgedCall) -> bool:
    """Return whether any command of the line may be one of the rule's."""
    parts = _find_commands(rule, judged).items()
    return any(match_place(one, place, judged, allows=False) is not False for place, one in parts)
