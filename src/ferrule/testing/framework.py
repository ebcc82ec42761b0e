"""How `AdapterContract` drives a framework: the calls of its model, the results it reads, and the questions to a
person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.runner import Runner


@dataclass(frozen=True)
class ScriptedCall:
    """A call of the scripted model. See docs/coming-from.md#your-own-adapter.

    Attributes:
        id: The id of the call.
        name: The tool.
        arguments: A dict, or the text of the model.
    """

    id: str
    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True)
class ModelView:
    """The model's view of one call. See docs/coming-from.md#your-own-adapter.

    Attributes:
        text: All text of the result.
        failed: Whether the framework reports it as a failure.
        media: The bytes of pictures, sounds and files.
    """

    text: str
    failed: bool = False
    media: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Question:
    """A person's view of one call. See docs/coming-from.md#your-own-adapter.

    Attributes:
        arguments: The arguments with which the tool would run.
        reason: Why somebody is asked.
    """

    arguments: Mapping[str, Any]
    reason: str = ""


RecordState: TypeAlias = Literal["unchanged", "changed", "lost"]
"""How the framework brings the record of a call with its answer: unchanged, with `arguments["euros"]` of its `pending`
set to 500, or not at all. See docs/coming-from.md#your-own-adapter.
"""


class FrameworkRun:
    """A run of the framework, which has ended or waits for a person. See docs/coming-from.md#your-own-adapter.

    Attributes:
        results: The results the model reads so far, by call id.
        questions: The waiting questions, by call id.
        progress: The progress reports of the calls: call id, done, total, message.
    """

    def __init__(self) -> None:
        self.results: dict[str, ModelView] = {}
        self.questions: dict[str, Question] = {}
        self.progress: list[tuple[str, float, float | None, str | None]] = []

    async def answer(self, answers: Mapping[str, bool | dict[str, Any]], record: RecordState = "unchanged") -> None:
        """Answer the run in the state in which it began to wait. Then update `results` and `questions`.

        Args:
            answers: By call id: yes, no, or yes to these arguments in place of the sent ones. The same answers again
                answer the same run again.
            record: How the framework brings the record along.
        """
        raise DefinitionError(f"{type(self).__name__} needs a method answer(self, answers, record='unchanged')")


class Framework:
    """A driver of one framework. Each call of `start_run` is a conversation of its own.

    The attributes describe the framework's abilities. If it lacks one, the tests of that ability are skipped, with the
    reason, or expect the opposite. See docs/coming-from.md#your-own-adapter.
    """

    malformed_text: ClassVar[bool] = False
    """Whether text that is no JSON reaches the adapter."""
    overlaps_calls: ClassVar[bool] = True
    """Whether the calls of one turn run at the same time, if their tools allow it."""
    edits: ClassVar[bool] = True
    """Whether a person can change the arguments."""
    waits_with_record: ClassVar[bool] = False
    """Whether the call itself waits, and has its record in its hands."""
    holds_yes: ClassVar[bool] = False
    """Whether the framework itself holds a yes to these arguments, so that a call runs by it if no guard asks."""
    brings_record: ClassVar[bool] = True
    """Whether `answer` hands the record to the adapter. Otherwise the adapter uses the one that it stored."""
    asks_once: ClassVar[bool] = False
    """Whether a person can be asked only once about a call. The model then reads that it should make the call again."""
    asks_about_changes: ClassVar[bool] = True
    """Whether a person is asked about a call that guards have changed. Otherwise the model reads the arguments to
    send.
    """
    has_principals: ClassVar[bool] = False
    """Whether the framework knows on whose behalf a run is."""
    knows_calls: ClassVar[bool] = True
    """Whether a call without its record is recognized as the same call."""
    tells_progress: ClassVar[bool] = True
    """Whether the program around the framework gets progress reports."""
    stores_data: ClassVar[bool] = False
    """Whether the result of `export_run` can be pickled, and is no service. Another process can then continue the run;
    it imports the module of this class and of the result.
    """

    async def start_run(self, runner: Runner, *calls: ScriptedCall) -> FrameworkRun:
        """Return a run whose model makes these calls in its first turn, and then ends. The principal is "ada" if the
        framework has principals, and the deps are "DEPS".
        """
        raise DefinitionError(
            f"{type(self).__name__} needs a method start_run(self, runner, *calls) that gives a FrameworkRun"
        )

    def export_run(self, waiting: Any) -> Any:
        """Return the data from which another process continues the waiting run: the framework's stored data, and the
        questions as a person sees them. Return `None` if only the process that asked can be answered.
        """
        return None

    async def import_run(self, runner: Runner, stored: Any) -> FrameworkRun:
        """Return the waiting run, as another process with this runner continues it."""
        raise DefinitionError(
            f"{type(self).__name__} has a method export_run, and so needs import_run(self, runner, stored)"
        )
