"""The question of a running tool to a person, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ferrule.errors import DefinitionError
from ferrule.values.content import to_jsonable
from ferrule.values.frozen import JsonObject, freeze
from ferrule.values.result import Suspending


@final
@dataclass(frozen=True, slots=True)
class InputRequired(Suspending):
    """The return value of a handler that needs input. The runner asks a person and runs the handler again.

    Its second run has `context.answer`. See docs/approvals.md#a-tool-that-needs-to-know-more.

    Args:
        reason: The question.
        schema: The JSON Schema of the answer, an object. Without it, the answer is a plain yes.
        state: JSON that the handler gets back, in another process too. The record seals it, but does not hide it.
        executed: `False` if the handler has changed nothing before it asked. A model reads that if the answer is no.

    Raises:
        DefinitionError: The schema is no mapping, or the state has no JSON form.
    """

    reason: str
    schema: JsonObject = field(default_factory=dict)
    state: Any = None
    executed: bool | None = None

    def __post_init__(self) -> None:
        reason: object = self.reason
        schema: object = self.schema
        if not isinstance(reason, str) or not reason.strip():
            raise DefinitionError(f"InputRequired(reason) is the question for a person, not {reason!r}")
        if not isinstance(schema, Mapping):
            raise DefinitionError(f"InputRequired(schema=…) is a JSON Schema of an object, not {schema!r}")
        object.__setattr__(self, "schema", freeze(to_jsonable(schema)))
        self._freeze_state(self.state)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to an `InputRequired`, in `context.answer`.

    See docs/approvals.md#a-tool-that-needs-to-know-more.

    Attributes:
        value: The object that fits the schema.
        state: The `state` of the question.
    """

    value: JsonObject
    state: Any = None
