"""`Order`: one call, ready to be sent to a worker."""

from __future__ import annotations

import json
import os

from ferrule.errors import NotStartedError, ToolError
from ferrule.isolation.recipes import Recipe
from ferrule.isolation.traces import trace_headers
from ferrule.isolation.transfer import Plain, judged_text, pack_items, pickled
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields


class Order:
    """One call, ready to be sent: made where it is submitted, so that what is sent is what was judged.

    Args:
        recipe: The tool's.
        call: With the judged arguments as its `raw` text.
        fields: What the caller gave as context.
        values: The validated values, which are sent where the transfer is pickle.
        remaining: Seconds that the handler has, once it begins.
        key: What the call is known by when it comes again.
        nested: Whether another call made it, which may have the worker that it would wait for.
        timed: Whether these are seconds of the machine, so that it is killed after them, whatever the loop does.

    Attributes:
        head: Call and context, as JSON.
        body: The arguments.
        mark: What every message of the call has.

    Raises:
        NotStartedError: where arguments or context cannot be sent.
    """

    __slots__ = ("body", "head", "mark", "nested", "recipe", "remaining", "timed")

    def __init__(
        self,
        recipe: Recipe,
        call: ToolCall,
        fields: ContextFields,
        values: object,
        remaining: float | None,
        *,
        key: str,
        nested: bool = False,
        timed: bool = True,
    ) -> None:
        self.recipe = recipe
        self.remaining = remaining
        self.nested = nested
        self.timed = timed
        self.mark = os.urandom(16)
        try:
            self.head = json.dumps({**self._head(call, fields), "key": key})
            self.body = self._body(call, values)
        except (ToolError, TypeError, ValueError) as error:
            raise NotStartedError(f"the call cannot be sent to another process: {error}") from error

    def _head(self, call: ToolCall, fields: ContextFields) -> Plain:
        transfer, context = self.recipe.transfer, self.recipe.context
        return {
            "id": call.id,
            "parent": call.parent,
            "transfer": transfer,
            "session": fields.session,
            "principal": fields.principal,
            "working_directory": fields.working_directory,
            "metadata": pack_items(fields.metadata, transfer),
            "secrets": pack_items(fields.secrets, transfer),
            "context": None if context is None else pack_items(context, transfer),
            "remaining": self.remaining,
            "trace": trace_headers(),
        }

    def _body(self, call: ToolCall, values: object) -> bytes:
        text = judged_text(call)
        if self.recipe.transfer == "pickle":
            return pickled((values, text), "its arguments")
        return text.encode("utf-8", "surrogatepass")
