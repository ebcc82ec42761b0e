"""Describe an exception as plain data, and rebuild it in another process."""

from __future__ import annotations

import builtins
import traceback

from ferrule import errors
from ferrule.errors import RemoteError, ToolError, origin_of
from ferrule.executors.process.transfer import Plain

_PLAIN_TYPES = (str, int, float, bool, type(None))
_MODULES = {"builtins": builtins, "ferrule.errors": errors}


def describe_error(error: BaseException) -> Plain:
    """Return the error as plain data, for `rebuild_error`. See docs/long-work.md#somewhere-else."""
    origin = origin_of(error)  # `expose` compares the classes of the origin
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(origin).__mro__ if kind is not object]
    if isinstance(origin, RemoteError):  # from an isolated call that the handler made
        kinds = [*origin.kinds]
    retry_after, retryable = getattr(error, "retry_after", None), getattr(error, "retryable", None)
    formatted = traceback.TracebackException.from_exception(error)  # works even if the error's `__str__` raises
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
    """Return the arguments that make the exception again, or None if they are not plain data."""
    arguments = list(error.args)
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments.append(error.filename)  # `args` leaves it out
    return arguments if all(type(argument) in _PLAIN_TYPES for argument in arguments) else None


def rebuild_error(described: Plain) -> Exception:
    """Return the described error: a built-in class or one of Ferrule's own, else a `RemoteError`. See
    docs/long-work.md#somewhere-else.

    No other class is looked up or called, so a worker cannot choose code to run here.
    """
    kinds, text = tuple(described["kinds"]), described["text"]
    error = _rebuild_known_error(kinds[0], described["args"], text) or RemoteError(text, kinds, described["traceback"])
    if described["retry_after"] is not None:
        vars(error)["retry_after"] = described["retry_after"]
    if described.get("retryable") is not None:
        vars(error)["retryable"] = described["retryable"]
    if described["executed"] is not True:
        vars(error)["executed"] = described["executed"]
    error.add_note(f"Where the handler ran:\n{described['traceback']}")
    return error


def _rebuild_known_error(kind: str, arguments: list[object] | None, text: str) -> Exception | None:
    """Return the error if its class is known and makes the same text from these arguments, else None."""
    module, _, name = kind.rpartition(".")
    known_class = vars(_MODULES[module]).get(name) if module in _MODULES else None
    if arguments is None or not isinstance(known_class, type) or not issubclass(known_class, Exception):
        return None
    if issubclass(known_class, StopIteration | StopAsyncIteration):  # a coroutine cannot raise it here
        return None
    try:
        error = known_class(*arguments)
    except Exception:  # its constructor takes other arguments
        return None
    return error if str(error) == text else None
