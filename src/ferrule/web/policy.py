"""The view of the policy: the rules and how often they decided, and a box to try a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from ferrule import Runner, Tool, ToolCall, ToolContext
from ferrule.cli.policies import judge_call, may_apply
from ferrule.errors import JournalError
from ferrule.journal.reading import DecisionCount
from ferrule.policy import Policy, Rule
from ferrule.values.call import new_id
from ferrule.web.forms import draw_form, find_unreadable, to_json
from ferrule.web.state import Visit
from ferrule.web.tools import SESSION, Draft, find_tool, read_draft

VERDICTS = {"allow": "would run", "ask": "would wait for a person", "deny": "would be denied"}
_MATCHES = {True: "matches", False: "does not match", None: "unknown"}


def _group_rules(rules: Sequence[Rule], counts: Sequence[DecisionCount]) -> list[tuple[str, list[Rule], int]]:
    """Return the rules of each line of a policy, and how often the line decided. A journal knows the line only."""
    spoke: Counter[tuple[str, str]] = Counter()
    for count in counts:
        for name in _split_names(count):
            spoke[name, count.kind] += count.calls
    groups: dict[str, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(rule.name, []).append(rule)
    return [
        (name, same, sum(spoke[name, kind] for kind in {rule.decide for rule in same})) for name, same in groups.items()
    ]


def _split_names(count: DecisionCount) -> list[str]:
    """Return the names of the rules behind a decision; none for the answer of a person."""
    return [] if count.by else (count.rule or "").split("; ")


def _list_others(counts: Sequence[DecisionCount], rules: Sequence[Rule]) -> list[tuple[str, dict[str, int]]]:
    """Return who decided and is no rule of the policy, guards and people: name, and numbers by kind."""
    names = {rule.name for rule in rules}
    found: dict[str, Counter[str]] = {}
    for count in counts:
        for name in [count.by] if count.by else _split_names(count):
            if name not in names:
                found.setdefault(name or "nobody objected", Counter())[count.kind] += count.calls
    return sorted(((name, dict(kinds)) for name, kinds in found.items()), key=lambda pair: -sum(pair[1].values()))


async def show_policy(visit: Visit) -> Response:
    """Show the rules."""
    tools = list(visit.inspector.tools)
    chosen = visit.inspector.tools.find(visit.get("name")) or (tools[0] if tools else None)
    draft = Draft(False, "", {}, visit.person, SESSION)
    return await _render(visit, chosen, draft, None)


async def try_call(visit: Visit) -> Response:
    """Judge a call, and run nothing."""
    form = await visit.read_form()
    tool = find_tool(visit, form.get("name"))
    draft = read_draft(tool, form)
    is_try = form.get("action") == "try" and not (not draft.is_json and find_unreadable(draft.value))
    verdict = await judge(visit.runner, visit.inspector.policy, tool, draft) if is_try else None
    return await _render(visit, tool, draft, verdict)


async def judge(runner: Runner, policy: Policy | None, tool: Tool, draft: Draft) -> dict[str, Any]:
    """Return the decision about a call, with the answers of the guards and of the rules."""
    given = draft.text if draft.is_json else to_json(draft.value)
    call = ToolCall(new_id(), tool.name, given)
    context: ToolContext[Any] = ToolContext(principal=draft.principal or None, session=draft.session or None)
    decision = await runner.decide(call, context)
    rules: list[tuple[Rule, str]] = []
    if policy is not None:
        judged, _ = await judge_call(policy, runner, call, context)
        answers = () if judged is None else judged.answers
        rules = [(rule, _MATCHES[matches]) for rule, matches in answers if may_apply(rule, tool)]
    by = f" by {decision.rule}" if decision.rule else ""
    return {
        "decision": decision,
        "text": f"The call {VERDICTS[decision.kind]}{by}.",
        "guards": await runner.explain(call, context),
        "rules": rules,
    }


async def _render(visit: Visit, tool: Tool | None, draft: Draft, verdict: dict[str, Any] | None) -> Response:
    values: dict[str, Any] = {
        "tool": tool,
        "draft": draft,
        "form": None if tool is None else draw_form(tool.input_schema, draft.value),
        "verdict": verdict,
        "tools": list(visit.inspector.tools),
    }
    if visit.is_part:
        return await visit.render("try_part.html", **values)
    policy, problem = visit.inspector.policy, ""
    counts: list[DecisionCount] = []
    if visit.inspector.reader is not None:
        try:
            counts = await asyncio.to_thread(visit.inspector.reader.count_decisions)
        except JournalError as error:
            problem = str(error)
    rules = () if policy is None else policy.rules
    return await visit.render(
        "policy.html",
        **values,
        policy=policy,
        groups=_group_rules(rules, counts),
        others=_list_others(counts, rules),
        problem=problem,
    )
