"""The content of the traffic: an order, and the messages about it until its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from ferrule.executors.process import judged_text, pack_items, trace_headers, unpack_items
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, ToolContext

VERSION = 1
"""The version of orders and messages. Readers refuse any other version."""


@dataclass(frozen=True, slots=True)
class Order:
    """One judged call, with everything that another machine needs to run its handler.

    It has no data that the other machine provides itself: `deps`, `secrets`, the working directory.

    Attributes:
        recipe: The instructions to make the tool again.
        arguments: The judged arguments, as JSON text.
        id: The id of the call.
        parent: The id of the call that made it.
        key: The key that identifies a repetition of the call.
        remaining: The handler's seconds after its beginning; `None` for no deadline.
        trace: The headers of its trace (W3C Trace Context).
    """

    recipe: str
    arguments: str
    id: str
    parent: str | None
    key: str
    session: str | None
    principal: str | None
    metadata: dict[str, object]
    remaining: float | None
    trace: dict[str, str]

    @staticmethod
    def of(recipe: str, call: ToolCall, context: ToolContext) -> Order:
        """Return the order of a judged call.

        Raises:
            ToolError: Its arguments have no JSON form.
        """
        return Order(
            recipe=recipe,
            arguments=judged_text(call),
            id=call.id,
            parent=call.parent,
            key=context.idempotency_key,
            session=context.session,
            principal=context.principal,
            metadata=pack_items(context.metadata, "json"),
            remaining=context.remaining(),
            trace=trace_headers(),
        )

    def text(self) -> str:
        """Return the order as JSON."""
        return json.dumps({"version": VERSION, **{name: getattr(self, name) for name in _FIELDS}})

    @staticmethod
    def read(text: str) -> Order:
        """Return the order from the text of `text`.

        Raises:
            ValueError: The order is of another version.
        """
        fields = json.loads(text)
        if (version := fields.pop("version")) != VERSION:
            raise ValueError(f"the order has version {version}, not {VERSION}: use the same Ferrule everywhere")
        return Order(**fields)

    def fields(self, deps: object, secrets: dict[str, object]) -> ContextFields:
        """Return the fields for the context of its handler."""
        metadata = unpack_items(self.metadata, "json")
        return ContextFields(self.session, self.principal, None, deps, metadata, secrets)


_FIELDS = tuple(Order.__dataclass_fields__)


class Kind(StrEnum):
    """The kind of a message from the remote side."""

    BEGAN = "began"
    """The handler begins; from now on any of its effects may happen."""
    PROGRESS = "told"
    """The progress since the last message: a list of the data of `tool:progress` events, including chunks."""
    VALUE = "value"
    """The return value, packed. The last message."""
    RAISED = "raised"
    """A description of the exception. The last message."""
    NOT_STARTED = "not_started"
    """A description of the reason that it was not started. The last message."""
