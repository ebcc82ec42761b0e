"""What a running tool wants to know from a person, and what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ferrule.errors import DefinitionError
from ferrule.values.content import jsonable
from ferrule.values.frozen import JsonObject, freeze, thaw
from ferrule.values.json_text import same


@final
@dataclass(frozen=True, slots=True)
class InputRequired:
    """What a handler returns that cannot go on without a person: the runner asks, and runs the handler again, which
    then has `context.answer`. See docs/approvals.md#a-tool-that-needs-to-know-more.

    Args:
        reason: The question.
        schema: The JSON Schema, of an object, of what is wanted; left out, a plain yes is.
        state: JSON that the handler gets back, in another process too; sealed in the record, but not hidden there.

    Raises:
        DefinitionError: where the schema is no mapping, or the state no JSON.
    """

    reason: str
    schema: JsonObject = field(default_factory=dict)
    state: Any = None

    def __post_init__(self) -> None:
        reason: object = self.reason
        schema: object = self.schema
        if not isinstance(reason, str) or not reason.strip():
            raise DefinitionError(f"InputRequired(reason) is the question for a person, not {reason!r}")
        if not isinstance(schema, Mapping):
            raise DefinitionError(f"InputRequired(schema=…) is a JSON Schema of an object, not {schema!r}")
        kept = jsonable(self.state)
        if not same(kept, thaw(self.state)):
            raise DefinitionError(f"InputRequired(state=…) must be plain JSON, not {type(self.state).__name__}")
        object.__setattr__(self, "schema", freeze(jsonable(schema)))
        object.__setattr__(self, "state", freeze(kept))


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a person answered to an `InputRequired`, as the handler finds it in `context.answer`.
    See docs/approvals.md#a-tool-that-needs-to-know-more.

    Attributes:
        value: The object that fits the schema.
        state: What the handler kept for itself.
    """

    value: JsonObject
    state: Any = None
