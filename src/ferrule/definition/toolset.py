"""`Toolset`: the tools there are, in a stable order; frozen."""

from __future__ import annotations

import fnmatch
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partialmethod, singledispatchmethod
from typing import Any

from pydantic import BaseModel

from ferrule.arguments.names import Names, as_seen, folded
from ferrule.definition.decorator import as_tool, tool
from ferrule.definition.handler import whole
from ferrule.definition.options import texts
from ferrule.definition.signature import unfilled_self
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.types import ToolForm, ToolInput
from ferrule.values.logged import LogLines, log

SEARCH_TAG = "tool_search"
"""The tag of a tool that finds others: who calls one that was not offered is told of it. See docs/execution.md."""


class Toolset:
    """The tools there are, in a stable order: the single source of every provider's definitions. See docs/forms.md.

    Args:
        tools: Tools, functions, handler classes, definitions as dicts, objects with `execute`, other toolsets.

    Raises:
        DefinitionError: for two tools of one name, or of two that look the same, a method that was taken off its class,
            and for what is no tool.
    """

    def __init__(self, tools: Iterable[ToolInput] = ()) -> None:
        if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
            raise DefinitionError(f"Toolset takes a list of tools, not {tools!r}; a list of one tool is [tool]")
        flat: list[Tool] = []
        for item in tools:
            flat.extend(item._all if isinstance(item, Toolset) else [as_tool(item)])
        offered = tuple(item for item in flat if item.quarantine is None)
        searches = tuple(item for item in offered if SEARCH_TAG in item.tags)
        quarantined = tuple(item for item in flat if item.quarantine is not None)
        vars(self).update(_all=tuple(flat), _tools=offered, quarantined=quarantined, searches=searches)
        vars(self).update(_by_any_name={}, _by_folded={})
        taken: dict[str, Tool] = {}
        for item in flat:
            _check_self(item)
            names = {item.name, item.wire_name}
            seen = set(map(as_seen, names))
            if other := next((taken[name] for name in seen if name in taken), None):
                raise DefinitionError(
                    f"two tools are called {item.name!r}, or what differs only in case or in letters that look alike: "
                    f"{_origin(other)} and {_origin(item)}; rename one with .replace(name=…), or a whole toolset with "
                    ".prefixed(…) or .renamed({…}); Toolset.replace(tool) puts one in another's place"
                )
            taken.update(dict.fromkeys(seen, item))
            if item.quarantine is None:
                self._by_any_name.update(dict.fromkeys(names, item))
            for key in set(map(folded, names)):
                is_one = item.quarantine is None and self._by_folded.get(key, item) is item
                self._by_folded[key] = item if is_one else None
        vars(self).update(_names=Names(item.name for item in offered))

    searches: tuple[Tool, ...]
    """Those that find others."""
    quarantined: tuple[Tool, ...]
    """Those that `locked` has put aside, each with its reason in `quarantine`. They are no part of the toolset: nobody
    is offered them, none of its methods gives them back, and a call of one is denied."""
    _all: tuple[Tool, ...]
    _tools: tuple[Tool, ...]
    # Made with the toolset, as a call in the loop pays for what is made when a name is unknown for the first time.
    _by_any_name: dict[str, Tool]
    _by_folded: dict[str, Tool | None]
    _names: Names

    @classmethod
    def of(
        cls, thing: object, prefix: str = "", *, skip: bool = False, read_only: Iterable[str] | None = None
    ) -> Toolset:
        """The tools of an instance (its public methods), a class (its static and class methods, the class itself where
        it is a handler class), or a module (its tools; where it has none, its own public functions), by the names that
        they have there. What is written in C is taken as what is written in Python, if it tells its parameters.

        Args:
            prefix: What stands before each name.
            skip: Leaves out what cannot be a tool; the log `ferrule` names each at the level INFO, with the reason.
            read_only: Names or globs, as they are there, of those that only read; left out, each says so itself.

        Raises:
            DefinitionError: where there is nothing to offer; for what cannot be a tool, all of it by name; and for a
                name in `read_only` that none has.
        """
        made: list[Tool] = []
        reasons: list[str] = []
        for name, value in _offered_by(thing):
            try:
                item = value if isinstance(value, Tool) else tool(value, name=name)
                _check_self(item)
                made.append(item)
            except DefinitionError as error:
                reasons.append(f"{name}: {error}")
        if reasons and not skip:
            listed = "".join(f"\n  {reason}" for reason in reasons)
            raise DefinitionError(
                f"Toolset.of({thing!r}): {len(reasons)} cannot be tools; mend them, give them a name that begins with "
                f"'_', or leave them out with skip=True:{listed}"
            )
        if reasons:
            log.info("Toolset.of(%r) leaves out what cannot be a tool:%s", thing, LogLines("\n".join(reasons)))
        found = cls(made)
        if not found:
            raise DefinitionError(f"Toolset.of({thing!r}) finds no public method or function")
        if read_only is not None:
            reading = found._named(texts("read_only", read_only))
            found = cls(item.replace(read_only=True) if item in reading else item for item in found)
        return found.prefixed(prefix) if prefix else found

    def register(self, item: ToolForm) -> Toolset:
        """A new toolset with one tool more."""
        return Toolset([*self._all, item])

    def replace(self, item: ToolForm) -> Toolset:
        """A new toolset with `item` in the place of the tool of its name.

        Raises:
            KeyError: where there is none.
        """
        made = as_tool(item)
        old = self.get(made.name)
        return Toolset([made if one is old else one for one in self._all])

    def get(self, name: str) -> Tool:
        """The tool of that name, or of that wire name.

        Raises:
            KeyError: naming the nearest ones.
        """
        found = self.find(name)
        if found is None:
            if (aside := self.put_aside(name)) is not None:
                raise KeyError(f"{name!r} {aside.quarantine}")
            near = self.nearest(str(name))
            raise KeyError(f"Unknown tool: {name!r}" + (f"; the nearest are {near!r}" if near else ""))
        return found

    def nearest(self, name: str) -> list[str]:
        """The names of tools that look most like `name`, best first; at most three."""
        return self._names.nearest(name)

    def meant(self, name: str) -> Tool | None:
        """The one tool that a model can only have meant by a name that none has.

        It may differ in case, in `-` for `_`, and by what providers are known to put before it (`functions.add`,
        `default_api.add`). Two that fit are none, and so is a name that is another tool's.
        """
        known, whole = self._by_folded, folded(name[:200])
        if whole in known or len(name) > 200:
            return known.get(whole)
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        return None if prefix is None else known.get(folded(name.removeprefix(prefix)))

    def find(self, name: str) -> Tool | None:
        """The tool of that name, or of that wire name, or `None`."""
        return self._by_any_name.get(name)

    def put_aside(self, name: str) -> Tool | None:
        """The quarantined tool of that name, or of that wire name, or `None`."""
        return next((one for one in self.quarantined if name in (one.name, one.wire_name)), None)

    def only(self, *globs: str, tags: Iterable[str] | None = None) -> Toolset:
        """Those whose name fits one of the globs, or that have one of the tags; where globs and tags are given, both.

        Raises:
            DefinitionError: for globs or tags that are no texts, and a name that no tool has.
        """
        named = self._named(texts("globs", globs)) if globs or tags is None else self._all
        tagged = set(self._all) if tags is None else self._tagged(tags)
        return Toolset(item for item in named if item in tagged)

    def without(self, *globs: str, tags: Iterable[str] | None = None) -> Toolset:
        """Those whose name fits none of the globs, and that have none of the tags.

        Raises:
            DefinitionError: for globs or tags that are no texts, and a name that no tool has.
        """
        left_out = {*self._named(texts("globs", globs)), *self._tagged(tags or ())}
        return Toolset(item for item in self._all if item not in left_out)

    def _named(self, globs: tuple[str, ...]) -> list[Tool]:
        self._check_names(glob for glob in globs if _WILD.isdisjoint(glob))
        return [item for item in self._all if _fits(item, globs)]

    def _tagged(self, tags: Iterable[str]) -> set[Tool]:
        wanted = set(texts("tags", tags))
        return {item for item in self._all if not wanted.isdisjoint(item.tags)}

    def _check_names(self, names: Iterable[str]) -> None:
        known = {item.name: item for item in self._all}
        for name in names:
            if name not in known:
                hint = f"the nearest are {near!r}" if (near := self.nearest(name)) else f"there are {[*known]!r}"
                raise DefinitionError(f"there is no tool {name!r}; {hint}")

    def prefixed(self, prefix: str) -> Toolset:
        """All, with `prefix` before each name."""
        return Toolset(item.replace(name=f"{prefix}{item.name}") for item in self._all)

    def renamed(self, names: Mapping[str, str]) -> Toolset:
        """All, with new names for some: `{old: new}`.

        Raises:
            DefinitionError: for an old name that there is not.
        """
        self._check_names(names)
        return Toolset(item.replace(name=names.get(item.name, item.name)) for item in self._all)

    def map(self, function: Callable[[Tool], ToolInput]) -> Toolset:
        """What `function` makes of each tool."""
        return Toolset([*(function(item) for item in self._tools), *self.quarantined])

    def bind(self, /, **values: object) -> Toolset:
        """All, with these arguments fixed and hidden from the model in every tool that has them.

        Raises:
            DefinitionError: for a parameter that no tool has.
        """
        names = {item.name: item.handling.parameters.schema["properties"].keys() for item in self._all}
        for key in values:
            if not any(key in known for known in names.values()):
                raise DefinitionError(f"bind: no tool has a parameter {key!r}")
        bound = (
            item.bind(**mine) if (mine := {k: v for k, v in values.items() if k in names[item.name]}) else item
            for item in self._tools
        )
        return Toolset([*bound, *self.quarantined])

    def locked(self, file: str | os.PathLike[str] = "ferrule.lock") -> Toolset:
        """A toolset in which each tool is as it was when `ferrule lock` wrote the file. What is not is `quarantined`:
        it is offered to nobody, and a call of it is denied, until `ferrule lock --accept NAME`. See docs/lock.md.

        Raises:
            DefinitionError: where there is no such file, or it is not as it was written.
        """
        from ferrule import lock  # which knows tools and toolsets

        return lock.locked(self, file)

    @property
    def fingerprint(self) -> str:
        """A hash of what a model is shown, in order; the same in every run and process."""
        from hashlib import sha256

        return sha256("\n".join(item.fingerprint for item in self._tools).encode()).hexdigest()[:32]

    def __add__(self, other: object) -> Toolset:
        if not isinstance(other, Toolset):
            return NotImplemented
        return Toolset([*self._all, other])

    def __contains__(self, name: object) -> bool:
        if isinstance(name, Tool):
            return self.find(name.name) is name
        return isinstance(name, str) and self.find(name) is not None

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Toolset is frozen: its methods return new ones")

    def __repr__(self) -> str:
        return f"Toolset([{', '.join(item.name for item in self._tools)}])"


def changes(before: Toolset, after: Toolset) -> dict[str, list[str]]:
    """What other tools there are, by name."""
    found = ((item, before.find(item.name)) for item in after)
    return {
        "added": [item.name for item in after if item.name not in before],
        "removed": [item.name for item in before if item.name not in after],
        "changed": [item.name for item, old in found if old is not None and old.fingerprint != item.fingerprint],
    }


def _check_self(item: Tool) -> None:
    if unfilled_self(item.handling.function):
        raise DefinitionError(
            f"tool {item.name!r}: nobody fills the first parameter of {_origin(item)}, a method that was taken off its "
            "class; take it off an instance, or use Toolset.of(instance)"
        )


def _origin(item: Tool) -> str:
    function = whole(item.handling.function)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(function)


def _fits(item: Tool, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(item.name, glob) for glob in globs)


_WILD = frozenset("*?[")
_PREFIXES = ("functions.", "default_api.", "default_api:")
"""What OpenAI's and Google's models put before names: their own notations for a call."""


def _offered_by(thing: object) -> Iterator[tuple[str | None, Any]]:
    """What may be a tool, by name; without one where the tool finds its own."""
    if isinstance(thing, types.ModuleType):
        members = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
        tools = {id(value): (name, value) for name, value in members.items() if isinstance(value, Tool)}
        functions = ((name, value) for name, value in members.items() if inspect.isroutine(value))
        yield from tools.values() or (one for one in functions if one[1].__module__ == thing.__name__)
    elif isinstance(thing, type) and issubclass(thing, BaseModel):
        yield None, thing
    else:
        owner = thing if isinstance(thing, type) else type(thing)
        # In the order of definition, base classes first. What `object` gives each object, and `dict` or `Exception`
        # each that is derived from it, is no tool of its author's.
        classes = [cls for cls in reversed(owner.__mro__) if cls is owner or cls.__module__ != "builtins"]
        for name in dict.fromkeys(name for cls in classes for name in vars(cls) if not name.startswith("_")):
            if _is_method(inspect.getattr_static(owner, name)):
                yield name, getattr(thing, name)


def _is_method(member: object) -> bool:
    """Whether a member of a class is called, and not read: reading a property runs somebody's code."""
    return isinstance(member, Tool | classmethod | partialmethod | singledispatchmethod) or (
        callable(member) and not isinstance(member, type)
    )


def assemble_tool_pool(
    built_in: Iterable[ToolForm], mcp_tools: Iterable[ToolForm], deny_rules: Iterable[str]
) -> Toolset:
    """Built-in tools and MCP tools as one toolset, in an order that prompt caches can rely on. See docs/forms.md.

    Each part is sorted by name, the built-in tools come first and win where both have a name; what fits one of
    `deny_rules` (names or globs) is left out.
    """
    globs = (deny_rules,) if isinstance(deny_rules, str) else tuple(deny_rules)
    chosen: dict[str, Tool] = {}
    for part in (built_in, mcp_tools):
        for item in sorted(map(as_tool, part), key=lambda item: item.name):
            if not _fits(item, globs):
                chosen.setdefault(item.name, item)
    return Toolset(chosen.values())
