"""`Policy`: the rules of several files as one guard, which can be loaded again."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from ferrule.errors import DefinitionError
from ferrule.policy.breadth import check_breadth
from ferrule.policy.checks import (
    ToolFindings,
    check_examples,
    check_redundancy,
    check_tools,
    find_fit,
    may_have_arguments,
)
from ferrule.policy.files import PolicyFile, configuration_folder, list_standard_files, read_policy_file, state_folder
from ferrule.policy.own_files import find_protected_file
from ferrule.policy.reading import Finding, PolicyTest, read_document
from ferrule.policy.rule import Rule, Scope
from ferrule.policy.standing import NEEDS_TRUST, Trust, find_standings
from ferrule.policy.trust import TrustedFiles
from ferrule.policy.verdict import Entry, Mode, PolicyDecision, ToolRules
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, deny
from ferrule.values.frozen import JsonObject, freeze, thaw

log = logging.getLogger("ferrule")
GivenFile: TypeAlias = tuple[Scope, str | os.PathLike[str]]
_MAX_DIFFERENCES = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """Calls with another decision by the policy in shadow. See docs/policy.md#shadow.

    Attributes:
        tool: The name of their tool.
        now: The decision that counts: `"allow"`, `"ask"` or `"deny"`.
        shadow: The decision of the policy in shadow.
        now_rule: The rule behind `now`, or `None`.
        shadow_rule: The rule behind `shadow`, or `None`.
        count: The number of such calls.
        example: The arguments of the first such call, with stars for hidden values.
    """

    tool: str
    now: str
    shadow: str
    now_rule: str | None
    shadow_rule: str | None
    count: int
    example: JsonObject


class Contents(NamedTuple):
    """The combined contents of several files."""

    rules: tuple[Rule, ...] = ()
    modes: Mapping[Mode, str] = freeze({})
    tests: tuple[PolicyTest, ...] = ()
    findings: tuple[Finding, ...] = ()
    digests: Mapping[str, str] = freeze({})
    paths: Mapping[str, str] = freeze({})
    """The path of each file as passed by the program, by its name in findings."""
    notices: tuple[Finding, ...] = ()
    """The findings about files without full trust, and about rules for tools that are not loaded."""


def read_files(given: Iterable[GivenFile], tools: Sequence[Any] | None, trust: Trust) -> Contents:
    """Read files. Errors in them become findings; nothing is raised."""
    found: list[Finding] = []
    read: dict[str, PolicyFile] = {}
    for scope, path in given:
        try:
            file = read_policy_file(path, scope)
        except DefinitionError as error:
            found.append(Finding("error", os.fspath(path), 0, str(error)))
            continue
        if file.path in {other.path for other in read.values()}:
            found.append(Finding("error", os.fspath(path), 0, "the file is given twice"))
        read[os.fspath(path)] = file
    names = _choose_names(list(read.values()))
    documents = {path: read_document(file.text, names[file.path], file.scope) for path, file in read.items()}
    rules = sorted((rule for document in documents.values() for rule in document.rules), key=_sort_key)
    found += [one for document in documents.values() for one in document.findings]
    found += [*(one for rule in rules for one in check_examples(rule)), *check_redundancy(rules)]
    found += check_breadth(rules, tools)
    beside_tools = ToolFindings([], []) if tools is None else check_tools(rules, tools)
    found += beside_tools.findings
    standings = [*find_standings(read, names, documents, trust)]
    about_trust = [one for standing in standings for one in standing.findings]
    untrusted = {standing.source for standing in standings if not standing.allows}
    counted = [rule for rule in rules if rule.decide != "allow" or rule.source not in untrusted]
    older = {f"{one.source} (as trusted)": one.older for one in standings if one.older is not None}
    active = {**{names[read[path].path]: document for path, document in documents.items()}, **older}
    restrictions = (rule for document in older.values() for rule in document.rules if rule.decide != "allow")
    return Contents(
        tuple(sorted((*counted, *restrictions), key=_sort_key)),
        {of.mode[0]: f"{source}:{of.mode[1]}" for source, of in active.items() if of.mode is not None},
        tuple(test for document in documents.values() for test in document.tests),
        tuple(sorted((*found, *about_trust), key=lambda one: (one.level, one.source, one.line))),
        {path: file.digest for path, file in read.items()},
        {names[file.path]: path for path, file in read.items()},
        (*about_trust, *beside_tools.notices),
    )


def _sort_key(rule: Rule) -> tuple[Any, ...]:
    """Return a sort key for rules that does not depend on the order of the files."""
    return rule.scope, rule.source, rule.line, rule.text


def _choose_names(files: Sequence[PolicyFile]) -> dict[str, str]:
    """Return a short unique name for each file, by its path."""
    short = {file.path: os.path.basename(file.path) for file in files}
    for longer in (
        {file.path: f"{file.scope}/{short[file.path]}" for file in files},
        {one.path: one.path for one in files},
    ):
        counts = Counter(short.values())
        short = {path: name if counts[name] == 1 else longer[path] for path, name in short.items()}
    return short


class _CompiledPolicy:
    """The contents of files, compiled by tool: a call looks only at the rules that may apply to it."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._by_tool: WeakKeyDictionary[Any, ToolRules] = WeakKeyDictionary()
        self.broken = [one for one in contents.findings if one.level == "error"]

    def verdict(self, call: ToolCall, context: ToolContext, tool: Any) -> Decision | None:
        if self.broken:
            return deny("the policy is broken, so nothing may run")
        return self.for_tool(call, tool).verdict(call, context, tool, self.contents.modes)

    def for_tool(self, call: ToolCall, tool: Any) -> ToolRules:
        """Return the rules that may apply to calls of a tool."""
        definition = getattr(tool, "definition", None)
        if definition is None:
            return ToolRules.from_entries(map(Entry, self.contents.rules)) if tool is None else self._make_rules(tool)
        found = self._by_tool.get(definition)
        if found is None:
            found = self._by_tool[definition] = self._make_rules(definition)
        return found

    def _make_rules(self, tool: Any) -> ToolRules:
        return ToolRules.from_entries(self._iter_entries(tool))

    def _iter_entries(self, tool: Any) -> Iterator[Entry]:
        hidden = frozenset(getattr(tool, "hidden", ()))
        for rule in self.contents.rules:
            fit = find_fit(rule, tool) if rule.may_match_tool(tool) else None
            if fit is None or not (fit.applies or may_have_arguments(rule, tool)):
                continue
            problem = fit.problem if fit.applies else ""
            if problem:
                does = "never allows" if rule.decide == "allow" else "asks about every call"
                log.warning("%s: %s; so it %s", rule.name, problem, does)
            tops = {place.partition(".")[0].removesuffix("[]") for place in rule.arguments}
            yield Entry(rule, problem, not hidden.isdisjoint(tops))


class Policy:
    """The rules of several files as a guard. Made by `guards.rules`, or by `load`. See docs/policy.md.

    Attributes:
        findings: Errors and warnings about the files. Only a policy made by `load` can have errors, and it denies every
            call then.
    """

    def __init__(
        self,
        files: Iterable[GivenFile],
        *,
        tools: Iterable[Any] | None = None,
        shadow: str | os.PathLike[str] | None = None,
        trusted: TrustedFiles | None = None,
        needs_trust: Collection[Scope] = NEEDS_TRUST,
    ) -> None:
        self._files = tuple(files)
        self._tools = None if tools is None else tuple(tools)
        self._trust = Trust(TrustedFiles() if trusted is None else trusted, needs_trust)
        self._shadow_file = shadow
        names = ", ".join(os.path.basename(os.fspath(path)) for _, path in self._files)
        self.__name__ = self.__qualname__ = f"rules({names})"
        self._differences: dict[tuple[Any, ...], Difference] = {}
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        shadows = () if shadow is None else (shadow,)
        given = (*(path for _, path in (*self._files, *list_standard_files())), *shadows, self._trust.trusted.path)
        self._own_files = [os.path.realpath(os.path.expanduser(path)) for path in given]
        self._own_files += [os.path.realpath(folder) for folder in (state_folder(), configuration_folder())]
        self._trust.trusted.hold_key()
        self._activate(read_files(self._files, self._tools, self._trust))

    def _activate(self, contents: Contents) -> None:
        shadow, more = self._read_shadow()
        self.findings, self._shadow = (*contents.findings, *more), shadow
        self._compiled = _CompiledPolicy(contents)
        for path, digest in contents.digests.items():
            log.info("the policy file %r is loaded, with the digest %s", path, digest)
        for one in contents.notices:
            log.warning("%s", one)

    def _read_shadow(self) -> tuple[_CompiledPolicy | None, list[Finding]]:
        """Read the policy in shadow. Its file replaces the program's own.

        If it is broken, its errors become warnings.
        """
        if self._shadow_file is None:
            return None, []
        others = [(scope, path) for scope, path in self._files if scope != "managed"]
        compiled = _CompiledPolicy(read_files([("managed", self._shadow_file), *others], self._tools, self._trust))
        if not compiled.broken:
            return compiled, []
        return None, [_to_shadow_warning(one) for one in compiled.broken]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The active rules, by scope, file and line."""
        return self._compiled.contents.rules

    @property
    def modes(self) -> frozenset[Mode]:
        """The modes of the files. All of them apply."""
        return frozenset(self._compiled.contents.modes)

    @property
    def tests(self) -> tuple[PolicyTest, ...]:
        """The decision tests in the files."""
        return self._compiled.contents.tests

    @property
    def notices(self) -> tuple[Finding, ...]:
        """The findings for people who run calls: about trust, and about tools that are not loaded."""
        return self._compiled.contents.notices

    @property
    def paths(self) -> Mapping[str, str]:
        """The path of each file as passed by the program, by its name in findings."""
        return self._compiled.contents.paths

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of each file as it was read, by its path as passed by the program."""
        return self._compiled.contents.digests

    def reload(self) -> tuple[Finding, ...]:
        """Read the files again, and return the findings.

        A changed file must be trusted, by `ferrule policy trust FILE`. If a finding is an error, the rules loaded
        before stay in force, and the log says so.
        """
        with self._loading:  # with two concurrent reloads, the last one to read counts
            contents = read_files(self._files, self._tools, self._trust._replace(loaded=self.digests))
            errors = [one for one in contents.findings if one.level == "error"]
            if errors:
                texts = "; ".join(map(str, errors))
                log.error("the policy was not loaded again, and the one before goes on to count: %s", texts)
                return contents.findings
            self._activate(contents)
            return self.findings

    def __call__(self, call: ToolCall, context: ToolContext) -> Decision | None:
        """Return the decision of the rules, or None for a read-only call without a rule."""
        compiled, tool = self._compiled, getattr(context, "tool", None)
        decision = self._judge(compiled, call, context, tool)
        if self._shadow is not None:
            self._compare(self._shadow, decision, call, context, tool)
        return decision

    def asks(self, tool: Any) -> bool:
        """Return whether the current rules may ask about a call of a tool.

        A deny rule may ask too: it does if its match is unknown.
        """
        compiled = self._compiled
        if compiled.broken or "never_ask" in self.modes or ("read_only" in self.modes and tool.read_only is False):
            return False
        call = ToolCall("", tool.name)
        parts = compiled.for_tool(call, tool)
        if parts.ask or parts.deny:
            return True
        allowed = any(one.match(call, ToolContext(), tool) for one in parts.allow if not one.rule.arguments)
        return tool.read_only is not True and not allowed

    def decide(self, call: ToolCall, context: ToolContext, tool: Any = None) -> PolicyDecision:
        """Return the decision with the answer of each rule. No difference from a shadow policy is recorded.

        Args:
            tool: The tool for these arguments, in place of `context.tool`.
        """
        compiled, tool = self._compiled, getattr(context, "tool", None) if tool is None else tool
        parts = compiled.for_tool(call, tool)
        answers = {id(one.rule): one.match(call, context, tool) for part in parts for one in part}
        said = tuple((rule, answers.get(id(rule), False)) for rule in compiled.contents.rules)
        decision = self._judge(compiled, call, context, tool)
        alone = any(answer for rule, answer in said if rule.decide == "allow")
        allows = decision is not None and decision.kind == "allow"
        together = parts.find_joint_allows(call, context, tool) if allows and not alone else ()
        return PolicyDecision(decision, said, tuple(entry.rule for entry in together))

    def _judge(self, compiled: _CompiledPolicy, call: ToolCall, context: ToolContext, tool: Any) -> Decision | None:
        if tool is None or tool.read_only is not True:
            named = find_protected_file(call, context.working_directory, self._own_files)
            if named is not None:
                return deny(f"{os.path.basename(named)} decides what may run, and no tool may change it")
        return compiled.verdict(call, context, tool)

    # -- shadow --------------------------------------------------------------------------------------------------------

    def differences(self) -> tuple[Difference, ...]:
        """Return the calls so far with another decision by the policy in shadow, the most frequent first."""
        with self._lock:
            return tuple(sorted(self._differences.values(), key=lambda one: -one.count))

    def _compare(
        self, shadow: _CompiledPolicy, decision: Decision | None, call: ToolCall, context: ToolContext, tool: Any
    ) -> None:
        try:
            other = self._judge(shadow, call, context, tool)
            now, then = (one.kind if one is not None else "allow" for one in (decision, other))
            if now != then:
                spoke = [None if one is None else one.rule for one in (decision, other)]
                self._record_difference(Difference(call.name, now, then, spoke[0], spoke[1], 1, {}), call, tool)
        except Exception:
            log.exception("the policy in shadow broke, and counts for nothing")

    def _record_difference(self, found: Difference, call: ToolCall, tool: Any) -> None:
        key = (found.tool, found.now, found.shadow, found.now_rule, found.shadow_rule)
        with self._lock:
            known = self._differences.get(key)
            if known is not None:
                self._differences[key] = replace(known, count=known.count + 1)
            elif len(self._differences) < _MAX_DIFFERENCES:
                example = thaw(redact_hidden(call.arguments, getattr(tool, "hidden", ())))
                self._differences[key] = replace(found, example=freeze(example))
                log.warning(
                    "the policy in shadow says %s (%s) of a call of %r, and %s (%s) counts",
                    *(found.shadow, found.shadow_rule, found.tool, found.now, found.now_rule),
                )


def _to_shadow_warning(finding: Finding) -> Finding:
    return finding._replace(level="warning", text=f"in shadow, so it does not run: {finding.text}")


def load(
    files: Iterable[GivenFile],
    *,
    tools: Iterable[Any] | None = None,
    shadow: str | os.PathLike[str] | None = None,
    trusted: TrustedFiles | None = None,
    needs_trust: Collection[Scope] = NEEDS_TRUST,
) -> Policy:
    """Return the policy of files with their scopes. See docs/policy.md#loading.

    Errors in the files are among its findings, and a policy with errors denies every call. Files of the scopes in
    `needs_trust` allow nothing until a person trusts them.
    """
    return Policy(files, tools=tools, shadow=shadow, trusted=trusted, needs_trust=needs_trust)
