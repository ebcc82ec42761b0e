"""`Toolset`: an ordered collection of tools; frozen."""

from __future__ import annotations

import fnmatch
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partialmethod, singledispatchmethod
from typing import Any

from pydantic import BaseModel

from ferrule.definition.decorator import to_tool, tool
from ferrule.definition.handler import unwrap_partial
from ferrule.definition.options import check_texts
from ferrule.definition.signature import has_unfilled_self
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError
from ferrule.security.similar_names import NameIndex, fold_name, lookalike_key
from ferrule.types import ToolForm, ToolInput
from ferrule.values.log import LogLines, log

SEARCH_TAG = "tool_search"
"""The tag of a tool that finds others. The error for a tool that was not offered names it.

See docs/selection.md#the-search-tool.
"""


class Toolset:
    """Tools in a stable order, for the definitions of every provider. See docs/forms.md.

    Args:
        tools: Tools, functions, handler classes, definitions as dicts, objects with `execute`, other toolsets.

    Raises:
        DefinitionError: Two tools have the same name or names that look alike, an item is a method read from its class,
            or no tool.
    """

    def __init__(self, tools: Iterable[ToolInput] = ()) -> None:
        if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
            raise DefinitionError(f"Toolset takes a list of tools, not {tools!r}; a list of one tool is [tool]")
        flat: list[Tool] = []
        for item in tools:
            flat.extend(item._all if isinstance(item, Toolset) else [to_tool(item)])
        offered = tuple(item for item in flat if item.quarantine is None)
        searches = tuple(item for item in offered if SEARCH_TAG in item.tags)
        quarantined = tuple(item for item in flat if item.quarantine is not None)
        vars(self).update(_all=tuple(flat), _tools=offered, quarantined=quarantined, searches=searches)
        vars(self).update(_by_any_name={}, _by_folded={}, _names=NameIndex(item.name for item in offered))
        taken: dict[str, Tool] = {}
        for item in flat:
            _check_self(item)
            names = {item.name, item.wire_name}
            seen = set(map(lookalike_key, names))
            if other := next((taken[name] for name in seen if name in taken), None):
                raise DefinitionError(
                    f"two tools are called {item.name!r}, or have names that look alike: {_describe_origin(other)} and "
                    f"{_describe_origin(item)}; rename one with .replace(name=…), or a whole toolset with "
                    ".prefixed(…) or .renamed({…}); Toolset.replace(tool) puts one in another's place"
                )
            taken.update(dict.fromkeys(seen, item))
            if item.quarantine is None:
                self._by_any_name.update(dict.fromkeys(names, item))
            for key in set(map(fold_name, names)):
                is_one = item.quarantine is None and self._by_folded.get(key, item) is item
                self._by_folded[key] = item if is_one else None

    searches: tuple[Tool, ...]
    """The tools that find others."""
    quarantined: tuple[Tool, ...]
    """The tools that `with_lock` has put into quarantine, each with its reason in `quarantine`. They are no part of the
    toolset: they are never offered, no method returns them, and a call of one is denied."""
    _all: tuple[Tool, ...]
    _tools: tuple[Tool, ...]
    # Made with the toolset, so that no call has to wait for it.
    _by_any_name: dict[str, Tool]
    _by_folded: dict[str, Tool | None]
    _names: NameIndex

    @classmethod
    def of(
        cls, thing: object, prefix: str = "", *, skip: bool = False, read_only: Iterable[str] | None = None
    ) -> Toolset:
        """Return the tools of an instance, a class or a module, under their names there.

        An instance has its public methods, a class its static and class methods, a handler class itself, and a module
        its tools, or its own public functions if it has none. Functions in C count if all their parameters have names.

        Args:
            prefix: A prefix for each name.
            skip: Whether to leave out members that cannot be tools. The log `ferrule` has each with its reason (INFO).
            read_only: Names or globs of the members that only read; if not given, each tool has its own trait.

        Raises:
            DefinitionError: There are no tools, some members cannot be tools, or `read_only` has an unknown name.
        """
        made: list[Tool] = []
        reasons: list[str] = []
        for name, value in _iter_candidates(thing):
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
            owner = f"the module {thing.__name__!r}" if isinstance(thing, types.ModuleType) else repr(thing)
            raise DefinitionError(f"{owner} has no public function or method that could be a tool")
        if read_only is not None:
            reading = found._select_names(check_texts("read_only", read_only))
            found = cls(item.replace(read_only=True) if item in reading else item for item in found)
        return found.prefixed(prefix) if prefix else found

    def register(self, item: ToolForm) -> Toolset:
        """Return a new toolset with one more tool."""
        return Toolset([*self._all, item])

    def replace(self, item: ToolForm) -> Toolset:
        """Return a new toolset with `item` instead of the tool with its name.

        Raises:
            KeyError: There is no tool with this name.
        """
        made = to_tool(item)
        old = self.get(made.name)
        return Toolset([made if one is old else one for one in self._all])

    def get(self, name: str) -> Tool:
        """Return the tool with this name or wire name.

        Raises:
            KeyError: There is none. The message names the nearest ones.
        """
        found = self.find(name)
        if found is None:
            if (aside := self.find_quarantined_tool(name)) is not None:
                raise KeyError(f"{name!r} {aside.quarantine}")
            near = self.find_nearest(str(name))
            raise KeyError(f"Unknown tool: {name!r}" + (f"; the nearest are {near!r}" if near else ""))
        return found

    def find_nearest(self, name: str) -> list[str]:
        """Return the names of at most three tools, most similar to `name` first."""
        return self._names.find_nearest(name)

    def resolve_name(self, name: str) -> Tool | None:
        """Return the tool for an unknown name, or None if the name is ambiguous.

        The name may differ in case, by `-` for `_`, and by a provider's own prefix (`functions.add`,
        `default_api.add`).
        """
        known, folded = self._by_folded, fold_name(name[:200])
        if folded in known or len(name) > 200:
            return known.get(folded)
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        return None if prefix is None else known.get(fold_name(name.removeprefix(prefix)))

    def find(self, name: str) -> Tool | None:
        """Return the tool with this name or wire name, or None."""
        return self._by_any_name.get(name)

    def find_quarantined_tool(self, name: str) -> Tool | None:
        """Return the quarantined tool with this name or wire name, or None."""
        return next((one for one in self.quarantined if name in (one.name, one.wire_name)), None)

    def only(self, *globs: str) -> Toolset:
        """Return the tools with a name for one of the globs.

        Raises:
            DefinitionError: A glob is no text, or no tool has a name.
        """
        return Toolset(self._select_names(check_texts("globs", globs)))

    def without(self, *globs: str) -> Toolset:
        """Return the tools with a name for none of the globs.

        Raises:
            DefinitionError: A glob is no text, or no tool has a name.
        """
        left_out = self._select_names(check_texts("globs", globs))
        return Toolset(item for item in self._all if item not in left_out)

    def _select_names(self, globs: tuple[str, ...]) -> list[Tool]:
        self._check_names(glob for glob in globs if _GLOB_CHARACTERS.isdisjoint(glob))
        return [item for item in self._all if any(fnmatch.fnmatchcase(item.name, glob) for glob in globs)]

    def _check_names(self, names: Iterable[str]) -> None:
        known = {item.name: item for item in self._all}
        for name in names:
            if name not in known:
                hint = f"the nearest are {near!r}" if (near := self.find_nearest(name)) else f"there are {[*known]!r}"
                raise DefinitionError(f"there is no tool {name!r}; {hint}")

    def prefixed(self, prefix: str) -> Toolset:
        """Return all tools, with `prefix` before each name."""
        return Toolset(item.replace(name=f"{prefix}{item.name}") for item in self._all)

    def renamed(self, names: Mapping[str, str]) -> Toolset:
        """Return all tools, with new names for some: `{old: new}`.

        Raises:
            DefinitionError: There is no tool with an old name.
        """
        self._check_names(names)
        return Toolset(item.replace(name=names.get(item.name, item.name)) for item in self._all)

    def map(self, function: Callable[[Tool], ToolInput]) -> Toolset:
        """Return the results of `function` for each tool."""
        return Toolset([*(function(item) for item in self._tools), *self.quarantined])

    def bind(self, /, **values: object) -> Toolset:
        """Return all tools, with these arguments fixed and hidden from the model in every tool that has them.

        Raises:
            DefinitionError: No tool has such a parameter.
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

    def with_lock(self, file: str | os.PathLike[str] = "ferrule.lock") -> Toolset:
        """Return a toolset with all tools that are the same as in a file of `ferrule lock`.

        Any other tool is `quarantined`: it is not offered, and a call of it is denied, until
        `ferrule lock --accept NAME`. See docs/lock.md.

        Raises:
            DefinitionError: There is no such file, or it was edited by hand.
        """
        from ferrule.policy import lock  # lock imports toolsets

        return lock.lock_tools(self, file)

    @property
    def fingerprint(self) -> str:
        """A hash of the definitions for the model, in order; the same in every run and process."""
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


def _check_self(item: Tool) -> None:
    if has_unfilled_self(item.handling.function):
        raise DefinitionError(
            f"tool {item.name!r}: nobody fills the first parameter of {_describe_origin(item)}, a method that was "
            "taken off its class; take it off an instance, or use Toolset.of(instance)"
        )


def _describe_origin(item: Tool) -> str:
    function = unwrap_partial(item.handling.function)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(function)


_GLOB_CHARACTERS = frozenset("*?[")
_PREFIXES = ("functions.", "default_api.", "default_api:")
"""Prefixes by OpenAI's and Google's models, from their own notations for a call."""


def _iter_candidates(thing: object) -> Iterator[tuple[str | None, Any]]:
    """Yield each possible tool with its name; a handler class has none, as it names itself."""
    if isinstance(thing, types.ModuleType):
        members = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
        tools = {id(value): (name, value) for name, value in members.items() if isinstance(value, Tool)}
        functions = ((name, value) for name, value in members.items() if inspect.isroutine(value))
        yield from tools.values() or (one for one in functions if one[1].__module__ == thing.__name__)
    elif isinstance(thing, type) and issubclass(thing, BaseModel):
        yield None, thing
    else:
        owner = thing if isinstance(thing, type) else type(thing)
        # In the order of definition, base classes first. Members of builtins such as `object` are not the author's.
        classes = [cls for cls in reversed(owner.__mro__) if cls is owner or cls.__module__ != "builtins"]
        for name in dict.fromkeys(name for cls in classes for name in vars(cls) if not name.startswith("_")):
            if _is_method(inspect.getattr_static(owner, name)):
                yield name, getattr(thing, name)


def _is_method(member: object) -> bool:
    """Return whether a class member is a method; a property is not, because reading it would run code."""
    return isinstance(member, Tool | classmethod | partialmethod | singledispatchmethod) or (
        callable(member) and not isinstance(member, type)
    )
