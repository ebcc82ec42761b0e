"""`ferrule.lock`: the tool definitions that a person has accepted, and the differences from them. See docs/lock.md.

A definition is the part of a tool shown to a model and the guards, and the origin of the tool. The code of its handler
is not in it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

from ferrule.definition.handler import find_called_function
from ferrule.definition.tool import Tool
from ferrule.definition.toolset import Toolset
from ferrule.errors import DefinitionError
from ferrule.policy.files import PolicyFile, read_policy_file
from ferrule.policy.trust import MAX_TRUSTED_BYTES, TrustedFiles, format_trust_command, short_digest
from ferrule.security.similar_names import fold_name, lookalike_key
from ferrule.values.context import JUDGED_TRAITS

LOCK_FILE = "ferrule.lock"
RECORDED_TOOLSETS: ContextVar[list[tuple[str, Toolset]] | None] = ContextVar("RECORDED_TOOLSETS", default=None)
"""If this is a list, toolsets are not locked. Each toolset and its file are added here, for writing that file."""

Definition: TypeAlias = Mapping[str, Any]
"""The parts of a tool's definition by name, as JSON, and their `digest`."""


def make_definition(tool: Tool) -> Definition:
    """Return the definition of a tool. A trait computed from the arguments appears only as such. See docs/lock.md."""
    parts = {
        "description": tool.description,
        "title": tool.title,
        "input_schema": tool.input_schema,
        "hidden": sorted(tool.hidden),
        "output_schema": tool.output_schema,
        "traits": {name: _trait(value) for name, value in _find_traits(tool) if value or name != "sandboxed"},
        "tags": sorted(tool.tags),
        "examples": tool.examples,
        "provider": tool.provider,
        "version": tool.version,
        "source": _find_source(tool),
    }
    present = {name: value for name, value in parts.items() if value or name in ("description", "input_schema")}
    plain: dict[str, Any] = json.loads(json.dumps(present))
    return {**plain, "digest": _compute_digest(plain)}


def _find_traits(tool: Tool) -> list[tuple[str, object]]:
    return [(name, getattr(tool, name)) for name in JUDGED_TRAITS]


def _trait(value: object) -> object:
    return value if isinstance(value, bool) else "a function of the arguments"


def _find_source(tool: Tool) -> str:
    """Return the server, or the module and function. Only the module's last name counts: its import path may differ."""
    if tool.server is not None:
        return format_server_source(tool.server)
    function: Any = find_called_function(tool.handling.function)
    module = str(getattr(function, "__module__", None) or "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if file and (module == "__main__" or not module.replace(".", "").isidentifier()):  # a script, or loaded by its path
        module = Path(file).stem
    return f"{module.rpartition('.')[2]}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def format_server_source(server: str) -> str:
    """Return the source of a tool whose calls go to a server."""
    return f"server {_compute_digest(server)[:16]}"


def _compute_digest(value: object) -> str:
    from hashlib import sha256  # this import loads OpenSSL

    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def format_lock(definitions: Mapping[str, Definition]) -> str:
    """Return the contents of the lock file for definitions by tool name. They are ASCII, with nothing invisible. See
    docs/lock.md."""
    return json.dumps({"version": 1, "tools": definitions}, indent=2, sort_keys=True) + "\n"


def read_lock(file: str | os.PathLike[str]) -> dict[str, Definition]:
    """Return the definitions in a file, by tool name.

    Raises:
        DefinitionError: The file is missing, or differs from the output of `ferrule lock`.
    """
    name = os.fspath(file)
    return _parse_definitions(_read_lock_file(name).text, name)


class LockFile:
    """A lock file for programs that read it repeatedly. See docs/lock.md#trust."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.name = os.fspath(file)
        self._trusted = TrustedFiles()
        self._first: str | None = None

    def hold_key(self) -> None:
        """Fix the current key of the trusted versions, for a program that reads the file again later."""
        self._trusted.hold_key()

    def read(self) -> dict[str, Definition]:
        """Return the definitions in the file, if it is unchanged since the first read or a person trusts this version.

        Raises:
            DefinitionError: The file is missing, differs from the output of `ferrule lock`, or is an untrusted version.
        """
        file = _read_lock_file(self.name)
        trusted = self._trusted.versions().get(file.place)
        before = self._first if trusted is None else trusted.digest
        if before not in {None, file.digest}:
            change = f"from {short_digest(before or '')} to {short_digest(file.digest)}"
            remedy = f"read it, then run {format_trust_command(file.place)}"
            raise DefinitionError(f"{self.name!r} has changed {change}, and nobody trusts that version: {remedy}")
        definitions = _parse_definitions(file.text, self.name)
        self._first = file.digest
        return definitions


def _read_lock_file(name: str) -> PolicyFile:
    if not os.path.lexists(name):
        raise DefinitionError(
            f"there is no {name!r} with the accepted tools: run `ferrule lock` to write it for the current tools"
        )
    try:
        return read_policy_file(name, "project", max_bytes=MAX_TRUSTED_BYTES)
    except DefinitionError as error:
        raise DefinitionError(f"{name!r}: {error}") from None


def _parse_definitions(text: str, name: str) -> dict[str, Definition]:
    text = text.replace("\r\n", "\n")  # as Git writes it on Windows
    remedy = "restore it from version control, or delete it and run `ferrule lock` again"
    edited = ""
    try:
        definitions: dict[str, Definition] = {}
        for tool, parts in json.loads(text)["tools"].items():
            digest = parts.pop("digest")
            definitions[tool] = {**parts, "digest": _compute_digest(parts)}
            edited = edited or ("" if digest == definitions[tool]["digest"] else f", in the entry of {tool!r}")
        if text == format_lock(definitions):
            return definitions
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise DefinitionError(f"{name!r} differs from the output of `ferrule lock`{edited}: {remedy}")


def find_changed_parts(before: Definition, after: Definition) -> list[str]:
    """Return the names of the changed parts."""
    return [
        part
        for part in dict.fromkeys((*after, *before))
        if part != "digest" and _compute_digest(before.get(part)) != _compute_digest(after.get(part))
    ]


def find_lookalikes(names: Iterable[str]) -> dict[str, str]:
    """Return the names that look like another name, each with the first such other."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(fold_name(lookalike_key(name)), []).append(name)
    return {name: next(one for one in group if one != name) for group in groups.values() if group[1:] for name in group}


def find_differences(tools: Iterable[Tool], definitions: Mapping[str, Definition]) -> dict[str, str]:
    """Return the reason for each tool that differs from its accepted definition, by tool name."""
    tools, reasons = list(tools), {}
    lookalikes = find_lookalikes([*definitions, *(tool.name for tool in tools)])
    for tool in tools:
        accepted, lookalike = definitions.get(tool.name), lookalikes.get(tool.name)
        if accepted is None:
            reasons[tool.name] = "is new" if lookalike is None else f"is new, and its name looks like {lookalike!r}"
        elif changed := find_changed_parts(accepted, make_definition(tool)):
            reasons[tool.name] = f"changed since it was accepted: its {', '.join(changed)}"
    return reasons


def lock_tools(tools: Toolset, file: str | os.PathLike[str] | LockFile) -> Toolset:
    """Return the result of `Toolset.locked`. A `LockFile` is read again; any other file is read for the first time.

    Raises:
        DefinitionError: The file is missing, invalid or untrusted.
    """
    lock = file if isinstance(file, LockFile) else LockFile(file)
    if (recorded := RECORDED_TOOLSETS.get()) is not None:
        recorded.append((os.path.abspath(lock.name), tools))
        return tools
    reasons = find_differences(tools, lock.read())
    option = "" if lock.name == LOCK_FILE else f" --lock {lock.name!r}"
    for name, reason in reasons.items():
        reasons[name] = f"{reason} (to accept it: ferrule lock --accept {name!r}{option})"
        logging.getLogger("ferrule").warning("the tool %r is quarantined: it %s", name, reasons[name])
    judged = (tool.with_quarantine(reasons[tool.name]) if tool.name in reasons else tool for tool in tools)
    return Toolset([*judged, *tools.quarantined])
