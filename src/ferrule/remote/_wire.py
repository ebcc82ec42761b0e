"""What crosses: an order, and what is told of it until it has ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from ferrule.executors.process import judged_text, pack_items, trace_headers, unpack_items
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields, ToolContext

VERSION = 1
"""Of orders and messages: who reads another one refuses it."""


@dataclass(frozen=True, slots=True)
class Order:
    """One judged call, with all that another machine needs to run its handler, and nothing of what it has itself:
    `deps`, `secrets`, the working directory.

    Attributes:
        recipe: How the tool is made again.
        arguments: The judged ones, as JSON text.
        id: The call's.
        parent: The id of the call that made it.
        key: What the call is known by when it comes again.
        remaining: Seconds that the handler has once it begins; `None` for no deadline.
        trace: The headers of the trace that it belongs to (W3C Trace Context).
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
        """The order of a judged call.

        Raises:
            ToolError: where its arguments have no JSON form.
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
        """It as JSON."""
        return json.dumps({"version": VERSION, **{name: getattr(self, name) for name in _FIELDS}})

    @staticmethod
    def read(text: str) -> Order:
        """What `text` made.

        Raises:
            ValueError: for the order of another version.
        """
        fields = json.loads(text)
        if (version := fields.pop("version")) != VERSION:
            raise ValueError(f"the order is of version {version}, and this is {VERSION}: run one Ferrule everywhere")
        return Order(**fields)

    def fields(self, deps: object, secrets: dict[str, object]) -> ContextFields:
        """What the context of its handler has."""
        metadata = unpack_items(self.metadata, "json")
        return ContextFields(self.session, self.principal, None, deps, metadata, secrets)


_FIELDS = tuple(Order.__dataclass_fields__)


class Kind(StrEnum):
    """What a message of the far side says."""

    BEGAN = "began"
    """The handler begins; anything of it may happen from now on."""
    TOLD = "told"
    """What it told since: a list of the data of `tool:progress` events, chunks among them."""
    VALUE = "value"
    """What it returned, packed. The last message."""
    RAISED = "raised"
    """What it raised, described. The last message."""
    NOT_STARTED = "not_started"
    """Why it was not started, described. The last message."""
