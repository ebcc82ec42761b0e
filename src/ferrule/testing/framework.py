"""How a framework is driven by `AdapterContract`: what its model says, what it reads, and what a person is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.runner import Runner


@dataclass(frozen=True)
class Said:
    """A call as the scripted model makes it. See docs/coming-from.md#your-own-adapter.

    Attributes:
        id: The id of the call.
        name: The tool.
        arguments: As a dict, or as the text that the model wrote.
    """

    id: str
    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What the model reads of one call. See docs/coming-from.md#your-own-adapter.

    Attributes:
        text: All text of the result.
        failed: Whether the framework tells it as a failure.
        media: The bytes of pictures, sounds and files.
    """

    text: str
    failed: bool = False
    media: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Question:
    """What a person is shown of one call. See docs/coming-from.md#your-own-adapter.

    Attributes:
        arguments: What the tool would be run with.
        reason: Why somebody is asked.
    """

    arguments: Mapping[str, Any]
    reason: str = ""


RecordState: TypeAlias = Literal["kept", "changed", "lost"]
"""How the framework brings the record of a call with its answer: as it was, with `arguments["euros"]` of its `pending`
set to 500, or not at all. See docs/coming-from.md#your-own-adapter."""


class Driven:
    """A run of the framework, which has ended or waits for a person. See docs/coming-from.md#your-own-adapter.

    Attributes:
        results: What the model reads, by call id, so far.
        questions: What waits, by call id.
        progress: What was told while the calls ran: call id, done, total, message.
    """

    def __init__(self) -> None:
        self.results: dict[str, Seen] = {}
        self.questions: dict[str, Question] = {}
        self.progress: list[tuple[str, float, float | None, str | None]] = []

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: RecordState = "kept") -> None:
        """Answer the run as it stood when it began to wait; `results` and `questions` are then those of now.

        Args:
            answers: By call id: yes, no, or yes to these arguments in place of what was sent. Given once more, they are
                answers to the same run once more.
            record: How the framework brings the record along.
        """
        raise DefinitionError(f"{type(self).__name__} needs a method answer(self, answers, record='kept')")


class Framework:
    """How one framework is driven; each call of `drive` is a conversation of its own.

    The attributes say what it can do. Where one is not as it is by default, the tests about that are skipped, with
    the reason, or expect the other. See docs/coming-from.md#your-own-adapter.
    """

    malformed_text: ClassVar[bool] = False
    """Whether text that is no JSON reaches the adapter."""
    edits: ClassVar[bool] = True
    """Whether a person can change the arguments."""
    waits_with_record: ClassVar[bool] = False
    """Whether the call itself waits, and has its record in its hands."""
    holds_yes: ClassVar[bool] = False
    """Whether the framework itself holds a yes to these arguments, so that a call runs by it where no guard asks."""
    brings_record: ClassVar[bool] = True
    """Whether the record travels with the answer."""
    asks_once: ClassVar[bool] = False
    """Whether a person can be asked only once about a call: the model is then told to make it again."""
    asks_about_changes: ClassVar[bool] = True
    """Whether a person is asked about a call that guards have changed: else the model is told what to send."""
    has_principals: ClassVar[bool] = False
    """Whether it knows on whose behalf a run is."""
    knows_calls: ClassVar[bool] = True
    """Whether a call that comes without its record is known to be the same."""
    tells_progress: ClassVar[bool] = True
    """Whether the program that runs it is told of progress."""
    stores_data: ClassVar[bool] = False
    """Whether what `stored` gives can be pickled, and is no service. Another process takes it up then, which imports
    the module of this class and of what it gives."""

    async def drive(self, runner: Runner, *calls: Said) -> Driven:
        """A run whose model makes these calls in its first turn, and then ends; with principal "ada" where there are
        principals, and deps "DEPS"."""
        raise DefinitionError(f"{type(self).__name__} needs a method drive(self, runner, *calls) that gives a Driven")

    def stored(self, waiting: Any) -> Any:
        """What another process takes the run that waits up from: what the framework stores, and the questions as a
        person has them; `None` where only the process that asked can be answered."""
        return None

    async def elsewhere(self, runner: Runner, stored: Any) -> Driven:
        """The run that waits, as another process that has this runner takes it up."""
        raise DefinitionError(
            f"{type(self).__name__} has a method stored, and so needs elsewhere(self, runner, stored)"
        )
