"""`Order`: one call in the form that is sent to a worker."""

from __future__ import annotations

import json
import os

from ferrule.errors import NotStartedError, ToolError
from ferrule.executors.process.recipe import Recipe
from ferrule.executors.process.traces import trace_headers
from ferrule.executors.process.transfer import Plain, judged_text, pack_items, to_pickle
from ferrule.values.call import ToolCall
from ferrule.values.context import ContextFields


class Order:
    """One call, written when it is submitted. So the worker gets the arguments that were judged.

    Args:
        recipe: The recipe of the tool.
        call: The call, with the judged arguments as its `raw` text.
        fields: The fields of the context.
        values: The validated values. They are sent only if the transfer is pickle.
        remaining: Seconds that the handler may run, or None.
        key: The idempotency key of the call.
        nested: Whether another call made this one. That call may hold the last worker, so this one gets an extra one.
        enforce_deadline: Whether the pool kills the worker after `remaining` seconds, even if the loop is blocked.

    Attributes:
        head: Call and context, as JSON.
        body: The arguments.
        token: A random token that every message of this call carries.

    Raises:
        NotStartedError: The arguments or the context cannot be sent.
    """

    __slots__ = ("body", "enforce_deadline", "head", "nested", "recipe", "remaining", "token")

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
        enforce_deadline: bool = True,
    ) -> None:
        self.recipe = recipe
        self.remaining = remaining
        self.nested = nested
        self.enforce_deadline = enforce_deadline
        self.token = os.urandom(16)
        try:
            self.head = json.dumps({**self._write_head(call, fields), "key": key})
            self.body = self._write_body(call, values)
        except (ToolError, TypeError, ValueError) as error:
            raise NotStartedError(f"the call cannot be sent to another process: {error}") from error

    def _write_head(self, call: ToolCall, fields: ContextFields) -> Plain:
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

    def _write_body(self, call: ToolCall, values: object) -> bytes:
        text = judged_text(call)
        if self.recipe.transfer == "pickle":
            return to_pickle((values, text), "its arguments")
        return text.encode("utf-8", "surrogatepass")
