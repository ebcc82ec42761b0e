"""`Policy`: the rules of several files as one guard, which can be loaded again."""

from __future__ import annotations

import logging
import os
import threading
import time
from asyncio import to_thread
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
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
from ferrule.policy.conditions import matches_glob
from ferrule.policy.files import PolicyFile, configuration_folder, list_standard_files, read_policy_file, state_folder
from ferrule.policy.own_files import find_protected_file
from ferrule.policy.reading import Finding, PolicyTest, read_document
from ferrule.policy.rule import JudgedCall, Rule, Scope, list_mounted_names
from ferrule.policy.session_state import SessionState, Ticket
from ferrule.policy.standing import NEEDS_TRUST, Trust, find_standings
from ferrule.policy.trust import TrustedFiles
from ferrule.policy.verdict import Entry, Mode, PolicyDecision, ToolRules
from ferrule.policy.when import SessionFacts, make_count_mark, make_run_marks
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import JsonObject, freeze, thaw

if TYPE_CHECKING:
    from ferrule.runner import Runner

log = logging.getLogger("ferrule")
ScopedFile: TypeAlias = tuple[Scope, str | os.PathLike[str]]
_MAX_DIFFERENCES = 100
_COUNT_TRIES = 20


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
        self.is_conditional = any(rule.when is not None for rule in contents.rules)
        self._watched = {glob for rule in contents.rules if rule.when is not None for glob in rule.when.names}

    def verdict(self, judged: JudgedCall) -> Decision | None:
        if self.errors:
            return deny("the policy has errors, so nothing may run")
        return self.find_rules(judged.tool).verdict(judged, self.contents.modes)

    def is_watched(self, tool: Any) -> bool:
        """Return whether a rule looks for runs of this tool."""
        names = (tool.name, *list_mounted_names(tool)) if self._watched and tool is not None else ()
        return any(matches_glob(glob, name) for glob in self._watched for name in names)

    def find_rules(self, tool: Any) -> ToolRules:
        """Return the rules that may apply to calls of a tool."""
        definition = getattr(tool, "definition", None)
        if definition is None:
            entries = map(Entry, self.contents.rules) if tool is None else self._iter_entries(tool)
            return ToolRules.from_entries(entries)
        return self._find_compiled(definition)

    def denies_tool(self, tool: Any, context: ToolContext) -> bool:
        """Return whether the rules and modes deny each call of a tool, whatever the arguments."""
        judged = JudgedCall(tool.name, {}, context, tool)
        return self._find_compiled(tool).denies_tool(judged, self.contents.modes)

    def _find_compiled(self, definition: Any) -> ToolRules:
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
            certain_name = None if rule.tags or rule.traits or rule.principals or rule.when else tool.name
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
        self._state = SessionState()
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

    def check_runner(self, runner: Runner) -> None:
        """Remember the sessions in the runner's journal.

        Raises:
            DefinitionError: A rule looks for runs of a tool that the policy does not see.
        """
        self._state.follow(runner.journal)
        mounted = [guard for tool in runner.tools for mount in tool.mounts for guard in mount.settings.guards]
        if any(guard is self for guard in (*runner.guards, *mounted)):
            return
        for tool in runner.tools:
            if self._compiled.is_watched(tool) and not any(guard is self for guard in tool.guards):
                raise DefinitionError(
                    f"{self.__name__} looks for runs of {tool.name!r}, and does not guard it: give it to the runner"
                )

    def __call__(self, call: ToolCall, context: ToolContext) -> Decision | Coroutine[Any, Any, Decision | None] | None:
        """Return the decision of the rules, or None for a read-only call without a rule.

        If a rule for the tool looks at the session of a running call, this is a coroutine.
        """
        compiled, tool = self._compiled, getattr(context, "tool", None)
        judged = JudgedCall(call.name, call.arguments, context, tool)
        conditional = [one for one in (compiled, self._shadow) if one is not None and one.is_conditional]
        if conditional:
            indexes = [index for one in conditional for index in one.find_rules(tool)]
            records_runs = any(one.is_watched(tool) for one in conditional)
            if records_runs or any(index.needs_facts for index in indexes):
                ticket = self._state.make_ticket(context, records_runs=records_runs)
                if ticket.id and any(index.needs_marks for index in indexes):
                    return self._judge_in_session(compiled, call, judged, ticket)
                judged.facts = self._read_facts(ticket)
        return self._compare(call, judged, self._judge(compiled, call, judged))

    async def _judge_in_session(
        self, compiled: _CompiledPolicy, call: ToolCall, judged: JudgedCall, ticket: Ticket
    ) -> Decision | None:
        """Judge a running call, and count it. A count that was filled meanwhile is read again."""
        rules, tries = compiled.find_rules(judged.tool), _COUNT_TRIES
        while True:
            facts = await to_thread(self._read_facts, ticket) if tries else ticket.make_facts(None, None)
            judged = judged.with_facts(facts)
            decision = self._judge(compiled, call, judged)
            counting = rules.find_counting_rules(judged, decision)
            if facts.session is None or facts.is_job or not (counting or facts.is_counted):
                break
            try:
                if await to_thread(self._state.count, ticket, counting):
                    break
                tries -= 1
            except Exception:
                log.exception("the policy cannot count a call, so no rule with a count allows it")
                tries = 0
        return self._compare(call, judged, decision)

    def _read_facts(self, ticket: Ticket) -> SessionFacts:
        """Return the facts about a session. Without a store that can be read, these are unknown."""
        try:
            return self._state.read(ticket)
        except Exception:
            log.exception("the policy cannot read what a session has done, so no rule about that allows anything")
            return ticket.make_facts(None, None)

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

    def denies_tool(self, tool: Any, context: ToolContext) -> bool:
        """Return whether the current rules deny each call of a tool in this context, whatever its arguments.

        An unknown match is no denial, nor is one that depends on the session or the time. An MCP server lists no such
        tool. See docs/serving-mcp.md#what-a-client-sees.
        """
        return self._compiled.denies_tool(tool, context)

    def decide(
        self, call: ToolCall, context: ToolContext, tool: Any = None, facts: SessionFacts | None = None
    ) -> PolicyDecision:
        """Return the decision with the answer of each rule. Nothing is counted, and no difference from a shadow policy
        is recorded.

        Args:
            tool: The tool for these arguments, in place of `context.tool`.
            facts: The facts about the session, in place of those that the policy remembers.
        """
        compiled, tool = self._compiled, getattr(context, "tool", None) if tool is None else tool
        rules = compiled.find_rules(tool)
        if facts is None and any(index.needs_facts for index in rules):
            facts = self._read_facts(self._state.make_ticket(context))
        judged = JudgedCall(call.name, call.arguments, context, tool, facts)
        matches = rules.find_answers(judged)
        answers = tuple((rule, matches.get(id(rule), False)) for rule in compiled.contents.rules)
        decision = self._judge(compiled, call, judged)
        is_joint = decision is not None and decision.kind == "allow"
        is_joint = is_joint and not any(answer for rule, answer in answers if rule.decide == "allow")
        joint = rules.find_joint_allows(judged) if is_joint else ()
        return PolicyDecision(decision, answers, tuple(entry.rule for entry in joint))

    def imagine_facts(self, test: PolicyTest, find_tool: Callable[[str], Any]) -> SessionFacts:
        """Return the facts for a test: the time, and its earlier calls, each of which ran and succeeded.

        Args:
            find_tool: Returns the tool of an earlier call.
        """
        now = time.time() if test.at is None else test.at
        context: ToolContext[Any] = ToolContext(principal=test.principal, session=test.session)
        marks: dict[str, float] = {}
        for number, earlier in enumerate(sorted(test.earlier, key=lambda one: -one.ago)):
            tool, at, ticket = find_tool(earlier.call), now - earlier.ago, f"earlier{number}"
            facts = SessionFacts(at, marks, marks, ticket)
            judged = JudgedCall(earlier.call, earlier.arguments, context, tool, facts)
            counting = [rule for rule in self.rules if rule.may_count(judged)]
            counts = {make_count_mark(rule.key, ticket): at for rule in counting}
            runs = (make_run_marks(earlier.call, (), at, succeeded=done) for done in (False, True))
            marks = {**marks, **counts, **{mark: at for run in runs for mark in run}}
        return SessionFacts(now, marks, marks)

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

    def _compare(self, call: ToolCall, judged: JudgedCall, decision: Decision | None) -> Decision | None:
        """Return the decision, and record its difference from that of the policy in shadow."""
        if self._shadow is None:
            return decision
        try:
            other = self._judge(self._shadow, call, judged.with_facts(judged.facts))
            now, in_shadow = (allow() if one is None else one for one in (decision, other))
            if now.kind != in_shadow.kind:
                difference = Difference(call.name, now.kind, in_shadow.kind, now.rule, in_shadow.rule, 1, {})
                self._record_difference(difference, call, judged.tool)
        except Exception:
            log.exception("the policy in shadow raised; it has no effect on the call")
        return decision

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
