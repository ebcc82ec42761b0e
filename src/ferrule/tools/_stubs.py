"""Write tools as typed Python functions, for a model that calls them in a program."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.values.frozen import thaw

AT_ONCE: Final = "at_once"
SEARCH: Final = "search_tools"
PREAMBLE: Final = "from typing import Any, Literal\n"
_OWN_NAMES: Final = frozenset({AT_ONCE, SEARCH, "Any", "Literal"})
_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_DEPTH: Final = 6
_INDENT: Final = "    "
_NO_DEFAULT: Final[Any] = object()


class Function:
    """A tool as a function of a program.

    Attributes:
        tool: The tool.
        name: The name of the function, an identifier that is no keyword and no builtin.
    """

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.name = to_identifier(tool.name)
        schema: Any = thaw(tool.input_schema)
        self._properties: dict[str, Any] = schema.get("properties", {})
        self._required = frozenset(schema.get("required", ()))
        self._shapes = _Shapes(schema)

    @cached_property
    def parameters(self) -> list[str]:
        """The parameters in the order of the stub: the required ones first. Other names are given as `**{…}`."""
        named = [name for name in self._properties if name.isidentifier() and not keyword.iskeyword(name)]
        return sorted(named, key=lambda name: name not in self._required)

    @cached_property
    def stub(self) -> str:
        """The definition as Python: the signature, with the documentation as its docstring."""
        parts = [self._format_parameter(name) for name in self.parameters]
        if len(parts) < len(self._properties):
            parts.append("**others: Any")
        output = thaw(self.tool.output_schema)
        shapes = _Shapes(output or {})
        head = f"def {self.name}({', '.join(parts)}) -> {'Any' if output is None else shapes.hint(output)}:"
        lines = [*self.tool.description.strip().splitlines(), *self._describe_parameters()]
        if output is not None and (shape := shapes.describe(output)) != shapes.hint(output):
            lines.append(f"Returns {shape}")
        text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''") or self.name
        return f'{head}\n{_INDENT}"""{text.replace(chr(10), chr(10) + _INDENT)}"""\n'

    def collect_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name.

        Raises:
            TypeError: There are too many positional arguments, or one is given twice.
        """
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments: {self.heading}")
        given = dict(zip(self.parameters, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise TypeError(f"{self.name}() got {min(twice)!r} twice: {self.heading}")
        return {**given, **kwargs}

    @property
    def heading(self) -> str:
        """The first line of the stub."""
        return self.stub.partition("\n")[0].removeprefix("def ").removesuffix(":")

    def _format_parameter(self, name: str) -> str:
        schema, hint = self._properties[name], self._shapes.hint(self._properties[name])
        if name in self._required:
            return f"{name}: {hint}"
        default = schema.get("default", _NO_DEFAULT) if isinstance(schema, Mapping) else _NO_DEFAULT
        is_plain = default is None or isinstance(default, str | int | float)
        return f"{name}: {hint} = {default!r}" if is_plain else f"{name}: {hint} = ..."

    def _describe_parameters(self) -> Iterator[str]:
        """Yield a line for each parameter whose type does not say everything."""
        for name, schema in self._properties.items():
            text = " ".join(str(schema.get("description", "")).split()) if isinstance(schema, Mapping) else ""
            hint, shape = self._shapes.hint(schema), self._shapes.describe(schema)
            about = "; ".join(filter(None, [text.rstrip("."), shape if shape != hint else ""]))
            if about or name not in self.parameters:
                label = name if name in self.parameters else f"**{{{name!r}: …}}"
                yield f"{label}: {about}".rstrip(": ")


class _Shapes:
    """The types of a JSON Schema, with its definitions."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = {
            f"#/{key}/{name}": one for key in ("$defs", "definitions") for name, one in schema.get(key, {}).items()
        }

    def hint(self, schema: Any) -> str:
        """Return a type hint."""
        return self._write(schema, 0, is_hint=True)

    def describe(self, schema: Any) -> str:
        """Return the type with the fields of its objects, as people write it: `{"id": int, "note"?: str}`."""
        return self._write(schema, 0, is_hint=False)

    def _write(self, schema: Any, depth: int, *, is_hint: bool) -> str:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return "Any"
        if "$ref" in schema:
            return self._write(self._definitions.get(schema["$ref"]), depth + 1, is_hint=is_hint)
        if "const" in schema or "enum" in schema:
            return _write_literal([schema["const"]] if "const" in schema else schema["enum"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return _join(self._write(one, depth + 1, is_hint=is_hint) for one in schema[key])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _join(self._write({**schema, "type": one}, depth + 1, is_hint=is_hint) for one in kind)
        if kind == "array":
            return f"list[{self._write(schema.get('items'), depth + 1, is_hint=is_hint)}]"
        if kind == "object":
            return self._write_object(schema, depth, is_hint=is_hint)
        return _PLAIN.get(str(kind), "Any")

    def _write_object(self, schema: Mapping[str, Any], depth: int, *, is_hint: bool) -> str:
        properties = schema.get("properties") or {}
        if is_hint or not properties:
            return f"dict[str, {'Any' if properties else self._write(_rest(schema), depth + 1, is_hint=is_hint)}]"
        required = schema.get("required", ())
        fields = (
            f"{json.dumps(name, ensure_ascii=False)}{'' if name in required else '?'}: "
            f"{self._write(one, depth + 1, is_hint=False)}"
            for name, one in properties.items()
        )
        return f"{{{', '.join(fields)}}}"


def _rest(schema: Mapping[str, Any]) -> Any:
    return schema.get("additionalProperties")


def _write_literal(values: Iterable[Any]) -> str:
    plain = [value for value in values if value is None or isinstance(value, str | int)]
    return f"Literal[{', '.join(map(repr, plain))}]" if plain else "Any"


def _join(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return "Any" if "Any" in found or not found else " | ".join(found)


def to_identifier(name: str) -> str:
    """Return the name of a tool as the name of a function that hides no builtin, and nothing that a program has."""
    found = re.sub(r"\W", "_", name)
    found = found if found.isidentifier() and found[0] != "_" else f"tool_{found.lstrip('_')}"  # a `_` is not exported
    is_taken = keyword.iskeyword(found) or hasattr(builtins, found) or found in _OWN_NAMES
    return f"{found}_" if is_taken else found


def make_functions(tools: Iterable[Tool]) -> dict[str, Function]:
    """Return the functions of tools, by name.

    Raises:
        DefinitionError: Two tools would have one name.
    """
    found: dict[str, Function] = {}
    for tool in tools:
        function = Function(tool)
        if (other := found.setdefault(function.name, function)) is not function:
            raise DefinitionError(f"{other.tool.name!r} and {tool.name!r} would both be {function.name}() in a program")
    return found
