"""What crosses between a program and its workers: frames, values, what was raised, and the way to a handler.

In the JSON form nothing that a worker sends is ever unpickled or otherwise made to run: values are plain data, and an
exception is an instance of a class that is loaded already, made without its `__init__`.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from ferrule.errors import ToolError
from ferrule.values.content import Block, Media, Text, clean
from ferrule.values.result import ToolResult

Transfer: TypeAlias = Literal["json", "pickle"]
RECIPES = 255
"""Tools that a worker keeps, and as many parts as a frame may have: a program may make new ones without end."""
IN_WORKER = False
"""Whether this process is a worker."""
_CHUNK = 1 << 16
_START = struct.Struct("!BB")
_LENGTH = struct.Struct("!Q")
_SCALARS = (str, int, float, bool, type(None))


class CannotCross(ToolError):
    """What cannot go from one process to the other in the chosen form."""


class RemoteTraceback(Exception):
    """The traceback in the worker, as text: the `__cause__` of what was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


# -- frames ----------------------------------------------------------------------------------------------------------


class Kind(IntEnum):
    """What a frame says; its parts in brackets."""

    PREPARE = 1
    """To the worker: tools that will be needed [how to make the tool, any number of times]."""
    CALL = 2
    """To the worker: run this [how to make the tool, surroundings or nothing, call and context, arguments]."""
    READY = 3
    """From the worker: it takes calls."""
    PROGRESS = 4
    """From the worker, of the call that runs: [what a `tool:progress` tells]."""
    VALUE = 5
    """From the worker: what the handler returned [value]."""
    RAISED = 6
    """From the worker: what the handler raised [exception]."""
    UNSTARTED = 7
    """From the worker: why the handler was not even started [exception]."""


Frame: TypeAlias = tuple[int, list[bytes]]


def framed(kind: Kind, *parts: bytes) -> bytes:
    """One message: its kind and its parts, each with its length."""
    lengths = (_LENGTH.pack(len(part)) for part in parts)
    return b"".join((_START.pack(kind, len(parts)), *lengths, *parts))


class Line:
    """One end of the socket between a program and a worker. Each end has one thread that reads; any may send."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._read = bytearray()
        self._sending = threading.Lock()

    def send(self, kind: Kind, *parts: bytes, unless: Callable[[], bool] | None = None) -> None:
        """Send a frame and wait until it is on its way; nothing where `unless` has come true by its turn.

        Raises:
            OSError: where the other end is gone.
        """
        with self._sending:
            if unless is None or not unless():
                self._end.sendall(framed(kind, *parts))

    def send_at_once(self, data: bytes) -> int:
        """Send as much of a frame as goes without waiting: how much that is.

        Raises:
            OSError: where the other end is gone.
        """
        with self._sending:
            try:
                return self._end.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return 0

    def send_rest(self, data: memoryview) -> None:
        """Send what `send_at_once` left, and wait for it.

        Raises:
            OSError: where the other end is gone.
        """
        with self._sending:
            self._end.sendall(data)

    def fileno(self) -> int:
        """For `select`."""
        return self._end.fileno()

    def finish(self) -> None:
        """Tell the other end that no more comes."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def receive(self) -> list[Frame]:
        """The frames that are complete now, after waiting for something to come.

        Raises:
            EOFError: where the other end is gone.
            ConnectionResetError: where it went before it had read all that was sent to it, on Linux.
        """
        data = self._end.recv(_CHUNK)
        if not data:
            raise EOFError("the other end of the line is gone")
        self._read += data
        frames = []
        while (frame := self._taken()) is not None:
            frames.append(frame)
        return frames

    def ended(self) -> None:
        """Look whether the other end, which is gone, had read all that was sent to it.

        Raises:
            ConnectionResetError: where it had not, on Linux.
        """
        with suppress(BlockingIOError):
            while self._end.recv(_CHUNK, socket.MSG_DONTWAIT):
                pass

    def _taken(self) -> Frame | None:
        read = self._read
        if len(read) < _START.size:
            return None
        kind, count = _START.unpack_from(read)
        place = _START.size + count * _LENGTH.size
        if len(read) < place:
            return None
        ends = [place]
        for number in range(count):
            ends.append(ends[-1] + _LENGTH.unpack_from(read, _START.size + number * _LENGTH.size)[0])
        if len(read) < ends[-1]:
            return None
        parts = [bytes(read[start:end]) for start, end in itertools.pairwise(ends)]
        del read[: ends[-1]]
        return kind, parts

    def close(self) -> None:
        """Close this end, once nobody sends: the number of its descriptor may be another's at once."""
        with self._sending:
            self._end.close()

    def abandon(self) -> None:
        """Close it in a forked child, where whoever was sending is not."""
        self._sending = threading.Lock()
        self._end.close()


# -- values ----------------------------------------------------------------------------------------------------------


def packed(value: Any, transfer: Transfer) -> bytes:
    """What a handler returned, to be sent.

    Raises:
        CannotCross: where it has no form in which it could.
    """
    if transfer == "pickle":
        return pickled(value, "what it returned")
    return to_bytes(_plain(value), "what it returned")


def unpacked(data: bytes, transfer: Transfer) -> Any:
    """What `packed` made. `transfer` is what the program asked for, never what a worker says.

    Raises:
        CannotCross: where it cannot be read here.
    """
    try:
        return pickle.loads(data) if transfer == "pickle" else _valued(json.loads(data))
    except Exception as error:
        raise CannotCross(f"what it returned cannot be read back: {type(error).__name__}: {error}") from error


def pickled(value: Any, what: str) -> bytes:
    """`value` pickled; `what` it is, for the text of the error.

    Raises:
        CannotCross: where it cannot be.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # any class may say no in its own way
        raise CannotCross(f"{what} cannot be pickled: {type(error).__name__}: {error}") from error


def to_bytes(value: Any, what: str) -> bytes:
    """`value` as JSON, written as a result's content is: secrets of Pydantic's stay veiled.

    Raises:
        CannotCross: where something in it has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_mapping)
    except (PydanticSerializationError, UnicodeError, RecursionError) as error:
        try:  # json escapes what UTF-8 cannot hold, lone surrogates
            return json.dumps(value, default=_mapping).encode()
        except (TypeError, ValueError, RecursionError):
            reason = str(error).removeprefix("Error serializing to JSON: ").removeprefix("TypeError: ")
            raise CannotCross(
                f"{what} cannot cross as JSON: {clean(reason)[:300]}; give plain data, or choose transfer='pickle'"
            ) from None


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _plain(value: Any) -> dict[str, Any]:
    """What JSON alone would not bring back as it was: results, blocks and bytes say what they are."""
    if isinstance(value, ToolResult):
        content = value._content
        return {
            "result": {"error": value.error, "status": value.status, "executed": value.executed},
            "metadata": value.metadata,
            "output": _plain(value.output),
            "content": None if content is None else [_plain_block(block) for block in content],
        }
    if isinstance(value, Text | Media):
        return {"block": _plain_block(value)}
    if isinstance(value, list | tuple) and value and all(isinstance(item, Text | Media) for item in value):
        return {"blocks": [_plain_block(item) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    return {"value": value}


def _valued(plain: dict[str, Any]) -> Any:
    if "value" in plain:
        return plain["value"]
    if "bytes" in plain:
        return base64.b64decode(plain["bytes"])
    if "block" in plain:
        return _block(plain["block"])
    if "blocks" in plain:
        return [_block(block) for block in plain["blocks"]]
    content = plain["content"]
    return ToolResult(
        _valued(plain["output"]),
        metadata=plain["metadata"],
        content=None if content is None else [_block(block) for block in content],
        **plain["result"],
    )


def _plain_block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"text": block.text}
    data = None if block.data is None else base64.b64encode(block.data).decode()
    return {"kind": block.kind, "data": data, "mime_type": block.mime_type, "uri": block.uri, "name": block.name}


def _block(plain: dict[str, Any]) -> Block:
    if "text" in plain:
        return Text(plain["text"])
    data = plain.pop("data")
    return Media(data=None if data is None else base64.b64decode(data), **plain)


# -- mappings of a context -------------------------------------------------------------------------------------------


class Crossed(dict[str, Any]):
    """A mapping of the program's, without what could not cross: to ask for that says so."""

    def __init__(self, values: Mapping[str, Any], left: Mapping[str, str]) -> None:
        super().__init__(values)
        self.left = left

    def __missing__(self, key: str) -> Any:
        if key in self.left:
            raise KeyError(f"{key!r} did not come to the isolated process: {self.left[key]}")
        raise KeyError(key)


def packed_items(values: Mapping[str, Any], transfer: Transfer) -> dict[str, Any]:
    """A mapping of which each item crosses by itself: what cannot stays behind with the reason.

    Guards and middleware keep objects of theirs there that no handler wants.
    """
    kept: dict[str, Any] = {}
    left: dict[str, str] = {}
    for key, value in values.items():
        try:
            if transfer == "pickle":
                kept[key] = base64.b64encode(pickled(value, "it")).decode()
            else:
                kept[key] = json.loads(to_bytes(_unveiled(value), "it"))
        except CannotCross as error:
            left[key] = str(error)
    return {"kept": kept, "left": left} if kept or left else {}


def unpacked_items(items: dict[str, Any], transfer: Transfer) -> Crossed:
    """What `packed_items` made."""
    kept = items.get("kept", {})
    if transfer == "pickle":
        kept = {key: pickle.loads(base64.b64decode(value)) for key, value in kept.items()}
    return Crossed(kept, items.get("left", {}))


def _unveiled(value: Any) -> Any:
    """What a Pydantic secret holds: the handler needs it, and Pydantic would write stars."""
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


# -- what was raised -------------------------------------------------------------------------------------------------


def told(error: BaseException) -> bytes:
    """What was raised, as data: its classes, text, simple attributes, notes, and traceback."""
    arguments: list[Any] | None = list(error.args)
    if isinstance(error, OSError) and isinstance(error.filename, str) and len(error.args) == 2:
        arguments = [*error.args, error.filename]  # which `args` leaves out
    if not all(type(argument) in _SCALARS for argument in error.args):
        arguments = None
    told = {
        "classes": [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__ if kind is not object],
        "text": _said(error),
        "args": arguments,
        "attributes": {name: value for name, value in vars(error).items() if type(value) in _SCALARS},
        "notes": [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)],
        "traceback": _traceback(error),
    }
    return json.dumps(told).encode()


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} without a text>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # an exception whose own text raises
        return "".join(traceback.format_tb(error.__traceback__))


_NOT_HERE = (KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)
"""What would mean something else in the program than it did in the worker."""


def rebuilt(data: bytes) -> BaseException:
    """What `told` made: an instance of the nearest of its classes that is loaded here."""
    told = json.loads(data)
    error = _nearest(told)
    if isinstance(error, _NOT_HERE):
        error = RuntimeError(f"{type(error).__name__} raised in an isolated process")
    for note in told["notes"]:
        error.add_note(note)
    error.__cause__ = RemoteTraceback(told["traceback"])
    return error


def _nearest(told: dict[str, Any]) -> BaseException:
    for place, names in enumerate(told["classes"]):
        kind = _loaded(*names)
        if kind is None:
            continue
        for made in (kind, _speaking(kind, told)) if place == 0 else (_speaking(kind, told),):
            error = None if made is None else _instance(made, told)
            if error is not None:
                return error
    return RuntimeError(told["text"])


def _loaded(module: str, qualname: str) -> type[BaseException] | None:
    """The class, without importing anything, a module's `__getattr__` included."""
    found: Any = sys.modules.get(module) if module != "__main__" else None
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _speaking(kind: type[BaseException], told: dict[str, Any]) -> type[BaseException] | None:
    """A subclass with the name that the class had there and the text that the exception had."""
    module, qualname = told["classes"][0]
    text = told["text"]
    space = {"__module__": module, "__qualname__": qualname, "__str__": lambda self: text}
    try:
        return type(qualname.rpartition(".")[2], (kind,), space)
    except Exception:  # its author's `__init_subclass__` may want anything
        return None


def _instance(kind: type[BaseException], told: dict[str, Any]) -> BaseException | None:
    """An instance whose text is the one that was told, or `None`.

    Made as its built-in base is: no code of the class's author runs, whatever a worker sends.
    """
    builtin = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    arguments = [told["text"]] if told["args"] is None else told["args"]
    try:
        error: BaseException = builtin.__new__(kind, *arguments)
        vars(error).update(told["attributes"])
        if isinstance(error, ToolError):
            vars(error).setdefault("result", None)
        with suppress(TypeError):  # some take only what is no plain data, and do without it
            builtin.__init__(error, *arguments)  # type: ignore[misc] # of a class, not of the instance
        return error if str(error) == told["text"] else None
    except Exception:
        return None


# -- where the program stands ----------------------------------------------------------------------------------------


def surroundings() -> tuple[str | None, list[str], dict[str, str]]:
    """Working directory, path of imports and environment of this process."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        directory = None
    path: list[Any] = sys.path  # which may hold anything: what is no text leads nowhere
    return directory, [entry for entry in path if isinstance(entry, str)], dict(os.environ)
