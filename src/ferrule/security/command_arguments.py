"""Find the shell lines among the arguments of a call or the parameters of a tool, and the arguments beside each line.

The guards, the rules of a policy and remembered answers all use this module, so they agree about the lines of a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from ferrule.security.commands import COMMAND_NAMES, Line, read_argv, read_line, without_relative_paths
from ferrule.security.paths import has_last_word, split_name
from ferrule.security.schema_walk import Schema, find_forms, item_schemas, prefix_items, property_schemas

Place: TypeAlias = tuple[str | int, ...]
IsCommand: TypeAlias = Callable[[str, Place], bool]

_LINE_LIST_NAMES: Final = frozenset({"commands", "cmds"})
ARGUMENT_NAMES: Final = frozenset({"args", "arg", "arguments", "argument", "argv", "flags"})
"""The names of parameters for a program's arguments. See docs/guards.md#what-stands-beside-a-command."""
_ENVIRONMENT_NAMES: Final = frozenset(
    {"env", "envs", "environ", "environment", "envvars", "envvariables", "environmentvariables"}
)
_DIRECTORY_NAMES: Final = frozenset({"cd", "cwd", "workdir", "dir", "dirpath", "directory", "folder", "workingdir"})
_LINE_PARTS: Final = ARGUMENT_NAMES | _ENVIRONMENT_NAMES | _DIRECTORY_NAMES
"""The names of arguments that `read_lines` reads together with the command beside them."""
_EXPLANATION_NAMES: Final = frozenset(
    {"comment", "description", "explanation", "justification", "purpose", "rationale", "reason", "summary", "thought"}
)
"""The names of parameters that explain a command to a person."""
_RUNNING_WORDS: Final = COMMAND_NAMES | {
    *("shell", "bash", "sh", "zsh", "powershell", "pwsh", "script", "scripts"),
    *("executable", "exec", "eval", "subprocess", "popen"),
}
"""One of these anywhere in a name means that the value is run."""
_SHELL_WORDS: Final = frozenset({"shell", "bash", "sh", "ssh", "zsh", "powershell", "pwsh", "exec", "subprocess"})
"""One of these at the end of a tool's name means that the tool runs its input: `local_shell`, `docker_exec`."""
_GLUED_COMMAND: Final = re.compile(r"(cmd|command)s?(str|string|text|txt|line|lines)?\Z")
"""The endings of a word with the same meaning: `cmdstr`, `bashcommand`."""
_CODE_WORDS: Final = frozenset(
    {"code", "program", "snippet", "python", "ipython", "javascript", "js", "typescript", "ruby", "perl", "lua", "php"}
    | {"awk", "sed", "ssh", "cli", "repl", "terminal", "interpreter", "run", "execute"}
)
"""One of these means the same if every other word of the name is one of them, or a filler: a `zip_code` is not run."""
_FILLERS: Final = frozenset(
    {"a", "an", "the", "to", "of", "in", "raw", "user", "full", "source", "input", "text", "txt", "string", "str"}
    | {"line", "lines", "body", "block", "content", "value", "tool", "call", "do", "ast", "remote", "sandbox"}
    | {"on", "host", "pod", "container", "vm"}
)
_ID_NAMES: Final = frozenset({"id", "ids", "title"})
"""The last word of a name whose value only identifies an existing thing: `bash_id`."""
_SANDBOX_WORDS: Final = frozenset({"sandbox", "sandboxed", "unsandboxed"})
"""A flag with one of these words may lift a restriction, whether it is false or true."""
_READING_FLAGS: Final = _RUNNING_WORDS.union(
    _SANDBOX_WORDS,
    ("sudo", "root", "admin", "elevated", "escalated", "privileged", "network"),
    ("base", "encoded", "decode", "expand", "template", "interpolate"),
)
"""A flag with one of these words changes what a line means or may do. It can name nothing itself. `split_name` drops
the digits of `base64`.
"""


def is_command_name(name: str, place: Place = ()) -> bool:
    """Return whether the value of a parameter with this name is a shell line. See docs/guards.md#commands."""
    return has_last_word(name, COMMAND_NAMES)


def find_lines(
    arguments: Any, is_command: IsCommand = is_command_name, place: Place = ()
) -> Iterator[tuple[Place, Line]]:
    """Yield the lines in the arguments, at any depth, each with its place. See docs/guards.md#commands.

    Args:
        is_command: Return whether the value under a key, at a place, is a shell line.
        place: The place of `arguments` themselves.
    """
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            inner = (*place, key)
            if not is_command(key, inner):
                yield from find_lines(value, is_command, inner)
            elif value is not None:
                yield from ((inner, line) for line in read_lines(key, value, arguments, is_command, inner))
    elif isinstance(arguments, list | tuple):
        for at, one in enumerate(arguments):
            yield from find_lines(one, is_command, (*place, at))


def read_lines(
    name: str, value: Any, beside: Mapping[str, Any], is_command: IsCommand = is_command_name, place: Place = ()
) -> list[Line]:
    """Return the lines in a value with this name, at least one. See docs/guards.md#commands.

    A text is one line. A list of texts is an argument vector, or several lines under a name such as `commands`. In an
    object, the names of its own entries decide.

    Args:
        beside: The object around the value. Its `args` are more words; its `env` and `cwd` change the effect of a line.
    """
    more = {key: one for key, one in beside.items() if key != name and one}
    arguments = [one for key, one in more.items() if has_last_word(key, ARGUMENT_NAMES)]
    lines = list(_lines_under(name, value, arguments, is_command, place))
    if has_directory(more):
        lines = list(map(without_relative_paths, lines))
    if any(has_last_word(key, _ENVIRONMENT_NAMES) for key in more):
        lines = [replace(line, unknown=(*line.unknown, "what the environment changes")) for line in lines]
    return lines


def _lines_under(name: str, value: Any, arguments: list[Any], is_command: IsCommand, place: Place) -> Iterator[Line]:
    is_line = isinstance(value, str)
    if is_line or (_is_words(value) and not has_last_word(name, _LINE_LIST_NAMES)):
        if len(arguments) > 1 or not all(isinstance(one, str) or _is_words(one) for one in arguments):
            yield Line((), ("arguments that are not one list of texts",))
        elif arguments:
            yield from _lines_with_arguments(value, arguments[0])
        else:
            yield read_line(value) if is_line else read_argv(value)
    elif isinstance(value, list | tuple) and value:
        for at, one in enumerate(value):
            yield from _lines_under("", one, arguments, is_command, (*place, at))
    else:
        inner = [line for _, line in find_lines(value, is_command, place)]
        yield from inner or [Line((), ("a command that is neither text nor a list of texts",))]


def _lines_with_arguments(command: str | Iterable[str], arguments: str | Iterable[str]) -> Iterator[Line]:
    """Yield the readings of a program whose arguments are in an argument of their own.

    The first reading is one line of all words. If the arguments are a list, the second is their argument vector.
    """
    first = [command] if isinstance(command, str) else list(command)
    words = [arguments] if isinstance(arguments, str) else list(arguments)
    yield read_line(" ".join([*first, *words]))
    if not isinstance(arguments, str):
        yield read_argv([*first, *words])


def _is_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)


# -- arguments that may change the line beside them --------------------------------------------------------------------


def is_harmless_name(name: str) -> bool:
    """Return whether a parameter with this name cannot change what a command beside it runs.

    See docs/guards.md#commands.
    """
    return has_last_word(name, _EXPLANATION_NAMES)


def find_options(
    arguments: Any,
    is_command: IsCommand = is_command_name,
    is_harmless: Callable[[str], bool] = is_harmless_name,
    place: Place = (),
) -> list[Place]:
    """Return the places of all arguments that may change what a shell line of the call runs.

    An argument counts unless it is part of a line, a number, empty, or known to be harmless. A flag counts if its name
    says so, such as `shell`. The list is empty for a call without a line. See docs/guards.md#commands.
    """
    return _find_options(arguments, is_command, is_harmless, place) or []


def _find_options(
    value: Any, is_command: IsCommand, is_harmless: Callable[[str], bool], place: Place
) -> list[Place] | None:
    """Return the options among the arguments in `value`, or None if it has no line."""
    if isinstance(value, list | tuple):
        entries: dict[Any, Any] = {at: one for at, one in enumerate(value) if one}
        commands: set[Any] = set()
    elif isinstance(value, Mapping):
        entries = {
            key: one for key, one in value.items() if (one or _can_lift_limit(key, one)) and not is_harmless(key)
        }
        commands = {key for key in entries if is_command(key, (*place, key))}
    else:
        return None
    options: list[Place] = []
    has_line = bool(commands)
    line_parts = _LINE_PARTS if commands else frozenset[str]()
    for key, one in entries.items():
        inner = (*place, key)
        found = _find_options(one, is_command, is_harmless, inner)
        if found is not None:
            has_line = True
            options += found
        elif not (key in commands or _is_harmless_value(str(key), one) or has_last_word(str(key), line_parts)):
            options.append(inner)
    return options if has_line else None


def _is_harmless_value(key: str, value: Any) -> bool:
    """Return whether a value is a number, or a flag that does not change the meaning of a line."""
    return isinstance(value, int | float) and not (isinstance(value, bool) and _changes_reading(key))


def _can_lift_limit(key: str, value: Any) -> bool:
    return value is False and not _SANDBOX_WORDS.isdisjoint(split_name(key))


def _changes_reading(flag: str) -> bool:
    return not _READING_FLAGS.isdisjoint(split_name(flag))


# -- names of tools and of their parameters ----------------------------------------------------------------------------


def may_be_code(name: str) -> bool:
    """Return whether a parameter with this name may hold a shell line or a program: `script`, `code`, `cmd_str`.

    See docs/guards.md#commands.
    """
    words = split_name(name)
    if is_harmless_name(name) or has_last_word(name, _ID_NAMES):
        return False
    return any(word in _RUNNING_WORDS or _GLUED_COMMAND.search(word) for word in words) or may_run_code(name)


def may_run_code(name: str) -> bool:
    """Return whether a tool with this name may run its text: `bash`, `run_python`. See docs/guards.md#commands."""
    in_order = split_name(name)
    words = frozenset(in_order)
    if not _SHELL_WORDS.isdisjoint(in_order[-1:]):
        return True
    running = _RUNNING_WORDS | _CODE_WORDS
    return not words.isdisjoint(running) and words <= running | _FILLERS


def find_code(arguments: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places in the arguments, at any depth, whose values may be code by their names.

    See docs/guards.md#commands.
    """
    entries: Any = enumerate(arguments) if isinstance(arguments, list | tuple) else ()
    if isinstance(arguments, Mapping):
        entries = arguments.items()
    for key, value in entries:
        if isinstance(key, str) and value and _may_hold_code(key, value):
            yield (*place, key)
        yield from find_code(value, (*place, key))


def _may_hold_code(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return may_be_code(name)
    return isinstance(value, str | list | tuple) and (may_be_code(name) or has_last_word(name, ARGUMENT_NAMES))


@dataclass(slots=True)
class LineParameters:
    """The parameters of a tool, at any depth, from its schema. See docs/guards.md#commands.

    Attributes:
        tool: The tool's name.
        schema: Its schema.
        commands: More names of parameters for shell lines.
        texts: Names of parameters that are no shell lines.
        harmless: Names of parameters that do not change what a line runs.
        has_line: Whether one of the parameters is a shell line.
        is_open: Whether a call may have arguments at any depth without a name in the schema.
        options: The names of parameters that may change what a line runs.
        possible_code: The names of parameters that may be shell lines or programs, and are not known to be.
    """

    tool: str
    schema: Schema
    commands: Collection[str] = ()
    texts: Collection[str] = ()
    harmless: Collection[str] = ()
    has_line: bool = field(init=False)
    is_open: bool = field(init=False, default=False)
    options: list[str] = field(init=False)
    possible_code: list[str] = field(init=False, default_factory=list)
    _options_by_forms: dict[frozenset[int], list[str] | None] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        options = self._find_options([self.schema])
        self.has_line, self.options = options is not None, options or []
        if not (self.has_line or self.possible_code) and may_run_code(self.tool):
            self.possible_code = self.free_texts

    @property
    def free_texts(self) -> list[str]:
        """The names of the top-level parameters for any text that are not known to be harmless."""
        forms = find_forms([self.schema], self.schema)
        entries = ((name, node) for form in forms for name, node in form.get("properties", {}).items())
        declared = {*self.texts, *self.harmless}
        free = (name for name, node in entries if name not in declared and self._is_free(node))
        return list(dict.fromkeys(name for name in free if not has_last_word(name, _ID_NAMES)))

    def _find_options(self, nodes: Iterable[Any]) -> list[str] | None:
        """Return the options among the parameters in `nodes`, or None if there is no line."""
        nodes = list(nodes)
        forms = find_forms(nodes, self.schema)
        self.is_open = self.is_open or True in nodes or any(map(_is_open_form, forms))
        key = frozenset(map(id, forms))
        if key not in self._options_by_forms:
            self._options_by_forms[key] = _IN_PROGRESS
            self._options_by_forms[key] = self._collect_options(forms)
        return self._options_by_forms[key]

    def _collect_options(self, forms: list[Schema]) -> list[str] | None:
        entries: dict[str, list[Any]] = {}
        for form in forms:
            for name, node in form.get("properties", {}).items():
                entries.setdefault(name, []).append(node)
        harmless = {name for name in entries if self._is_harmless(name)}
        commands = {name for name, nodes in entries.items() if name not in harmless and self._is_command(name, nodes)}
        options: list[str] = []
        has_line = bool(commands)
        line_parts = _LINE_PARTS if commands else frozenset[str]()
        for name, nodes in entries.items():
            is_known = name in commands or name in harmless or name in self.texts
            if not is_known and self._may_be_code(name, nodes):
                self.possible_code.append(name)
            found = self._find_options(nodes)
            if found is _IN_PROGRESS or (found is None and name in harmless):
                continue
            if found is not None:
                has_line = True
                options += found
            elif not (name in commands or self._has_harmless_values(name, nodes) or has_last_word(name, line_parts)):
                options.append(name)
        for form in forms:
            found = self._find_options([*prefix_items(form), *item_schemas(form, None), *property_schemas(form, None)])
            if found is not None and found is not _IN_PROGRESS:
                has_line = True
                options += found
        return options if has_line else None

    def _is_harmless(self, name: str) -> bool:
        return name in self.harmless or (is_harmless_name(name) and name not in self.commands)

    def _is_command(self, name: str, nodes: Iterable[Any]) -> bool:
        if name in self.commands:
            return True
        return is_command_name(name) and name not in self.texts and any(map(self._may_be_unlisted, nodes))

    def _may_be_unlisted(self, node: Any) -> bool:
        """Return whether the schema allows a value outside of its lists (`enum` and `const`)."""
        leaves = self._leaves(node)
        return not leaves or any("enum" not in form and "const" not in form for form in leaves)

    def _may_be_code(self, name: str, nodes: Iterable[Any]) -> bool:
        is_words = has_last_word(name, ARGUMENT_NAMES) and not all(self._has_types(node, {"object"}) for node in nodes)
        return (is_words or may_be_code(name)) and any(map(self._is_free, nodes))

    def _is_free(self, node: Any) -> bool:
        return self._may_be_unlisted(node) and not self._has_types(node, _HARMLESS_TYPES)

    def _has_types(self, node: Any, allowed: Collection[str]) -> bool:
        """Return whether a schema names types, and only types in `allowed` or `"null"`."""
        types = {str(kind) for form in self._leaves(node) for kind in _list_types(form)}
        return bool(types) and types <= {*allowed, "null"}

    def _has_harmless_values(self, name: str, nodes: Iterable[Any]) -> bool:
        """Return whether all values are numbers, or flags that do not change the meaning of a line."""
        leaves = [form for node in nodes for form in self._leaves(node)]
        types = {kind for form in leaves for kind in _list_types(form)}
        return bool(leaves) and types <= _HARMLESS_TYPES and not ("boolean" in types and _changes_reading(name))

    def _leaves(self, node: Any) -> list[Schema]:
        return [form for form in find_forms([node], self.schema) if not _COMBINING_KEYWORDS & form.keys()]


def _is_open_form(form: Schema) -> bool:
    """Return whether a form accepts objects with more names than it lists, or lists of anything."""
    if "type" not in form and not form.keys().isdisjoint(_COMBINING_KEYWORDS | {"enum", "const"}):
        return False
    types = form.get("type", ("object", "array"))
    closed = any(form.get(key) is False for key in ("additionalProperties", "unevaluatedProperties"))
    if "object" in types and ("patternProperties" in form or not closed):
        return True
    return "array" in types and form.get("items", True) is True


_IN_PROGRESS: Final[list[str]] = []
"""The answer for a schema that contains itself."""
_HARMLESS_TYPES: Final = frozenset({"integer", "number", "boolean", "null"})
_COMBINING_KEYWORDS: Final = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def _list_types(form: Schema) -> Iterable[Any]:
    types = form.get("type", "any")
    return [types] if isinstance(types, str) else types


def has_directory(values: Mapping[str, object]) -> bool:
    """Return whether arguments beside a command set its directory. See docs/guards.md#commands."""
    return any(value and value != "." and has_last_word(name, _DIRECTORY_NAMES) for name, value in values.items())
