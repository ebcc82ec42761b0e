"""Find errors in rules: beside each other, beside their examples, and beside the loaded tools."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ferrule.policy.conditions import Commands, Condition, OneOf, Range, matches_glob, suggest_name
from ferrule.policy.kinds import explain_wrong_kind
from ferrule.policy.reading import SHORT_FORMS, Finding, Level
from ferrule.policy.rule import ANY_COMMAND, JudgedCall, Rule, list_mounted_names, split_place
from ferrule.security.command_arguments import is_command_name
from ferrule.security.schema_walk import declared_properties, find_forms, item_schemas, prefix_items, property_schemas
from ferrule.values.context import ToolContext

_EMPTY_CONTEXT = ToolContext[Any]()
_RANKS = {"allow": 0, "ask": 1, "deny": 2}
_TYPES_OF_VALUE: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    str: ("string",),
    int: ("integer", "number"),
    float: ("integer", "number"),
}
SERVED = ("resource:", "prompt:")
"""The beginnings of the names under which rules judge what a program serves besides its tools."""
_MAX_NAMES = 4
_MIN_MISSPELLED_LENGTH = 5
_COMBINES = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def make_finding(level: Level, rule: Rule, text: str) -> Finding:
    """Return a finding about a rule, with its file and line."""
    return Finding(level, rule.source, rule.line, text)


# -- examples ----------------------------------------------------------------------------------------------------------


def check_examples(rule: Rule) -> Iterator[Finding]:
    """Yield an error for each example of a rule that does not hold."""
    for wanted, examples in ((True, rule.match), (False, rule.no_match)):
        for example in examples:
            answer = _match_example(rule, example)
            if answer is not wanted:
                actual = {True: "it matches", False: "it does not match", None: "whether it matches is unknown"}
                key = "match" if wanted else "no_match"
                yield make_finding("error", rule, f"{key} = {dict(example)!r:.200} is wrong: {actual[answer]}")


def _match_example(rule: Rule, example: Mapping[str, Any]) -> bool | None:
    """Return whether the tools and conditions of a rule match an example, or None if that is unknown.

    The key `tool` in an example is the name of the tool, unless the rule names exactly one tool.
    """
    if len(rule.tools) != 1 or "*" in rule.tools[0]:
        name = example.get("tool")
        if rule.tools and name is not None and not any(matches_glob(glob, str(name)) for glob in rule.tools):
            return False
        example = {key: value for key, value in example.items() if key != "tool"}
    return rule.match_arguments(JudgedCall("", example, _EMPTY_CONTEXT))


# -- beside each other -------------------------------------------------------------------------------------------------


def check_redundancy(rules: Sequence[Rule]) -> Iterator[Finding]:
    """Warn about rules without effect and about duplicates in one file. Each rule gets at most one warning.

    A rule has no effect if a stricter rule matches every call of it. These are not errors: a live file may get another
    `deny = ["*"]` at any time.
    """
    groups = _group_rules(rules)
    for at, rule in enumerate(rules):
        candidates = _find_candidates(groups, rule) - {at}
        covering = sorted(place for place in candidates if _makes_redundant(rules[place], rule))
        stricter = (rules[place] for place in covering if rules[place].decide != rule.decide)
        if other := next(stricter, None):
            yield make_finding(
                "warning", rule, f"{rule.text!r} has no effect: {other.name} ({other.text!r}) is stricter"
            )
            continue
        if same := next((rules[place] for place in covering if place < at and rule.covers(rules[place])), None):
            yield make_finding("warning", rule, f"{rule.text!r} is a duplicate of {same.name}")
            continue
        if rule.reason or rule.into:  # the reason may be why it is there
            continue
        if other := next((rules[place] for place in covering if not rule.covers(rules[place])), None):
            yield make_finding("warning", rule, f"{rule.text!r} is redundant: {other.name} ({other.text!r}) covers it")


_Group = tuple[str | None, tuple[str, Any] | None]
"""A tool's name, and an argument with its value."""


def _group_rules(rules: Sequence[Rule]) -> Mapping[_Group, list[int]]:
    """Return the positions of rules by tool name, and by each value that the first condition on values lists.

    The name is `"*"` for rules that match further names, and the value is None for rules that list no values. The
    search for rules that cover another one looks at a few groups, instead of at a thousand rules.
    """
    found: dict[_Group, list[int]] = defaultdict(list)
    for place, rule in enumerate(rules):
        is_open = not rule.tools or any("*" in glob for glob in rule.tools)
        lists = ((at, one.values) for at, one in rule.arguments.items() if isinstance(one, OneOf))
        at, values = next(lists, ("", ()))
        for name in ("*",) if is_open else dict.fromkeys(rule.tools):
            for value in dict.fromkeys(values) or (None,):
                found[name, value if value is None else (at, value)].append(place)
    return found


def _find_candidates(groups: Mapping[_Group, list[int]], rule: Rule) -> set[int]:
    """Return the positions of the rules that may cover this one: it lists no other values than they do."""
    listed = [(at, one.values[0]) for at, one in rule.arguments.items() if isinstance(one, OneOf)]
    names = (rule.tools[0] if rule.tools else None, "*")
    return {place for name in names for value in (None, *listed) for place in groups.get((name, value), ())}


def _makes_redundant(other: Rule, rule: Rule) -> bool:
    """Return whether `other` matches every call of `rule`, and is stricter or has the same decision and file."""
    if other.decide == rule.decide:
        return other.source == rule.source and other.covers(rule)
    return _RANKS[other.decide] > _RANKS[rule.decide] and other.covers(rule)


# -- beside the tools --------------------------------------------------------------------------------------------------


class ToolFindings(NamedTuple):
    """Findings about rules and the loaded tools."""

    findings: list[Finding]
    notices: list[Finding]
    """The findings to show to people who run calls as well."""


def check_tools(rules: Sequence[Rule], tools: Sequence[Any]) -> ToolFindings:
    """Find rules about tools or arguments that do not exist.

    See docs/policy.md#tools-that-are-not-loaded. A file may have rules for tools of another program, so such a rule is
    a warning. A misspelled name is an error in project and session files. Managed and user files are for all programs,
    so their users get notices only about misspelled names.
    """
    names = [tool.name for tool in tools]
    every_name = [*names, *(name for tool in tools for name in list_mounted_names(tool))]
    named = {glob for rule in rules for glob in rule.tools}
    findings: list[Finding] = []
    notices: list[Finding] = []
    waiting: dict[str, list[tuple[Rule, str]]] = {}
    for rule in rules:
        is_of_project = rule.scope in {"project", "session"}
        loaded = names if rule.decide == "allow" else every_name
        missing = [glob for glob in rule.tools if not any(matches_glob(glob, name) for name in loaded)]
        notices += _check_runs(rule, every_name)
        for glob in missing:
            if glob.startswith(SERVED):  # the program that serves them knows their names
                continue
            similar = next((name for name in names if name not in named and is_misspelling(glob, name)), None)
            if similar is None:
                waiting.setdefault(rule.source, []).append((rule, glob))
                continue
            text = f"there is no tool {glob!r}: did you mean {similar!r}? If not, write a rule for {similar!r} as well"
            notices.append(make_finding("error" if is_of_project else "warning", rule, text))
        matching = [(tool, find_fit(rule, tool)) for tool in tools if rule.may_match_tool(tool)]
        problems = {fit.problem for _, fit in matching if fit.applies} - {""}
        findings += [make_finding("error", rule, text) for text in sorted(problems)]
        if any(fit.applies for _, fit in matching) or (missing and not matching):
            continue
        problem = f": {matching[0][1].problem}" if matching else ""
        text = f"{rule.text!r} matches none of the loaded tools{problem}"
        if any(_is_misspelled_for(rule, tool) for tool, _ in matching):
            notices.append(make_finding("error" if is_of_project else "warning", rule, text))
        else:
            findings.append(make_finding("warning", rule, text))
    for several in waiting.values():
        (notices if several[0][0].scope in {"project", "session"} else findings).append(
            _report_missing_tools(several, names)
        )
    return ToolFindings([*findings, *notices], notices)


def _check_runs(rule: Rule, names: Sequence[str]) -> Iterator[Finding]:
    """Warn about a tool of `after` or `before` that is not loaded."""
    for glob in () if rule.when is None else rule.when.names:
        if not any(matches_glob(glob, name) for name in names):
            text = f"{rule.text!r} looks for runs of {glob!r}, and there is no such tool"
            yield make_finding("warning", rule, f"{text}{suggest_name(glob, names)}")


def _report_missing_tools(several: Sequence[tuple[Rule, str]], names: Sequence[str]) -> Finding:
    """Return the finding about the names in one file without a loaded tool."""
    rule, first = several[0]
    others = [repr(glob) for glob in dict.fromkeys(glob for _, glob in several) if glob != first]
    more = f" and {len(others) - _MAX_NAMES} more" if len(others) > _MAX_NAMES else ""
    nor = f" (nor {', '.join(others[:_MAX_NAMES])}{more})" if others else ""
    text = f"there is no tool {first!r}{nor} among the loaded tools{suggest_name(first, names) or '.'}"
    return make_finding(
        "warning", rule, f"{text} The rule applies once its tool is loaded; correct the name if it is wrong"
    )


def _is_misspelled_for(rule: Rule, tool: Any) -> bool:
    """Return whether a rule misspells the name of an argument of a tool."""
    names = declared_properties(tool.handling.parameters.schema) or ()
    return any(is_misspelling(split_place(place)[0], name) for place in rule.arguments for name in names)


def is_misspelling(name: str, other: str) -> bool:
    """Return whether a name differs from another by one typing error.

    This is one character more, less or different, two swapped characters, or capitals and hyphens. Names with other
    digits are different names, and so are short names.
    """
    one, two = (text.casefold().replace("-", "_") for text in (name, other))
    if one == two:
        return True
    if max(len(one), len(two)) < _MIN_MISSPELLED_LENGTH or re.findall(r"\d", one) != re.findall(r"\d", two):
        return False
    start = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    rest, other_rest = one[start:], two[start:]
    swapped = rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:]
    return swapped or rest[1:] == other_rest[1:] or rest[1:] == other_rest or rest == other_rest[1:]


class Fit(NamedTuple):
    """The match between a rule and a tool."""

    applies: bool
    """Whether the schema has the rule's arguments. A rule for many tools need not apply to each."""
    problem: str = ""


def find_fit(rule: Rule, tool: Any) -> Fit:
    """Return the match between a rule and a tool, by the tool's schema if it has one."""
    handling = getattr(tool, "handling", None)
    if handling is None:
        return Fit(True)
    schema = handling.parameters.schema
    by_name = not {tool.name, *list_mounted_names(tool)}.isdisjoint(rule.tools)
    if rule.into is not None and rule.into not in schema.get("properties", ()):
        return Fit(True, f"{tool.name} has no argument {rule.into!r}, the value of into")
    forms: list[Any] | None
    for place, one in rule.arguments.items():
        if place == ANY_COMMAND:
            forms = [] if not is_closed(schema) or _names_line(schema) else None
        else:
            forms = _find_place_forms(schema, split_place(place))
        if forms is None:
            return Fit(by_name, f"{tool.name} has no {_describe_missing(place, one, schema.get('properties', ()))}")
        if problem := explain_wrong_kind(place, one, forms) or (by_name and _explain_mismatch(place, one, forms)):
            return Fit(True, f"{tool.name}: {problem}")
    return Fit(True)


def _describe_missing(place: str, one: Condition, names: Iterable[str]) -> str:
    if place != ANY_COMMAND or not isinstance(one, Commands):
        return f"argument {place!r}{suggest_name(place, names)}"
    return f"shell line, and {' or '.join(map(repr, one.patterns))} reads as a command; {SHORT_FORMS}"


def may_have_arguments(rule: Rule, tool: Any) -> bool:
    """Return whether a call of a tool may have the arguments of a rule, even if the schema does not name them."""
    handling = getattr(tool, "handling", None)
    if handling is None or not is_closed(handling.parameters.schema):
        return True
    names = declared_properties(handling.parameters.schema)
    return names is None or all(place == ANY_COMMAND or split_place(place)[0] in names for place in rule.arguments)


def is_closed(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema forbids arguments without a name in it."""
    return any(schema.get(key) is False for key in ("additionalProperties", "unevaluatedProperties"))


def _names_line(node: Any) -> bool:
    """Return whether a schema names a shell line at any depth."""
    if isinstance(node, list | tuple):
        return any(map(_names_line, node))
    if not isinstance(node, Mapping):
        return False
    properties = node.get("properties")
    named = isinstance(properties, Mapping) and any(map(is_command_name, properties))
    return named or any(map(_names_line, node.values()))


def _find_place_forms(schema: Mapping[str, Any], parts: Iterable[str]) -> list[Any] | None:
    """Return the schemas for the values at a place, [] if the schema leaves them open, None if there can be none."""
    nodes: list[Any] = [schema]
    for depth, part in enumerate(parts):
        forms = find_forms(nodes, schema)
        if part == "[]":
            schemas = [[*item_schemas(form, None), *prefix_items(form)] for form in forms]
            is_open = any(not inner and _allows(form, "array") for form, inner in zip(forms, schemas, strict=True))
        else:
            schemas = [property_schemas(form, part) for form in forms]
            is_open = depth > 0 and any(
                not inner and _allows(form, "object") and "properties" not in form
                for form, inner in zip(forms, schemas, strict=True)
            )
        nodes = [node for inner in schemas for node in inner]
        is_open = is_open or (depth == 0 and not nodes and not is_closed(schema))
        if is_open or not all(isinstance(node, Mapping) for node in nodes):
            return []
        if not nodes:
            return None
    return find_forms(nodes, schema)


def _allows(form: Mapping[str, Any], kind: str) -> bool:
    """Return whether a form allows values of a JSON type. A form with `anyOf`, `$ref` and the like does not count."""
    return not _COMBINES & form.keys() and not {None, kind}.isdisjoint(_listed_types(form.get("type")))


def _explain_mismatch(place: str, condition: Condition, forms: Iterable[Mapping[str, Any]]) -> str:
    """Return why no value allowed by a schema can match, or "" if one may."""
    leaves = [form for form in forms if not _COMBINES & form.keys()]
    values = [[form["const"]] if "const" in form else form.get("enum") for form in leaves]
    if leaves and None not in values and isinstance(condition, OneOf):
        choices = [value for listed in values for value in listed or ()]
        if not any(condition.matches(value, _EMPTY_CONTEXT) for value in choices):
            return f"`{place} {condition.text}` never holds: {place} is one of {', '.join(map(repr, choices))}"
    types = {kind for form in leaves for kind in _listed_types(form.get("type"))}
    if not leaves or None in types or types & {*_list_matching_types(condition), "null"}:
        return ""
    hint = f"; for its items write {place}[]" if "array" in types else ""
    return f"`{place} {condition.text}` never holds: {place} is {' or '.join(sorted(map(str, types)))}{hint}"


def _listed_types(types: Any) -> list[Any]:
    return list(types) if isinstance(types, list | tuple) else [types]


def _list_matching_types(condition: Condition) -> set[str]:
    """Return the JSON types with values that may match."""
    if isinstance(condition, Range):
        return {"integer", "number", "string"}
    if isinstance(condition, OneOf):
        return {name for value in condition.values for name in _TYPES_OF_VALUE[type(value)]}
    return {"string", "array", "object"} if isinstance(condition, Commands) else {"string"}
