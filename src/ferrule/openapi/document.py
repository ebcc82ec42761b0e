"""An OpenAPI document and the targets of its references: read from files, or passed as data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from ferrule import DefinitionError
from ferrule.security.paths import open_inside

_EXTRA: Final = 'pip install "ferrule[openapi]"'
_MOST_JSON, _MOST_YAML, _MOST_READ = 24_000_000, 6_000_000, 48_000_000
"""Most bytes of one file in JSON and in YAML, and of all files. A megabyte of YAML is read in 1 s, one of JSON in 10
ms."""
_MOST_FOLLOWED: Final = 20
_MOST_UNITS: Final = 15_000_000
"""Most work for the tools of one document, in units of about a microsecond; the largest document seen takes a third of
it."""
_MOST_REFERENCE: Final = 2_000
_MOST_VALUES_YAML: Final = 1_000_000
_MOST_DEEP_YAML: Final = 200
"""Most levels of YAML. LibYAML makes nested nodes on the stack of C, and fifty thousand levels end the program."""
_VERSIONS_READ = re.compile(r"3\.([012])(\.\d+)*(-.*)?")


class Spelling(NamedTuple):
    """The spelling of an import's options in its errors."""

    server: str
    further_server: str
    credential: str
    only: str
    some: str
    roots: str
    budget: str
    credential_value: str = ""


IN_PYTHON: Final = Spelling(
    server="server={!r}",
    further_server="server=[…, …]",
    credential="credentials={{{!r}: 'NAME'}}",
    only="only={!r}",
    some="only=['GET', 'tag:…', '/orders/*']",
    roots="roots=[…]",
    budget="offer few at a time by a selector of ferrule.selection, and give budget=None",
    credential_value=" and Runner(…, secrets={'NAME': …})",
)


class WholeDocumentError(DefinitionError):
    """An error of a document as a whole. It ends the import, instead of leaving out one operation."""


class Node(NamedTuple):
    """A part of a document, and the URI of that document: its references are relative to it."""

    value: Any
    base: str


class Document:
    """An OpenAPI document of version 3.0, 3.1 or 3.2.

    Args:
        source: A file, or the data of one.
        roots: The folders for the files in its references.
        spelling: The spelling of options in errors.

    Raises:
        DefinitionError: It is no such document, cannot be read, or is too large.

    Attributes:
        root: The whole of it.
        minor: The 1 of 3.1.
        name: Its name in errors.
    """

    def __init__(
        self, source: str | os.PathLike[str] | Mapping[str, Any], roots: tuple[str, ...], spelling: Spelling = IN_PYTHON
    ) -> None:
        self.spelling = spelling
        try:
            import referencing
        except ImportError as error:
            raise DefinitionError(f"OpenAPI needs a package that cannot be imported ({error}): {_EXTRA}") from error
        library: Any = referencing
        self._opaque = library.Specification.OPAQUE
        self._roots = [os.path.realpath(root) for root in roots]
        self._left = _MOST_READ
        self._work = 0
        self._files: dict[str, Any] = {}
        if isinstance(source, Mapping):
            self.name, value = "the OpenAPI document", source
            base = Path(self._roots[0], "document").as_uri() if self._roots else ""
        elif isinstance(source, str | os.PathLike):
            path = Path(os.path.realpath(source))
            self.name, base = os.fspath(source), path.as_uri()
            value = self._read(str(path.parent), str(path), self.name)
        else:
            raise DefinitionError(f"an OpenAPI document must be a file or a mapping, not a {type(source).__name__}")
        self.minor = _minor_version(value, self.name)
        itself = [base, *([value["$self"]] if self.minor >= 2 and isinstance(value.get("$self"), str) else [])]
        resources = [(uri, self._resource(value)) for uri in itself]
        self._registry = library.Registry(retrieve=self._retrieve).with_resources(resources)
        self.root = Node(value, base)

    def spend(self, units: int) -> None:
        """Count work, also for parts that are refused later.

        Raises:
            WholeDocumentError: The work is more than the whole document may take.
        """
        self._work += units
        if self._work > _MOST_UNITS:
            raise WholeDocumentError(
                f"{self.name} takes too much work to read as a whole: choose some operations, {self.spelling.some}"
            )

    def follow(self, node: Node) -> Node:
        """Return the target of a reference, through further references, or the node itself if it is none.

        Raises:
            DefinitionError: The reference leads nowhere, or round.
        """
        for _ in range(_MOST_FOLLOWED):
            reference = node.value.get("$ref") if isinstance(node.value, Mapping) else None
            if not isinstance(reference, str):
                return node
            node = self.resolve(reference, node.base)
        raise DefinitionError(f"the reference {reference!r:.200} leads through more than {_MOST_FOLLOWED} references")

    def resolve(self, reference: str, base: str) -> Node:
        """Return the target of a reference in the document `base`.

        Raises:
            DefinitionError: The reference leads nowhere.
        """
        from referencing.exceptions import Unresolvable

        self.spend(10)
        check_reference_length(reference)
        try:
            found = self._registry.resolver(base).lookup(reference)
        except (Unresolvable, ValueError, TypeError) as error:  # the last for a pointer into a value without parts
            raise DefinitionError(f"the reference {reference!r:.200}: {_find_cause(error)}") from None
        return Node(found.contents, urldefrag(urljoin(base, reference))[0])

    def _resource(self, value: Any) -> Any:
        return self._opaque.create_resource(value)

    def _retrieve(self, uri: str) -> Any:
        if uri not in self._files:
            self._files[uri] = self._resource(self._read_external(uri))
        return self._files[uri]

    def _read_external(self, uri: str) -> Any:
        parts = urlsplit(uri)
        if parts.scheme not in {"", "file"} or parts.netloc:
            roots = self.spelling.roots
            raise DefinitionError(f"it is at an address, and Ferrule fetches nothing: save it into a folder of {roots}")
        if not self._roots:
            raise DefinitionError(f"it is in another file: name the folder of the files, {self.spelling.roots}")
        path = url2pathname(parts.path)
        for root in self._roots:
            try:
                return self._read(root, path, parts.path)
            except PermissionError:
                continue
        raise DefinitionError(f"{parts.path!r:.200} is in none of the folders {self._roots}")

    def _read(self, root: str, path: str, shown: str) -> Any:
        """Return the data of a file.

        Raises:
            PermissionError: The file is outside of `root`.
            DefinitionError: The file cannot be read, or is too large.
        """
        try:
            with open_inside(root, path, "rb") as file:
                text = file.read(_MOST_JSON + 1) or b""  # some files of /proc give None
        except PermissionError:
            raise
        except (OSError, ValueError) as error:
            raise DefinitionError(f"{shown} cannot be read: {error}") from None
        is_json = text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
        most = _MOST_JSON if is_json else _MOST_YAML
        self._left -= len(text)
        if len(text) > most or self._left < 0:
            kind = "JSON" if is_json else "YAML"
            whole = "" if len(text) > most else " with what was read before"
            raise DefinitionError(
                f"{shown} is too large{whole}: {most:,} bytes of {kind} are read, and {_MOST_READ:,} of all files; "
                "cut out the operations that you need"
            )
        try:
            return json.loads(text) if is_json else _from_yaml(text)
        except RecursionError:
            raise DefinitionError(f"{shown} is nested too deeply") from None
        except ValueError as error:
            raise DefinitionError(f"{shown} is not {'JSON' if is_json else 'YAML'}: {error}") from None


def _find_cause(error: BaseException) -> str:
    """Return the problem with a file, if it is the reason why a reference leads nowhere."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DefinitionError):
        cause = cause.__cause__
    return "it leads nowhere" if cause is None else str(cause)


def _minor_version(value: Any, name: str) -> int:
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{name} is not an OpenAPI document: it must be an object in JSON or YAML")
    version = value.get("openapi")
    found = _VERSIONS_READ.fullmatch(version) if isinstance(version, str) else None
    if found is not None:
        return int(found[1])
    if "swagger" in value:
        raise DefinitionError(f"{name} is Swagger 2.0: convert it to OpenAPI 3.0, 3.1 or 3.2")
    raise DefinitionError(f"{name} is not an OpenAPI document of 3.0, 3.1 or 3.2: its 'openapi' is {version!r:.50}")


def _from_yaml(text: bytes) -> Any:
    """Return the data of YAML in JSON's own types: `no` and `2026-01-01` are texts, and so is every key.

    Raises:
        ValueError: The text is no YAML.
        DefinitionError: PyYAML is missing.
    """
    try:
        import yaml
    except ImportError as error:
        raise DefinitionError(f"YAML needs a package that cannot be imported ({error}): {_EXTRA}") from error

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the class is chosen here
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # those of YAML 1.1 are left out

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    key.tag = "tag:yaml.org,2002:str"
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    for tag, expression, first in _CORE_SCHEMA:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(expression), first)
    try:
        _check_events(yaml.parse(text, Loader), yaml)
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check_events(events: Iterable[Any], yaml: Any) -> None:
    """Check the size, the depth and the tags of a document. Tags are refused, because their values are made in ways of
    their own.

    Raises:
        ValueError: The document is too large or too deep, or has a tag.
    """
    deep = 0
    for count, event in enumerate(events):
        if count > _MOST_VALUES_YAML:
            raise ValueError(f"it has over {_MOST_VALUES_YAML:,} values")
        if getattr(event, "tag", None) is not None:
            raise ValueError("it has tags, which JSON does not have")
        if isinstance(event, yaml.CollectionStartEvent):
            deep += 1
            if deep > _MOST_DEEP_YAML:
                raise ValueError(f"it is nested more than {_MOST_DEEP_YAML} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            deep -= 1


_CORE_SCHEMA: Final = (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)\Z", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
)
"""The types of plain scalars, https://yaml.org/spec/1.2.2/#103-core-schema, without numbers missing in JSON, such as
007. The `<<` of YAML 1.1 is left out: a few lines of it would be a billion pairs."""


def check_reference_length(reference: str) -> None:
    """Refuse a reference that is too long to resolve again and again.

    Raises:
        DefinitionError: The reference is too long.
    """
    if len(reference) > _MOST_REFERENCE:
        raise DefinitionError(f"a reference has {len(reference):,} characters; at most {_MOST_REFERENCE:,} are allowed")


def list_texts(value: Any) -> list[str]:
    """Return the texts of a list; none if it is no list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
