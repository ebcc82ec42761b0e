"""Ask before data can leave a session that has read something from outside, or something private."""

from __future__ import annotations

import fnmatch
from asyncio import to_thread
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ferrule.errors import DefinitionError
from ferrule.guards._arguments import read_names
from ferrule.security.foreign_text import to_one_line
from ferrule.stores.session_rows import SessionRows
from ferrule.stores.store import Store
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, ask, deny
from ferrule.values.event import Event
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.tool import Tool
    from ferrule.runner import Runner

Label: TypeAlias = Literal["untrusted", "private"]
"""The kind of data that a tool returns. See docs/guides/untrusted-content.md."""
_LABELS: Final = frozenset(get_args(Label))
_PHRASES: Final = {"untrusted": "read text from outside", "private": "read private data"}
_MOST_CHARACTERS: Final = 60
_BOTH: Final = "flow is one object in two places: write f = flow(…), and Runner(…, guards=[f], observers=[f])"


def flow(
    sources: Mapping[str, Label | Iterable[Label]] | None = None,
    sinks: Iterable[str] = (),
    *,
    exempt: Iterable[str] = (),
    rule: Literal["ask", "deny"] = "ask",
    store: Store | None = None,
) -> Flow:
    """Return a guard that asks before a tool may send data out, once its session has read something from outside or
    something private. See docs/guides/untrusted-content.md#stop-data-on-its-way-out.

        watch = flow(sources={"read_mail": "untrusted", "query_crm": "private"}, sinks={"send_mail"})
        runner = Runner(tools, guards=[watch], observers=[watch])

    It is a guard and an observer, and a runner refuses it in one place alone. A source counts from its start, whatever
    becomes of it; so do nested calls, and outcomes from the journal. Each principal and session has a state of its own.
    The runner's journal keeps it, if there is one. A yes is for one call; `clear` is for all that was read so far.

    A tool that you name is what you call it, but a glob in `sources` makes no tool that changes things harmless. The
    traits decide about the others. A tool is a source from outside if it is `open_world`, as tools are by default. It
    is a sink if it is not `read_only` as well; a read-only one is a sink only for private data, which a URL or a search
    can carry.

    Args:
        sources: For each tool or glob, what it returns: `"untrusted"`, `"private"`, or both.
        sinks: The tools and globs that can send data out.
        exempt: The tools and globs that are neither, whatever their traits say.
        rule: `"ask"` or `"deny"`.
        store: Keeps the state; by default the store of the journal, or the memory of this process. The observer writes
            to it on the event loop, at most once for each session and label. If there are several journals, the
            newest runner's keeps it, and this process remembers what the earlier ones have.

    Raises:
        DefinitionError: A parameter is not valid.
    """
    if rule not in ("ask", "deny"):
        raise DefinitionError(f"flow(rule) must be 'ask' or 'deny', not {rule!r}")
    labels = {name: _check_labels(name, given) for name, given in (sources or {}).items()}
    sink_names, exempt_names = read_names("flow", sinks=sinks, exempt=exempt)
    if shared := exempt_names & labels.keys():
        raise DefinitionError(f"flow(…): {sorted(shared)} cannot be in both 'sources' and 'exempt'")
    return Flow(labels, sink_names, exempt_names, rule, store)


def _check_labels(name: str, given: Any) -> frozenset[str]:
    labels = frozenset([given] if isinstance(given, str) else given)
    if not labels or not labels <= _LABELS:
        raise DefinitionError(f"flow(sources): {name!r} must be 'untrusted', 'private' or both, not {given!r}")
    return labels


class Flow:
    """The guard and observer of `flow`. See docs/guides/untrusted-content.md#stop-data-on-its-way-out."""

    def __init__(
        self,
        sources: Mapping[str, frozenset[str]],
        sinks: frozenset[str],
        exempt: frozenset[str],
        rule: Literal["ask", "deny"],
        store: Store | None,
    ) -> None:
        self.__name__ = "flow"
        self._sources = sources
        self._sinks = sinks
        self._exempt = exempt
        self._rule = rule
        self._rows = SessionRows("flow", store)
        """For each label: `at`, the seconds since the epoch, and `source`, the first call that read such data."""
        self._matched: set[str] = set()
        self._tools: dict[str, dict[tuple[object, object], Tool]] = {}

    # -- the guard ----------------------------------------------------------------------------------------------------

    async def check(self, call: ToolCall, context: ToolContext) -> Decision | None:
        """Ask or deny if the call can send out something that its session has read."""
        tool = context.tool.definition
        labels = self._find_sink_labels(tool, call.arguments)
        if not labels:
            return None
        marks = await to_thread(self._rows.read, self._rows.make_key(context.principal, context.session))
        read = [_format_mark(label, marks[label], context) for label in sorted(labels & marks.keys(), reverse=True)]
        if not read:
            return None
        decide = ask if self._rule == "ask" else deny
        return decide(
            f"this session {' and '.join(read)}, and {to_one_line(call.name, _MOST_CHARACTERS)} may send it on"
        )

    def asks(self, tool: Tool) -> bool:
        """Return whether it may ask about calls of the tool."""
        return self._rule == "ask" and self._may_be_sink(tool)

    # -- the observer -------------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Mark the session of a call that reads something."""
        if event.kind == "tool:started" or (event.kind in ("tool:post", "tool:error") and _may_have_read(event)):
            call = event.call
            labels = self._find_source_labels(call)
            if labels:
                number = to_one_line(call.id.removeprefix("call_"), _MOST_CHARACTERS)
                source = f"{to_one_line(call.name, _MOST_CHARACTERS)}, call {number}"
                self._mark(labels, {"at": event.at, "source": source}, event.principal, event.session)

    # -- the program --------------------------------------------------------------------------------------------------

    def mark(self, label: Label, source: str, *, principal: str | None = None, session: str | None = None) -> None:
        """Mark a session that reads something without a tool, such as a mail in its first message.

        Args:
            source: Where it comes from, in words for the question.

        Raises:
            DefinitionError: There is no such label.
        """
        mark = {"at": time(), "source": to_one_line(source, _MOST_CHARACTERS)}
        self._mark(_check_labels("mark", label), mark, principal, session)

    def clear(self, *, principal: str | None = None, session: str | None = None) -> None:
        """Forget what a session has read so far, after a person has looked at it.

        Raises:
            StoreError: The store cannot be changed.
        """
        self._rows.change(self._rows.make_key(principal, session), lambda marks: {})

    # -- the runner ---------------------------------------------------------------------------------------------------

    def check_runner(self, runner: Runner) -> None:
        """Take the runner's tools and journal.

        Raises:
            DefinitionError: The runner does not have both halves, or a name fits none of its tools.
        """
        if not any(one is self for one in runner.observers):
            raise DefinitionError(_BOTH)
        tools = (*runner.tools, *runner.tools.quarantined)
        for tool in tools:
            guards = [*runner.guards, *tool.guards, *(one for mount in tool.mounts for one in mount.settings.guards)]
            if self._may_be_sink(tool) and not any(one is self for one in guards):
                raise DefinitionError(f"{_BOTH}. It does not guard {tool.name!r}")
            for one in (tool, *(inner for mount in tool.mounts for inner in mount.tools)):
                self._tools.setdefault(one.name, {})[one.read_only, one.open_world] = one
        for pattern in (*self._sources, *self._sinks, *self._exempt):
            fits = any(_fits(tool, [pattern]) for tool in tools)
            # Later runners may have fewer tools, but none under another name.
            if not fits and (pattern not in self._matched or any(tool.name.endswith(pattern) for tool in tools)):
                names = ", ".join(tool.name for tool in tools)
                raise DefinitionError(f"flow(…): no tool is named {pattern!r}. The tools are {names}")
            self._matched.add(pattern)
        self._rows.follow(runner.journal)

    # -- labels and marks ---------------------------------------------------------------------------------------------

    def _find_source_labels(self, call: ToolCall) -> frozenset[str]:
        """Return the labels of the data that the call returns. Every tool with its name counts."""
        labels: frozenset[str] = frozenset()
        for tool in self._tools.get(call.name, {}).values():
            named = [given for pattern, given in self._sources.items() if _fits(tool, [pattern])]
            if named:
                labels = labels.union(*named)
            elif not _fits(tool, self._exempt | self._sinks) and tool.trait("open_world", call.arguments):
                labels |= {"untrusted"}
        return labels

    def _find_sink_labels(self, tool: Tool, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the labels of the data that the call must not send out."""
        if _fits(tool, self._sinks):
            return _LABELS
        is_read_only = tool.trait("read_only", arguments)
        if self._is_exempt(tool, is_read_only) or not tool.trait("open_world", arguments):
            return frozenset()
        return frozenset({"private"}) if is_read_only else _LABELS

    def _may_be_sink(self, tool: Tool) -> bool:
        return _fits(tool, self._sinks) or not (
            tool.open_world is False or self._is_exempt(tool, tool.read_only is True)
        )

    def _is_exempt(self, tool: Tool, is_read_only: bool) -> bool:
        """Return whether the tool is exempt, or named as a source. `mail_*` may fit `mail_send`, too."""
        is_named = any(name in self._sources for name in _list_names(tool))
        return _fits(tool, self._exempt) or is_named or (is_read_only and _fits(tool, self._sources))

    def _mark(self, labels: frozenset[str], mark: dict[str, Any], principal: str | None, session: str | None) -> None:
        """Add a mark for each label without one. If the store fails, this process remembers it, and tries again."""
        key = self._rows.make_key(principal, session)
        self._rows.record(key, lambda marks: {**dict.fromkeys(labels, mark), **marks})


def _fits(tool: Tool, patterns: Iterable[str]) -> bool:
    names = _list_names(tool)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _list_names(tool: Tool) -> tuple[str, ...]:
    """Return the names of a tool, here and in the runners that it is mounted from."""
    return (tool.name, *(mount.name for mount in tool.mounts))


def _may_have_read(event: Event) -> bool:
    """Return whether a call that ends may have text of its tool. It may have come from the journal, without a start."""
    result: ToolResult = event.data["result"]
    return result.success or result.executed is not False


def _format_mark(label: str, mark: Mapping[str, Any], context: ToolContext) -> str:
    at, now = (
        datetime.fromtimestamp(one, UTC) for one in (mark["at"], context.clock.now() if context.clock else time())
    )
    when = f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"
    return f"{_PHRASES[label]} at {when} ({mark['source']})"
