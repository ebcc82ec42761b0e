"""A model with scripted answers: for tests, examples and offline runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ferrule.errors import DefinitionError
from ferrule.models import Answer, Call, Message, Reply, Step
from ferrule.providers import openai_chat
from ferrule.values.call import ToolCall
from ferrule.values.count import format_count
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.definition.toolset import Toolset

Messages: TypeAlias = Sequence[Message]
_A_CALL = "('add', {'a': 1})"


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one turn."""

    messages: list[Message]
    """A copy of the messages in this turn. Two turns may share the objects of equal messages."""
    tools: Toolset
    """The tools that the model could call."""
    state: Mapping[str, Any]
    """The `Reply.state` of the turn before; mostly empty."""


@runtime_checkable
class RecordedRun(Protocol):
    """A run that has ended, such as the result of `loop.run`."""

    @property
    def replies(self) -> Sequence[Reply]: ...


@runtime_checkable
class RecordedCall(Protocol):
    """A call from a journal, such as a `LoggedCall` of its reader."""

    @property
    def began_at(self) -> float: ...

    @property
    def parent(self) -> str | None: ...

    def to_call(self, tools: Toolset | None = None) -> ToolCall: ...


class Scripted:
    """A model that answers with one step after the other, in messages of OpenAI's chat form; see docs/testing.md.

        async with Scripted([[("add", {"a": 1, "b": 2})], "Three."]) as model:
            await run(model, model.user("Add one and two."), runner)
        assert "add" in model.requests[0].tools
        assert model.requests[1].messages[-1]["content"] == "3"

    `requests` has its requests, turn by turn. If steps are left over, the end of `with` or `async with` raises
    `AssertionError`, unless the block itself raised. `assert_done()` raises it too. Without these, left over steps are
    ignored.

    Args:
        steps: Each is a text, a list of calls, a tuple of a text and such a list, a `Reply`, or a function from the
            messages to one of these. A call is a `ToolCall`, which keeps its id if it has one, or `(name, arguments)`;
            the arguments may be a mapping or any text, malformed JSON too.
        pause: Seconds before each answer.

    Raises:
        DefinitionError: The steps are no list.

    Its call raises `DefinitionError` when it is asked more often than there are steps.
    """

    api = "openai_chat"
    requests: list[Request]
    """The requests, turn by turn, including those without a step."""

    def __init__(self, steps: Iterable[Step], *, pause: float = 0.0) -> None:
        if isinstance(steps, str) or not isinstance(steps, Iterable):
            raise DefinitionError(f"steps is a list of what the model says and calls, turn by turn, not {steps!r}")
        self._steps = list(steps)
        self._pause = pause
        self._turns = 0
        self._asked_beyond = False
        self._ids: set[str] = set()
        self.requests = []

    async def __call__(
        self, messages: Messages, toolset: Toolset, /, *, state: Mapping[str, Any] | None = None
    ) -> Reply:
        self.requests.append(Request(self._copy_messages(list(messages)), toolset, state or {}))
        await asyncio.sleep(self._pause)
        if self._turns == len(self._steps):
            self._asked_beyond = True
            raise DefinitionError(
                f"the script has {format_count(len(self._steps), 'step')}, and the model was asked once more; "
                f"the last message was {_get_last(messages)!r}"
            )
        step = self._steps[self._turns]
        self._turns += 1
        return self._reply(step(messages) if callable(step) else step)

    @classmethod
    def from_run(
        cls, recorded: RecordedRun | Iterable[RecordedCall], *, tools: Toolset | None = None, pause: float = 0.0
    ) -> Scripted:
        """Return a model that repeats the answers of a run: the result of `loop.run`, or the calls of a run in a
        journal, such as `Reader("calls.db").calls(Filter(session="s7"))`, in any order.

        A journal has no texts of the model, and no record of which calls belong to one turn: each call is a turn of its
        own. Calls made by tools are left out, because the tools make them again. If the last turn has calls, a turn
        with the text "The recorded run ends here." follows.

        Args:
            recorded: The run.
            tools: The tools of a journal's calls: their bound and private arguments are left out, because no model
                fills them.
            pause: Seconds before each answer.

        Raises:
            DefinitionError: `recorded` is neither, has no turns, or has a call with redacted arguments (stars) in the
                journal.
        """
        model = cls((), pause=pause)
        if isinstance(recorded, RecordedRun):
            model._steps = [model._repeat_reply(reply) for reply in recorded.replies]
            ended = not (recorded.replies and recorded.replies[-1].calls)
        else:
            model._steps, ended = [[call] for call in _recorded_calls(recorded, tools)], False
        if not model._steps:
            raise DefinitionError("from_run takes a run in which the model has answered, and this one has no turns")
        model._steps += [] if ended else ["The recorded run ends here."]
        return model

    def _repeat_reply(self, reply: Reply) -> Reply:
        """Return the same turn in this model's own messages."""
        calls = [ToolCall(call.id, call.name, call.raw, problem=call.problem) for call in reply.calls]
        return replace(self._reply((reply.text, calls)), stop=reply.stop, reason=reply.reason)

    def _copy_messages(self, messages: list[Message]) -> list[Message]:
        """Return a copy of the messages. If they begin with all messages of the last request, share those copies."""
        before = self.requests[-1].messages if self.requests else []
        if messages[: len(before)] != before:
            return copy.deepcopy(messages)
        return [*before, *copy.deepcopy(messages[len(before) :])]

    def assert_done(self) -> None:
        """Check that every step was used, and that no step was missing.

        Raises:
            AssertionError: Steps are left over (the text has the next one), or the model was asked too often.
        """
        __tracebackhide__ = True
        steps, asked = len(self._steps), f"the model was asked {format_count(len(self.requests), 'time')}"
        if left := steps - self._turns:
            step = self._steps[self._turns]
            raise AssertionError(
                f"{left} of {format_count(steps, 'step')} left over, {asked}; the next is {step!r:.300}"
            )
        if self._asked_beyond:
            raise AssertionError(f"the script has {format_count(steps, 'step')}, and {asked}")

    def __enter__(self) -> Scripted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        if kind is None:
            self.assert_done()

    async def __aenter__(self) -> Scripted:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self.__exit__(kind, error, trace)

    def user(self, text: str, /) -> list[Message]:
        """Return the messages in which the user says `text`."""
        return [{"role": "user", "content": text}]

    def _reply(self, answer: Answer) -> Reply:
        if isinstance(answer, Reply):
            return answer
        text, given = _text_and_calls(answer)
        calls = [self._with_id(call) for call in given]
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [_call_message(call) for call in calls]
        response = {"choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}]}
        return Reply(text, calls, openai_chat.turn(response), openai_chat.stop(response))

    def _with_id(self, given: Call) -> ToolCall:
        if not isinstance(given, ToolCall) and not _is_name_and_arguments(given):
            raise DefinitionError(
                f"a call of a step is a ToolCall, or (name, arguments), such as {_A_CALL}, not {given!r}"
            )
        call = given if isinstance(given, ToolCall) else ToolCall("", *given)
        if not call.id:
            number = len(self._ids) + 1
            while f"call_{number}" in self._ids:
                number += 1
            call = call.replace(id=f"call_{number}")
        self._ids.add(call.id)
        return call

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """Return one message of the role `tool` for each result."""
        return openai_chat.results(results)


def _recorded_calls(recorded: Iterable[RecordedCall], tools: Toolset | None) -> list[ToolCall]:
    """Return the calls that the model made, in order of their start."""
    given: Any = list(recorded) if isinstance(recorded, Iterable) else [recorded]  # type: ignore[redundant-expr]
    for one in given:
        if not isinstance(one, RecordedCall):
            raise DefinitionError(
                "from_run takes the result of loop.run, or calls of a journal such as Reader('calls.db').calls(), "
                f"not {one!r:.200}"
            )
    calls = sorted((one for one in given if one.parent is None), key=lambda one: one.began_at)
    return [one.to_call(tools) for one in calls]


def _text_and_calls(answer: str | Sequence[Call] | tuple[str, Sequence[Call]]) -> tuple[str, Sequence[Call]]:
    if isinstance(answer, str):
        return answer, ()
    if (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], str)
        and isinstance(answer[1], list | tuple)
    ):
        return answer[0], answer[1]
    if isinstance(answer, list):
        return "", answer
    raise DefinitionError(
        f"a step is a text, a list of calls, such as [{_A_CALL}], (text, [calls]), a Reply or a function, "
        f"not {answer!r}"
    )


def _is_name_and_arguments(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) in (1, 2) and isinstance(given[0], str)


def _call_message(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw}}


def _get_last(messages: Messages) -> Any:
    return messages[-1] if messages else None
