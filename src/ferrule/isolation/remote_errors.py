"""What a handler raised in a worker, or elsewhere, as data and as an exception again."""

from __future__ import annotations

import builtins
import traceback

from ferrule import errors
from ferrule.errors import RemoteError, ToolError, origin_of
from ferrule.isolation.transfer import Plain

_PLAIN_TYPES = (str, int, float, bool, type(None))
_MODULES = {"builtins": builtins, "ferrule.errors": errors}


def describe(error: BaseException) -> Plain:
    """What was raised, as data for `rebuild`."""
    origin = origin_of(error)  # `expose` goes by that
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(origin).__mro__ if kind is not object]
    if isinstance(origin, RemoteError):  # of an isolated call that the handler made itself
        kinds = [*origin.kinds]
    retry_after, retryable = getattr(error, "retry_after", None), getattr(error, "retryable", None)
    formatted = traceback.TracebackException.from_exception(error)  # whatever the author's `__str__` does
    return {
        "kinds": kinds,
        "text": str(formatted),
        "args": _plain_args(error) if error is origin else None,
        "retry_after": retry_after if isinstance(retry_after, int | float) else None,
        "retryable": retryable if isinstance(retryable, bool) else None,
        "executed": error.executed if isinstance(error, ToolError | RemoteError) and error is origin else True,
        "traceback": "".join(formatted.format()),
    }


def _plain_args(error: BaseException) -> list[object] | None:
    """What the exception can be made of again; `None` where that is no plain data."""
    arguments = list(error.args)
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments.append(error.filename)  # which `args` leaves out
    return arguments if all(type(argument) in _PLAIN_TYPES for argument in arguments) else None


def rebuild(described: Plain) -> Exception:
    """What `describe` made: the exception itself where it is built in or Ferrule's own, else a `RemoteError`.

    No class of anybody else's is looked up or called, whatever a worker sends.
    """
    kinds, text = tuple(described["kinds"]), described["text"]
    error = _itself(kinds[0], described["args"], text) or RemoteError(text, kinds, described["traceback"])
    if described["retry_after"] is not None:
        vars(error)["retry_after"] = described["retry_after"]
    if described.get("retryable") is not None:
        vars(error)["retryable"] = described["retryable"]
    if described["executed"] is not True:
        vars(error)["executed"] = described["executed"]
    error.add_note(f"Where the handler ran:\n{described['traceback']}")
    return error


def _itself(kind: str, arguments: list[object] | None, text: str) -> Exception | None:
    module, _, name = kind.rpartition(".")
    found = vars(_MODULES[module]).get(name) if module in _MODULES else None
    if arguments is None or not isinstance(found, type) or not issubclass(found, Exception):
        return None
    if issubclass(found, StopIteration | StopAsyncIteration):  # would mean something else here
        return None
    try:
        error = found(*arguments)
    except Exception:  # made in a way of its own
        return None
    return error if str(error) == text else None
