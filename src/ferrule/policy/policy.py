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
from ferrule.policy.rule import JudgedCall, Rule, Scope
from ferrule.policy.standing import NEEDS_TRUST, Trust, find_standings
from ferrule.policy.trust import TrustedFiles
from ferrule.policy.verdict import Entry, Mode, PolicyDecision, ToolRules
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import JsonObject, freeze, thaw

log = logging.getLogger("ferrule")
ScopedFile: TypeAlias = tuple[Scope, str | os.PathLike[str]]
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


def read_files(scoped: Iterable[ScopedFile], tools: Sequence[Any] | None, trust: Trust) -> Contents:
    """Read files. Errors in them become findings; nothing is raised."""
    findings: list[Finding] = []
    files: dict[str, PolicyFile] = {}
    for scope, path in scoped:
        try:
            file = read_policy_file(path, scope)
        except DefinitionError as error:
            findings.append(Finding("error", os.fspath(path), 0, str(error)))
            continue
        if file.path in {other.path for other in files.values()}:
            findings.append(Finding("error", os.fspath(path), 0, "the program passes this file twice"))
        files[os.fspath(path)] = file
    names = _choose_names(list(files.values()))
    documents = {path: read_document(file.text, names[file.path], file.scope) for path, file in files.items()}
    rules = sorted((rule for document in documents.values() for rule in document.rules), key=_sort_key)
    findings += [finding for document in documents.values() for finding in document.findings]
    findings += [finding for rule in rules for finding in check_examples(rule)]
    findings += [*check_redundancy(rules), *check_breadth(rules, tools)]
    tool_findings = ToolFindings([], []) if tools is None else check_tools(rules, tools)
    standings = [*find_standings(files, names, documents, trust)]
    trust_findings = [finding for standing in standings for finding in standing.findings]
    findings += [*tool_findings.findings, *trust_findings]
    untrusted = {standing.source for standing in standings if not standing.allows}
    active_rules = [rule for rule in rules if rule.decide != "allow" or rule.source not in untrusted]
    older = {f"{one.source} (as trusted)": one.older for one in standings if one.older is not None}
    active_rules += [rule for document in older.values() for rule in document.rules if rule.decide != "allow"]
    active = {**{names[files[path].path]: document for path, document in documents.items()}, **older}
    return Contents(
        tuple(sorted(active_rules, key=_sort_key)),
        {document.mode[0]: f"{source}:{document.mode[1]}" for source, document in active.items() if document.mode},
        tuple(test for document in documents.values() for test in document.tests),
        tuple(sorted(findings, key=lambda finding: (finding.level, finding.source, finding.line))),
        {path: file.digest for path, file in files.items()},
        {names[file.path]: path for path, file in files.items()},
        (*trust_findings, *tool_findings.notices),
    )


def _sort_key(rule: Rule) -> tuple[Any, ...]:
    """Return a sort key for rules that does not depend on the order of the files."""
    return rule.scope, rule.source, rule.line, rule.text


def _choose_names(files: Sequence[PolicyFile]) -> dict[str, str]:
    """Return a short unique name for each file, by its path."""
    short = {file.path: os.path.basename(file.path) for file in files}
    for longer in (
        {file.path: f"{file.scope}/{short[file.path]}" for file in files},
        {file.path: file.path for file in files},
    ):
        counts = Counter(short.values())
        short = {path: name if counts[name] == 1 else longer[path] for path, name in short.items()}
    return short


class _CompiledPolicy:
    """The contents of files, compiled by tool: a call looks only at the rules that may apply to it."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._by_tool: WeakKeyDictionary[Any, ToolRules] = WeakKeyDictionary()
        self.errors = [finding for finding in contents.findings if finding.level == "error"]

    def verdict(self, judged: JudgedCall) -> Decision | None:
        if self.errors:
            return deny("the policy has errors, so nothing may run")
        return self.find_rules(judged.tool).verdict(judged, self.contents.modes)

    def find_rules(self, tool: Any) -> ToolRules:
        """Return the rules that may apply to calls of a tool."""
        definition = getattr(tool, "definition", None)
        if definition is None:
            entries = map(Entry, self.contents.rules) if tool is None else self._iter_entries(tool)
            return ToolRules.from_entries(entries)
        rules = self._by_tool.get(definition)
        if rules is None:
            rules = self._by_tool[definition] = ToolRules.from_entries(self._iter_entries(definition))
        return rules

    def _iter_entries(self, tool: Any) -> Iterator[Entry]:
        hidden = frozenset(getattr(tool, "hidden", ()))
        for rule in self.contents.rules:
            fit = find_fit(rule, tool) if rule.may_match_tool(tool) else None
            if fit is None or not (fit.applies or may_have_arguments(rule, tool)):
                continue
            problem = fit.problem if fit.applies else ""
            if problem:
                effect = "never allows" if rule.decide == "allow" else "asks about every call"
                log.warning("%s: %s; so it %s", rule.name, problem, effect)
            parameters = {place.partition(".")[0].removesuffix("[]") for place in rule.arguments}
            certain_name = None if rule.tags or rule.traits or rule.principals else tool.name
            yield Entry(rule, problem, not hidden.isdisjoint(parameters), certain_name)


class Policy:
    """The rules of several files as a guard. `guards.rules` makes it for you. See docs/policy.md#loading.

    Attributes:
        findings: Errors and warnings about the files. With an error among them, the policy denies every call.
            `guards.rules` raises the errors instead.
        rules: The active rules, by scope, file and line.
        modes: The modes of the files. All of them apply.
        tests: The decision tests in the files.
        notices: The findings for people who run calls: about trust, and about tools that are not loaded.
        paths: The path of each file as passed by the program, by its name in findings.
        digests: The SHA-256 of each file as it was read, by its path as passed by the program.

    Args:
        files: The files with their scopes.
        tools, shadow, trusted: As for `guards.rules`.
        needs_trust: The scopes of files that allow nothing until a person trusts them.
    """

    def __init__(
        self,
        files: Iterable[ScopedFile],
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
        paths = (*(path for _, path in (*self._files, *list_standard_files())), *shadows, self._trust.trusted.path)
        self._protected = [os.path.realpath(os.path.expanduser(path)) for path in paths]
        self._protected += [os.path.realpath(folder) for folder in (state_folder(), configuration_folder())]
        self._trust.trusted.hold_key()
        self._activate(read_files(self._files, self._tools, self._trust))

    def _activate(self, contents: Contents) -> None:
        shadow, more = self._read_shadow()
        self.findings, self._shadow = (*contents.findings, *more), shadow
        self._compiled = _CompiledPolicy(contents)
        self.rules, self.modes, self.tests = contents.rules, frozenset(contents.modes), contents.tests
        self.notices, self.paths, self.digests = contents.notices, contents.paths, contents.digests
        for path, digest in contents.digests.items():
            log.info("the policy file %r is loaded, with the digest %s", path, digest)
        for notice in contents.notices:
            log.warning("%s", notice)

    def _read_shadow(self) -> tuple[_CompiledPolicy | None, list[Finding]]:
        """Read the policy in shadow. Its file replaces the program's own.

        If it is broken, its errors become warnings.
        """
        if self._shadow_file is None:
            return None, []
        others = [(scope, path) for scope, path in self._files if scope != "managed"]
        compiled = _CompiledPolicy(read_files([("managed", self._shadow_file), *others], self._tools, self._trust))
        if not compiled.errors:
            return compiled, []
        return None, [
            error._replace(level="warning", text=f"in shadow, so it does not run: {error.text}")
            for error in compiled.errors
        ]

    def reload(self) -> tuple[Finding, ...]:
        """Read the files again, and return the findings.

        A changed file must be trusted, by `ferrule policy trust FILE`. If a finding is an error, the rules loaded
        before stay in force, and the log says so.
        """
        with self._loading:  # with two concurrent reloads, the last one to read counts
            contents = read_files(self._files, self._tools, self._trust._replace(loaded=self.digests))
            errors = [str(finding) for finding in contents.findings if finding.level == "error"]
            if errors:
                log.error("the policy was not loaded again; the rules loaded before stay: %s", "; ".join(errors))
                return contents.findings
            self._activate(contents)
            return self.findings

    def __call__(self, call: ToolCall, context: ToolContext) -> Decision | None:
        """Return the decision of the rules, or None for a read-only call without a rule."""
        compiled, tool = self._compiled, getattr(context, "tool", None)
        decision = self._judge(compiled, call, JudgedCall(call.name, call.arguments, context, tool))
        if self._shadow is not None:
            self._compare(self._shadow, decision, call, context, tool)
        return decision

    def asks(self, tool: Any) -> bool:
        """Return whether the current rules may ask about a call of a tool.

        A deny rule may ask too: it does if its match is unknown.
        """
        compiled = self._compiled
        modes = compiled.contents.modes
        if compiled.errors or "never_ask" in modes or ("read_only" in modes and tool.read_only is False):
            return False
        rules = compiled.find_rules(tool)
        if rules.ask.entries or rules.deny.entries:
            return True
        judged = JudgedCall(tool.name, {}, ToolContext[Any](), tool)
        is_allowed = any(entry.match(judged) for entry in rules.allow.entries if not entry.rule.arguments)
        return tool.read_only is not True and not tool.recorded and not is_allowed

    def decide(self, call: ToolCall, context: ToolContext, tool: Any = None) -> PolicyDecision:
        """Return the decision with the answer of each rule. No difference from a shadow policy is recorded.

        Args:
            tool: The tool for these arguments, in place of `context.tool`.
        """
        compiled, tool = self._compiled, getattr(context, "tool", None) if tool is None else tool
        rules = compiled.find_rules(tool)
        judged = JudgedCall(call.name, call.arguments, context, tool)
        matches = rules.find_answers(judged)
        answers = tuple((rule, matches.get(id(rule), False)) for rule in compiled.contents.rules)
        decision = self._judge(compiled, call, judged)
        is_joint = decision is not None and decision.kind == "allow"
        is_joint = is_joint and not any(answer for rule, answer in answers if rule.decide == "allow")
        joint = rules.find_joint_allows(judged) if is_joint else ()
        return PolicyDecision(decision, answers, tuple(entry.rule for entry in joint))

    def _judge(self, compiled: _CompiledPolicy, call: ToolCall, judged: JudgedCall) -> Decision | None:
        if judged.tool is None or judged.tool.read_only is not True:
            file = find_protected_file(call, judged.context.working_directory, self._protected)
            if file is not None:
                return deny(f"{os.path.basename(file)} decides what may run, and no tool may change it")
        return compiled.verdict(judged)

    # -- shadow --------------------------------------------------------------------------------------------------------

    def differences(self) -> tuple[Difference, ...]:
        """Return the calls so far with another decision by the policy in shadow, the most frequent first."""
        with self._lock:
            return tuple(sorted(self._differences.values(), key=lambda difference: -difference.count))

    def _compare(
        self, shadow: _CompiledPolicy, decision: Decision | None, call: ToolCall, context: ToolContext, tool: Any
    ) -> None:
        try:
            other = self._judge(shadow, call, JudgedCall(call.name, call.arguments, context, tool))
            now, in_shadow = (allow() if one is None else one for one in (decision, other))
            if now.kind != in_shadow.kind:
                difference = Difference(call.name, now.kind, in_shadow.kind, now.rule, in_shadow.rule, 1, {})
                self._record_difference(difference, call, tool)
        except Exception:
            log.exception("the policy in shadow raised; it has no effect on the call")

    def _record_difference(self, new: Difference, call: ToolCall, tool: Any) -> None:
        key = (new.tool, new.now, new.shadow, new.now_rule, new.shadow_rule)
        with self._lock:
            difference = self._differences.get(key)
            if difference is not None:
                self._differences[key] = replace(difference, count=difference.count + 1)
            elif len(self._differences) < _MAX_DIFFERENCES:
                example = thaw(redact_hidden(call.arguments, getattr(tool, "hidden", ())))
                self._differences[key] = replace(new, example=freeze(example))
                log.warning(
                    "the policy in shadow decides %s (%s) about a call of %r; the decision is %s (%s)",
                    *(new.shadow, new.shadow_rule, new.tool, new.now, new.now_rule),
                )
