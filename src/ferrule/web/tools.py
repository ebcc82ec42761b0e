"""The view of the tools: the list, one tool with its definitions, and the form for a call."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from ferrule import Tool, ToolCall, ToolContext
from ferrule.errors import DefinitionError
from ferrule.providers import NAMES
from ferrule.providers.lint import LEVELS, Finding
from ferrule.values.call import new_id
from ferrule.values.frozen import thaw
from ferrule.values.json_text import parse_json
from ferrule.web.checks import Refused
from ferrule.web.forms import draw_form, find_unreadable, read_form, to_json
from ferrule.web.shown import make_tree
from ferrule.web.state import Form, ToolFacts, Visit

_TRAITS: Final = {
    "read_only": ("read-only", "changes things"),
    "destructive": ("destructive", "not destructive"),
    "idempotent": ("idempotent", "not idempotent"),
    "open_world": ("open world", "closed world"),
    "parallel": ("runs in parallel", "runs alone"),
}
SESSION: Final = "page"
"""The session that is filled in for calls of the page."""


@dataclass(frozen=True)
class Draft:
    """The arguments of a call that a person writes: as a form, or as JSON text.

    Attributes:
        is_json: Whether they are written as text.
        text: The JSON text.
        value: The draft of the form.
        problem: Why the call was not made, or the text not made a form.
    """

    is_json: bool
    text: str
    value: Any
    principal: str
    session: str
    problem: str = ""


def describe_effect(tool: Tool) -> str:
    """Return the effect of a tool, in one word. A trait that depends on the arguments counts as its worse value."""
    return "read-only" if tool.read_only is True else "changes" if tool.destructive is False else "destructive"


def describe_source(tool: Tool) -> str:
    """Return where a tool comes from: an MCP server, an API, or a function."""
    for kind, name in (("mcp", "MCP server"), ("openapi", "API")):
        if isinstance(about := tool.metadata.get(kind), Mapping):
            inner = about.get("server") or about.get("operation") or ""
            return f"{name} {inner}".strip()
    module = str(getattr(tool.handler, "__module__", "")).rpartition("/")[2]  # a file has its path as its name
    name = getattr(tool.handler, "__qualname__", type(tool.handler).__name__)
    return module if name == tool.name else f"{module}: {name}"


def list_traits(tool: Tool) -> list[str]:
    """Return the traits of a tool in words."""
    words = []
    for name, (yes, no) in _TRAITS.items():
        value = getattr(tool, name)
        words.append(f"{yes} by its arguments" if callable(value) else yes if value else no)
    extra = {"asks a person": tool.ask, "in the background": tool.background, "isolated": tool.isolation}
    words += [text for text, given in extra.items() if given]
    limits = {"at most {} at once": tool.concurrency, "{:g} s at most": tool.timeout}
    return words + [text.format(value) for text, value in limits.items() if value is not None]


def find_tool(visit: Visit, name: str) -> Tool:
    """Return a tool.

    Raises:
        Refused: There is none of this name.
    """
    tool = visit.runner.tools.find(name)
    if tool is None:
        raise Refused(404, f"There is no tool {name!r}.")
    return tool


async def show_tools(visit: Visit) -> Response:
    """List the tools."""
    facts = await visit.inspector.read_facts()
    rows = [
        {
            "tool": tool,
            "effect": describe_effect(tool),
            "source": describe_source(tool),
            "level": _worst_level(facts, tool.name),
            "tokens": _format_tokens(facts, tool.name),
        }
        for tool in visit.inspector.tools
    ]
    everybody = [finding for finding in facts.findings if not finding.tool]
    quarantined = visit.inspector.tools.quarantined
    return await visit.render("tools.html", rows=rows, findings=_group_findings(everybody), quarantined=quarantined)


def _worst_level(facts: ToolFacts, name: str) -> str:
    levels = {finding.level for finding in facts.findings if finding.tool == name}
    return next((level for level in LEVELS if level in levels), "")


def _format_tokens(facts: ToolFacts, name: str) -> str:
    """Return the estimated tokens of a tool, from the cheapest to the dearest provider."""
    counts = [count for count in facts.costs[name].tokens.values() if count is not None] if name in facts.costs else []
    return (
        "" if not counts else f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,}–{max(counts):,}"
    )


def _group_findings(found: list[Finding]) -> list[tuple[str, str, str, str]]:
    """Return findings as level, providers, text and places; equal findings of several providers are one."""
    rows: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        text = "parameters have no description" if finding.rule == "no-parameter-description" else finding.text
        rows.setdefault((finding.level, text), []).append(finding)
    return [
        (
            level,
            ", ".join(dict.fromkeys(one.provider for one in same if one.provider)),
            text,
            ", ".join(dict.fromkeys(one.path for one in same if one.path)),
        )
        for (level, text), same in rows.items()
    ]


async def show_tool(visit: Visit) -> Response:
    """Show one tool with an empty form, or with the arguments of a journaled call."""
    tool = find_tool(visit, visit.get("name"))
    draft = Draft(False, "", {}, visit.person, SESSION)
    if (seq := visit.get_place("from")) is not None:
        draft = _draft_of_call(visit, tool, seq)
    return await render_tool(visit, tool, draft)


def _draft_of_call(visit: Visit, tool: Tool, seq: int) -> Draft:
    logged = visit.reader.call_at(seq)
    if logged is None or logged.tool_name != tool.name:
        raise Refused(404, "The journal has no such call.")
    owner = (logged.principal or "", logged.session or "")
    try:
        given = logged.to_call(visit.runner.tools).arguments
    except DefinitionError as error:
        return Draft(False, "", {}, *owner, str(error))
    if isinstance(logged.input, str):  # the model sent no JSON object
        return Draft(True, logged.input, {}, *owner)
    return Draft(False, "", thaw(given), *owner)


async def render_tool(visit: Visit, tool: Tool, draft: Draft, *, status: int = 200) -> Response:
    """Return the page of a tool with a draft of a call."""
    form = draw_form(tool.input_schema, draft.value)
    if visit.is_part:
        return await visit.render("call_form.html", tool=tool, draft=draft, form=form, status=status)
    facts = await visit.inspector.read_facts()
    provider = visit.get("provider") or NAMES[0]
    return await visit.render(
        "tool.html",
        status=status,
        tool=tool,
        draft=draft,
        form=form,
        effect=describe_effect(tool),
        source=describe_source(tool),
        traits=list_traits(tool),
        findings=_group_findings([finding for finding in facts.findings if finding.tool == tool.name]),
        cost=facts.costs.get(tool.name),
        definition=_write_definition(tool, provider, bool(visit.get("strict"))),
        schema=make_tree(thaw(tool.input_schema)),
        providers=NAMES,
        provider=provider,
        strict=bool(visit.get("strict")),
    )


def _write_definition(tool: Tool, provider: str, strict: bool) -> tuple[str, str]:
    """Return the JSON that a provider is sent, or an error."""
    if provider not in NAMES:
        raise Refused(404, f"There is no provider {provider!r}.")
    define: Callable[..., Any] = importlib.import_module(f"ferrule.providers.{provider}").tools
    try:
        return json.dumps(define([tool], strict=strict), ensure_ascii=False, indent=2), ""
    except DefinitionError as error:
        return "", str(error)


async def show_definition(visit: Visit) -> Response:
    """Show the definition of a tool for one provider."""
    tool, provider, strict = find_tool(visit, visit.get("name")), visit.get("provider"), bool(visit.get("strict"))
    return await visit.render(
        "definition.html",
        tool=tool,
        provider=provider,
        strict=strict,
        definition=_write_definition(tool, provider, strict),
        providers=NAMES,
        cost=(await visit.inspector.read_facts()).costs.get(tool.name),
    )


def read_draft(tool: Tool, form: Form) -> Draft:
    """Return the draft that a form holds, after the action of the pressed button."""
    action, is_json, text = form.get("action"), form.get("mode") == "json", form.get("json")
    owner = (form.get("principal").strip(), form.get("session").strip())
    if not is_json:
        value = read_form(tool.input_schema, form.fields, action)
        if action == "mode json":
            return Draft(True, json.dumps(to_json(value), ensure_ascii=False, indent=2), value, *owner)
        return Draft(False, "", value, *owner)
    if action != "mode form":
        return Draft(True, text, {}, *owner)
    try:
        value = parse_json(text or "{}")
    except ValueError as error:
        return Draft(True, text, {}, *owner, f"This is not JSON: {error}")
    if not isinstance(value, dict):
        return Draft(True, text, {}, *owner, "The arguments of a call are a JSON object.")
    return Draft(False, "", value, *owner)


async def change_draft(visit: Visit) -> Response:
    """Show the form again after a change of its shape."""
    form = await visit.read_form()
    tool = find_tool(visit, form.get("name"))
    return await render_tool(visit, tool, read_draft(tool, form))


async def begin_call(visit: Visit) -> Response:
    """Make the call, and show it."""
    form = await visit.read_form()
    tool = find_tool(visit, form.get("name"))
    draft = read_draft(tool, form)
    if not draft.is_json and find_unreadable(draft.value):
        return await render_tool(visit, tool, draft, status=422)
    questions = visit.inspector.questions
    if questions is not None and (problem := questions.find_conflict(visit.person, draft.principal)):
        return await render_tool(visit, tool, replace(draft, problem=problem), status=403)
    given = draft.text if draft.is_json else to_json(draft.value)
    context: ToolContext[Any] = ToolContext(principal=draft.principal or None, session=draft.session or None)
    run = visit.inspector.runs.begin(visit.runner, ToolCall(new_id(), tool.name, given), context)
    return visit.redirect("/run", [("id", run.id)])
