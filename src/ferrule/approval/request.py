"""A question to a person and the answer: an `Asked` is shown, and an `Answer` comes back.

Each approver of this folder is called like any other, as `(call, decision, context)`. Its second method,
`answer(request)`, takes offers for "always" as well, and returns the chosen one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ferrule.approval.preview import NoPreview, preview_lines
from ferrule.approval.question import Question
from ferrule.arguments.parameters import Invalid
from ferrule.errors import DefinitionError, ToolError
from ferrule.executors.threads import Raised, run_in_thread
from ferrule.security.masking import format_traceback
from ferrule.security.paths import resolve_path
from ferrule.security.redactor import make_redactor
from ferrule.security.similar_names import lookalike_key
from ferrule.values.arguments import redact_hidden
from ferrule.values.call import ToolCall
from ferrule.values.content import safe_str
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny, deny_unreadable_answer
from ferrule.values.diff import Diff
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw
from ferrule.values.json_text import is_same_json
from ferrule.values.log import LogAttributes, log_attributes, write_log

if TYPE_CHECKING:
    from ferrule.approval.offer import Offer

_T = TypeVar("_T")
PREVIEW_SECONDS = 10.0
_POLL_SECONDS = 0.1
_THREADS_EACH = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to an `Asked`. See docs/approvals.md.

    Attributes:
        decision: `allow(…)`, `deny(…)`, or `ask(…)` for "not now".
        offer: The chosen offer, narrowed by the person; `None` for this call only.
    """

    decision: Decision
    offer: Offer | None = None


class RequestApprover(Protocol):
    """An approver that takes offers, as those of `ferrule.approval` do. See docs/approvals.md."""

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision: ...

    async def answer(self, request: Asked) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: a call, the decision to ask, and everything to show to a person. See docs/approvals.md.

    Attributes:
        call: The call in question, with stars for hidden values.
        decision: The decision to ask, with its `reason`, `rule`, `into` and `schema`.
        context: The context of the call.
        offers: The choices for "always"; the first is number 1.
        tool: The tool for these arguments, with its `preview` and its `hidden` parameters; `None` if it is unknown.
        preview: The lines of the preview, or a text with the reason why there is none; `None` for a tool without a
            preview, and before `with_preview`.
        binds: Values for private parameters of the tool. They tie the call to the preview.
        problem: The reason why the call cannot work; nobody is asked then.
        edited: Whether a person has changed the arguments.
    """

    call: ToolCall
    decision: Decision
    context: ToolContext
    offers: tuple[Offer, ...] = ()
    tool: Any = None
    preview: tuple[str, ...] | str | None = None
    binds: JsonObject = field(default_factory=FrozenDict)
    problem: str | None = None
    edited: bool = False

    @classmethod
    def of(cls, call: ToolCall, decision: Decision, context: ToolContext, offers: tuple[Offer, ...] = ()) -> Asked:
        """Return the question for an approver, without its preview."""
        return cls(call, decision, context, offers, getattr(context, "tool", None))

    @property
    def hidden(self) -> tuple[str, ...]:
        """The names of the arguments to show as stars."""
        into = self.decision.into
        return (*getattr(self.tool, "hidden", ()), *((into,) if into else ()))

    @property
    def arguments(self) -> JsonObject:
        """The arguments as shown to the person."""
        return redact_hidden(self.call.arguments, self.hidden)

    def question(self, *, whole: bool = False) -> Question:
        """Return the question as text for a terminal. Long values are shortened unless `whole` is true."""
        offers = [offer.text for offer in self.offers]
        return Question(
            self.call, self.decision, self.hidden, self.preview, offers=offers, edited=self.edited, whole=whole
        )

    @property
    def text(self) -> str:
        """The whole question, as lines."""
        return self.question(whole=True).text

    @property
    def digest(self) -> str:
        """The SHA-256 of the question, as 64 hexadecimal digits.

        It covers everything shown, the working directory, and the values bound by the preview.
        """
        from hashlib import sha256  # this import loads OpenSSL, and most programs never need it

        shown = {
            "name": self.call.name,
            "arguments": thaw(self.arguments),
            "reason": self.decision.reason,
            "rule": self.decision.rule,
            "into": self.decision.into,
            "schema": thaw(self.decision.schema),
            "session": self.context.session,
            "principal": self.context.principal,
            "directory": self.context.working_directory,
            "preview": self.preview,
            "binds": thaw(self.binds),
        }
        return sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()

    @property
    def has_preview(self) -> bool:
        """Whether the tool can preview this call. A question for input has none."""
        return getattr(self.tool, "preview", None) is not None and self.decision.schema is None

    def with_preview(self, on_wait: Callable[[], object] = lambda: None) -> Asked:
        """Return the question with a new preview. `on_wait` is called during the preview, and may raise.

        A preview that raises or takes longer than 10 s is left out, and the question says so.
        """
        return add_previews([self], on_wait)[0]

    def _make_preview(self) -> Asked:
        """Return the question with its preview as plain data, whatever the tool returns or raises."""
        failed = self._without_preview("")
        try:
            result = self.tool.preview(self.arguments)
            return replace(failed, preview=tuple(preview_lines(result)), binds=self._read_bindings(result))
        except NoPreview as error:
            return self._without_preview(str(error))
        except BaseException as error:  # also a `SystemExit` of the tool
            problem = safe_str(error) if isinstance(error, ToolError) else None
            if problem is None:
                self._log_failure(error)
            return replace(failed, preview=problem or f"it raised {type(error).__name__}", problem=problem)

    def _log_facts(self) -> LogAttributes:
        fields = getattr(self.context, "session", None), getattr(self.context, "principal", None)
        return log_attributes(self.call.name, self.call.id, *fields)

    def _log_failure(self, error: BaseException) -> None:
        lines = format_traceback(error, make_redactor(getattr(self.context, "secrets", None)))
        write_log(logging.ERROR, self._log_facts(), "the preview of tool %r raised: %s", self.call.name, lines)

    def _without_preview(self, reason: str) -> Asked:
        return replace(self, preview=reason, binds=FrozenDict(), problem=None)

    def _read_bindings(self, result: object) -> JsonObject:
        binds: JsonObject = freeze(result.binds) if isinstance(result, Diff) else FrozenDict()
        if others := sorted(binds.keys() - set(getattr(self.tool, "hidden", ()))):
            raise NoPreview(f"it binds {', '.join(others)}, and a preview can bind private parameters only")
        for name, value in binds.items():
            try:
                json.dumps(thaw(value), sort_keys=True, allow_nan=False)
            except (TypeError, ValueError, RecursionError):
                raise NoPreview(f"it binds {name!r} to a value without JSON") from None
        return binds

    def with_arguments(self, arguments: Mapping[str, Any], on_wait: Callable[[], object] = lambda: None) -> Asked:
        """Return the question about the call with other arguments from a person, with a new preview.

        A changed path becomes a real path. The question has no offers, because "always" is for the arguments of the
        model only.

        Raises:
            ValueError: The arguments do not fit, or the call cannot work with them. The text has the reason.
        """
        hidden = {name: value for name, value in self.call.arguments.items() if name in self.hidden}
        shown = self._validate({name: thaw(value) for name, value in arguments.items() if name not in self.hidden})
        call = self.call.replace(arguments=freeze({**hidden, **shown}))
        changed = replace(self, call=call, offers=(), edited=True, preview=None, binds=FrozenDict())
        changed = changed.with_preview(on_wait)
        if changed.problem is not None:
            raise ValueError(changed.problem)
        return changed

    def _validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the shown arguments, validated by the tool's schema and with its defaults.

        Raises:
            ValueError: The arguments do not fit.
        """
        tool = getattr(self.tool, "definition", self.tool)
        parameters = getattr(getattr(tool, "handling", None), "parameters", None)
        if parameters is None:
            return arguments
        try:
            validated = parameters.validate_change(self.call.name, arguments)
        except Invalid as error:
            raise ValueError(str(error).partition(" Nothing was run")[0]) from None
        paths = {
            found.place[0]: found.text for found in validated.places.paths if len(found.place) == 1 and not found.is_key
        }
        changed = {name: path for name, path in paths.items() if validated[name] != self.call.arguments.get(name)}
        real_paths = {name: resolve_path(path, self.context.working_directory) for name, path in changed.items()}
        in_order = dict.fromkeys((*self.call.arguments, *validated))
        names = (name for name in in_order if name in validated and name not in self.hidden)
        return {name: real_paths.get(name, thaw(validated[name])) for name in names}

    def check_answer(self, arguments: JsonObject | None) -> None:
        """Check that the values of a person's yes fit: the answer to a `schema`, or other arguments.

        Raises:
            ValueError: They do not fit. The text has the reason.
        """
        try:
            if self.decision.schema is not None:
                from ferrule.arguments.schema_parameters import SchemaParameters  # only for a tool that asks for input

                SchemaParameters(self.decision.schema).validate_with_repairs("the answer", arguments or {})
            elif arguments is not None and self.decision.into is None:
                self._validate({name: thaw(value) for name, value in arguments.items() if name not in self.hidden})
        except (Invalid, DefinitionError) as error:
            raise ValueError(str(error).partition(" Nothing was run")[0]) from None

    def approve(self, *, by: str | None = None, offer: Offer | None = None) -> Answer:
        """Return the answer that the call may run exactly as shown.

        The answer has the arguments changed by the person, and the values bound by the preview.
        """
        changed = self.edited or self.binds
        return Answer(allow({**self.call.arguments, **self.binds} if changed else None, by=by), offer)

    def deny(self, reason: str = "the person who was asked said no", *, by: str | None = None) -> Answer:
        """Return the answer that the call may not run. The model reads the reason."""
        return Answer(replace(deny(reason), by=by))

    def to_answer(self, value: object, by: str | None = None) -> Answer:
        """Return a result of an approver as an answer: an `Answer`, a `Decision` or a bool. Any other denies.

        An allow without other arguments is bound to the arguments as shown.
        """
        if value is True:
            return self.approve(by=by)
        if value is False:
            return self.deny(by=by)
        if not isinstance(value, Answer | Decision):
            value = deny_unreadable_answer(value, self.call.name, self._log_facts())
        answer = value if isinstance(value, Answer) else Answer(value)
        decision = answer.decision
        if decision.kind == "ask":
            return answer
        bound = self._bind(decision) if decision.kind == "allow" else decision
        return replace(answer, decision=replace(bound, by=decision.by or by))

    def find_conflict(self, by: str | None) -> str | None:
        """Return why a yes by this person does not count when nobody may allow their own call, or None if it does.

        A yes does not count if its author or the principal is unknown. Names with other spellings or the same look are
        one name.
        """
        if not by:
            return "the person who allowed this is unknown, and nobody may allow their own call"
        principal = self.context.principal
        if not principal:
            return "the principal of this call is unknown, and nobody may allow their own call"
        is_same = lookalike_key(by) == lookalike_key(principal)
        return f"{by!r} may not allow their own call" if is_same else None

    def _bind(self, decision: Decision) -> Decision:
        """Bind an allow to the arguments as shown. Other arguments, or an answer to a `schema`, stay as they are."""
        if self.decision.schema is not None:
            return decision
        if decision.arguments is None:
            return self.approve().decision
        into = self.decision.into
        answered, shown = (
            {name: thaw(value) for name, value in arguments.items() if name != into}
            for arguments in (decision.arguments, self.arguments)
        )
        if not is_same_json(answered, shown):
            return decision
        return replace(decision, arguments={**decision.arguments, **self.binds})


def add_previews(requests: Sequence[Asked], on_wait: Callable[[], object] = lambda: None) -> list[Asked]:
    """Return the requests with their previews, made in parallel within 10 s for all of them.

    Each principal has at most eight threads, so slow previews of one do not delay those of another. `on_wait` is
    called during the previews, and may raise.
    """
    made: dict[int, Asked] = {}
    queues: defaultdict[str | None, deque[int]] = defaultdict(deque)
    for number, request in enumerate(requests):
        if request.has_preview:
            queues[getattr(request.context, "principal", None)].append(number)

    def make_previews(queue: deque[int]) -> None:
        with suppress(IndexError):  # another thread took the last one, or time is up
            while True:
                number = queue.popleft()
                made[number] = requests[number]._make_preview()

    threads = [
        threading.Thread(target=copy_context().run, args=(make_previews, queue), name="ferrule-preview", daemon=True)
        for queue in queues.values()
        for _ in range(min(len(queue), _THREADS_EACH))
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PREVIEW_SECONDS
    try:
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(_POLL_SECONDS)
                on_wait()
    finally:
        for queue in queues.values():
            queue.clear()
    too_late = f"it takes longer than {PREVIEW_SECONDS:.0f} s"
    return [
        made.get(number) or (request._without_preview(too_late) if request.has_preview else request)
        for number, request in enumerate(requests)
    ]


async def add_preview(request: Asked) -> Asked:
    """Return `request` with its preview, made in a thread. See docs/approvals.md."""
    return await run_blocking(request.with_preview)


async def run_blocking(function: Callable[[], _T]) -> _T:
    """Run a blocking function, such as a preview or a store, in its own thread.

    Return its result or raise its exception.
    """
    result: Any = await run_in_thread(function)
    if isinstance(result, Raised):
        raise result.error
    return result  # type: ignore[no-any-return]
