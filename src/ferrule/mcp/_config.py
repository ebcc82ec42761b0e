"""The MCP servers named by a user: each form as a `Server`, and the files of the usual clients. Nothing here speaks to
any server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ferrule import DefinitionError
from ferrule.mcp._settings import Http, Memory, Server, Stdio, is_address, to_texts
from ferrule.security.paths import read_file
from ferrule.security.similar_names import lookalike_key

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
_MOST_CONFIG = 1_000_000
_LISTS = ("mcpServers", "servers")
_SETTING_KEYS = {"stdio": {"command", "args", "env", "cwd"}, "http": {"url", "headers"}}
_FILE_KEYS = {"stdio": {"envFile"}, "http": set[str]()}
_IGNORED_KEYS = {"timeout", "dev", "gallery", "version", "description", "alwaysLoad", "autoApprove", "alwaysAllow"}
"""Keys for other clients. Ferrule asks about every tool, whatever a file says. Clients disagree about the unit of
`timeout`."""
_COMMON_KEYS = {"type", "disabled", *_IGNORED_KEYS}
_TYPES = {"stdio": "stdio", "http": "http", "streamable-http": "http", "streamableHttp": "http", "sse": "http"}


def parse_servers(given: Sequence[object], name: str | None, inputs: Mapping[str, str]) -> list[Server]:
    """Return the servers named by a user, each form as a `Server`; several have names.

    Args:
        inputs: The values of `${input:…}`.

    Raises:
        DefinitionError: An item is no server, there is none, or several lack names or share one.
    """
    found = [server for one in given for server in _parse_server(one, inputs)]
    if name is not None:
        if len(found) != 1:
            raise DefinitionError(f"name={name!r} needs exactly one server, and there are {len(found)}")
        found = [replace(found[0], name=name)]
    if not found and not any(isinstance(one, Mapping | str | os.PathLike) for one in given):
        raise DefinitionError("connect() needs at least one server: a command, an address or an mcp.json")
    if len(found) > 1 and (unnamed := [server.address for server in found if server.name is None]):
        raise DefinitionError(
            f"each of several MCP servers needs a name for its tools, and {unnamed[0]!r} has none; write "
            "mcp.Stdio(…, name='files'), mcp.Http(…, name='web') or mcp.Memory(…, name='own')"
        )
    taken: dict[str, str] = {}
    for name in [server.name for server in found if server.name is not None]:
        if (other := taken.setdefault(lookalike_key(name), name)) != name:
            raise DefinitionError(f"two MCP servers have names that look the same: {other!r} and {name!r}")
    if len(taken) < sum(server.name is not None for server in found):
        names = [server.name for server in found]
        raise DefinitionError(f"two MCP servers have the name {next(n for n in names if names.count(n) > 1)!r}")
    return found


def _parse_server(one: object, inputs: Mapping[str, str]) -> list[Server]:
    if isinstance(one, Stdio | Http | Memory):
        return [one]
    if isinstance(one, str) and is_address(one):
        return [Http(one)]
    if isinstance(one, str | os.PathLike):
        return read_config(one, inputs)
    if isinstance(one, Mapping):
        return parse_config(one, "the mapping", None, inputs)
    if isinstance(one, list | tuple):
        if not one:
            raise DefinitionError("the command of an MCP server must not be empty")
        words = to_texts("the command", one)
        return [Stdio(words[0], words[1:])]
    if hasattr(one, "create_initialization_options"):
        return [Memory(one)]
    raise DefinitionError(
        f"{one!r} is not an MCP server: give a command as a list, an address, a path to an mcp.json or its mapping, "
        "or a low-level Server"
    )


def read_config(path: str | os.PathLike[str], inputs: Mapping[str, str]) -> list[Server]:
    """Return the servers of an `mcp.json`.

    Raises:
        DefinitionError: The file cannot be read, or has a key without a meaning here.
    """
    file = Path(path)
    try:
        found = json.loads(read_file(file, _MOST_CONFIG), object_pairs_hook=_refuse_duplicate_keys)
    except OSError as error:
        raise DefinitionError(f"{str(file)!r} cannot be read: {error.strerror or error}") from None
    except _DuplicateKeyError as error:
        raise DefinitionError(f"{str(file)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{str(file)!r} is not JSON: {error}") from None
    return parse_config(found, repr(str(file)), _find_workspace(file), inputs)


class _DuplicateKeyError(ValueError):
    """An object of JSON has a key twice."""


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object, or raise for a key that stands twice. `json` would silently keep the last of two keys."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(f"{key!r} appears twice in one object")
        found[key] = value
    return found


def _find_workspace(file: Path) -> Path:
    """Return the folder of a client's file; if the file stands in `.vscode` or `.cursor`, the folder around that."""
    folder = file.absolute().parent
    return folder.parent if folder.name.startswith(".") else folder


def parse_config(config: object, where: str, workspace: Path | None, inputs: Mapping[str, str]) -> list[Server]:
    """Return the servers of the content of an `mcp.json`, without those that are `disabled`.

    Args:
        workspace: The value of `${workspaceFolder}`.
        inputs: The values of `${input:…}`.
    """
    found = config if isinstance(config, Mapping) else {}
    lists = [key for key in _LISTS if key in found]
    if not lists or not isinstance(servers := found[lists[0]], Mapping):
        raise DefinitionError(f'{where} has no servers: an mcp.json is {{"mcpServers": {{"name": {{"command": …}}}}}}')
    if len(lists) > 1:
        raise DefinitionError(f"{where} has both 'mcpServers' and 'servers': use one of them")
    if others := sorted(found.keys() - {lists[0], "$schema", "inputs"}):
        raise DefinitionError(f"{where}: {others[0]!r} is unknown; an mcp.json has {lists[0]!r} and 'inputs'")
    references = _References(workspace, inputs, _read_inputs(found, where))
    parsed = [_server(name, entry, where, references) for name, entry in servers.items()]
    return [server for server in parsed if server is not None]


def _read_inputs(config: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    declared = config.get("inputs", [])
    if not isinstance(declared, list) or not all(isinstance(one, Mapping) and "id" in one for one in declared):
        raise DefinitionError(f"{where}: 'inputs' must be a list of objects, each with an 'id'")
    return {str(one["id"]): one for one in declared}


def _server(name: str, entry: object, where: str, references: _References) -> Server | None:
    about = f"{where}, server {name!r}"
    if not isinstance(entry, Mapping):
        raise DefinitionError(f"{about}: it must be an object with 'command' or 'url', not {entry!r}")
    keys = set(entry)
    if ("command" in keys) == ("url" in keys):
        raise DefinitionError(f"{about}: it must have either 'command' or 'url'")
    kind = "stdio" if "command" in keys else "http"
    allowed_keys = _COMMON_KEYS | _SETTING_KEYS[kind] | _FILE_KEYS[kind]
    if unknown := sorted(keys - allowed_keys):
        raise DefinitionError(f"{about}: {unknown[0]!r} is unknown; the keys are {', '.join(sorted(allowed_keys))}")
    if "type" in keys and (not isinstance(entry["type"], str) or _TYPES.get(entry["type"]) != kind):
        raise DefinitionError(
            f"{about}: 'type' is {entry['type']!r}; with {'command' if kind == 'stdio' else 'url'!r} it is "
            f"{'stdio' if kind == 'stdio' else 'http'!r}"
        )
    disabled = entry.get("disabled", False)
    if not isinstance(disabled, bool):
        raise DefinitionError(f"{about}: 'disabled' must be true or false, not {disabled!r}")
    if disabled:
        return None
    try:
        values = {key: references.fill(entry[key]) for key in keys & _SETTING_KEYS[kind]}
        if "envFile" in keys:
            file_variables = _read_env_file(references.fill(entry["envFile"]))
            values["env"] = {**file_variables, **values.get("env", {})}
        return Stdio(name=name, **values) if kind == "stdio" else Http(name=name, **values)
    except (DefinitionError, TypeError) as error:
        raise DefinitionError(f"{about}: {error}") from None


@dataclass(frozen=True)
class _References:
    """The values of `${…}` in a file.

    Attributes:
        workspace: The folder of the file; `None` for a mapping.
        values: The program's values of inputs, by id.
        inputs: The file's own descriptions of its inputs, by id.
    """

    workspace: Path | None
    values: Mapping[str, str]
    inputs: Mapping[str, Mapping[str, Any]]

    def fill(self, value: object) -> Any:
        """Return the value with all references replaced.

        Raises:
            DefinitionError: A reference has no value. No reference is passed on unreplaced.
        """
        if isinstance(value, Mapping):
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        return _REFERENCE.sub(lambda found: self._resolve(found[1]), value) if isinstance(value, str) else value

    def _resolve(self, reference: str) -> str:
        if reference.startswith("input:"):
            return self._resolve_input(reference.removeprefix("input:"))
        if reference in ("workspaceFolder", "workspaceFolderBasename"):
            if self.workspace is None:
                raise DefinitionError(f"${{{reference}}} is the folder of a file, but this is a mapping")
            return str(self.workspace) if reference == "workspaceFolder" else self.workspace.name
        if reference == "userHome":
            return str(Path.home())
        if reference in ("pathSeparator", "/"):
            return os.sep
        variable = _VARIABLE.fullmatch(reference)
        if variable is None:
            raise DefinitionError(
                f"${{{reference}}} is unknown; write ${{VAR}}, ${{VAR:-default}}, ${{env:VAR}}, "
                "${input:id}, ${workspaceFolder} or ${userHome}. An mcp.Stdio or "
                "mcp.Http takes texts as they are"
            )
        name, default = variable.groups()
        found = os.environ.get(name)
        if not found and default is not None:  # as in a shell: an empty one counts as none
            found = default
        if found is None:
            raise DefinitionError(f"the environment has no {name}; write ${{{name}:-default}} if it may be missing")
        return found

    def _resolve_input(self, name: str) -> str:
        about = self.inputs.get(name, {})
        found = self.values.get(name, about.get("default"))
        if not isinstance(found, str):
            what = f" ({about['description']})" if "description" in about else ""
            raise DefinitionError(
                f"${{input:{name}}}{what} has no value; pass "
                f"mcp.connect(…, inputs={{{name!r}: …}}), or write ${{env:NAME}}"
            )
        return found


def _read_env_file(path: object) -> dict[str, str]:
    """Return the variables of an `envFile`: lines `NAME=value`, with or without quotes around the value.

    Raises:
        DefinitionError: The file cannot be read, or a line is no variable. The text does not show the line.
    """
    if not isinstance(path, str):
        raise DefinitionError(f"'envFile' must be a path, not {path!r}")
    try:
        lines = read_file(path, _MOST_CONFIG).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DefinitionError(f"the envFile {path!r} cannot be read: {type(error).__name__}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", name.strip()):
            raise DefinitionError(f"line {number} of the envFile {path!r} is not NAME=value")
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        found[name.strip()] = value[1:-1] if quoted else value
    return found
