"""Plug-ins: what installed packages offer by entry points, which nobody loads before a developer asks for it.

[project.entry-points."ferrule.guards"]
office_hours = "my_package.guards:office_hours"

runner = Runner(sources.plugins("crm"), guards=plugins.guards("office_hours"))
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Any, Final

from ferrule.errors import DefinitionError
from ferrule.security import import_path
from ferrule.types import Approver, Guard, Middleware

__all__ = ["KINDS", "Plugin", "approvers", "entry_points", "fault_of", "guards", "installed", "load", "middleware"]

log = logging.getLogger("ferrule")
KINDS: Final = ("tools", "guards", "selectors", "middleware", "approvers")
"""The groups of entry points, `ferrule.tools` and so on. See docs/sources.md#plug-ins."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point. See docs/sources.md#plug-ins.

    Attributes:
        kind: One of `KINDS`.
        name: By which it is asked for.
        value: Where it is, `module:attribute`.
        package: Who offers it, and in which version.
        taken_by: The package that has offered another one of this kind and name before.
    """

    kind: str
    name: str
    value: str
    package: str
    version: str
    taken_by: str | None = None

    def __str__(self) -> str:
        return f"the plug-in {self.name!r} ({self.value} of {self.package} {self.version})"


def entry_points(*groups: str) -> list[EntryPoint]:
    """Those of the groups, by group and then as the path of imports leads to them. See docs/sources.md#plug-ins."""
    # What was put on the path since is the user's own, and a model may write its metadata.
    found: dict[str, list[EntryPoint]] = {}
    for about in distributions(path=[*import_path.IMPORT_PATH]):
        try:
            found.setdefault(about.name, [*about.entry_points])
        except Exception:  # its metadata cannot be read, and those of others can
            log.error("the entry points of a package cannot be read: %r", about, exc_info=True)
    points = [point for points in found.values() for point in points]
    return [point for group in groups for point in points if point.group == group]


def installed(*kinds: str) -> list[Plugin]:
    """The plug-ins that there are, of these kinds or of all; none is loaded. See docs/sources.md#plug-ins.

    Raises:
        DefinitionError: for a kind that is none.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise DefinitionError(f"{unknown[0]!r} is no kind of plug-in; there are {', '.join(KINDS)}")
    return [plugin for plugin, _ in _offered_plugins(*(kinds or KINDS))]


def _offered_plugins(*kinds: str) -> list[tuple[Plugin, EntryPoint]]:
    found: list[tuple[Plugin, EntryPoint]] = []
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for point in entry_points(*(f"ferrule.{kind}" for kind in kinds)):
        kind = point.group.partition(".")[2]
        package, version = (point.dist.name, point.dist.version or "") if point.dist else ("", "")
        whose, value = first.setdefault((kind, point.name), (package, point.value))
        taken_by = whose if value != point.value else None
        if taken_by is None and whose != package:  # the very same, which another package offers too
            continue
        found.append((Plugin(kind, point.name, point.value, package, version, taken_by), point))
    return found


def load(kind: str, *names: str) -> tuple[dict[Plugin, object], dict[Plugin, str]]:
    """The objects that were asked for, and of each plug-in that is left out why. See docs/sources.md#plug-ins.

    Args:
        names: Those that are wanted, or `"*"` for all. A class, but for one of tools, is called without arguments.

    Raises:
        DefinitionError: where nothing was asked for; for a name that nobody has, and one that several packages have.
    """
    known = _offered_plugins(kind)
    _check_asked_for(kind, names, [plugin for plugin, _ in known])
    loaded: dict[Plugin, object] = {}
    faults: dict[Plugin, str] = {}
    for plugin, point in known:
        if "*" not in names and plugin.name not in names:
            continue
        try:
            loaded[plugin] = _object_of(plugin, point)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever ends an import ends no program here
            faults[plugin] = fault_of(error)
            log.error("%s is left out: %s", plugin, faults[plugin])
    return loaded, faults


def fault_of(error: BaseException) -> str:
    """What is wrong, as an exception says it; of one that is not ours with its class. See docs/sources.md#plug-ins."""
    try:
        return str(error) if isinstance(error, DefinitionError) else f"{type(error).__name__}: {error}"
    except Exception:  # it is somebody else's class, and one that fails to say it stops no other
        return type(error).__name__


def _object_of(plugin: Plugin, point: EntryPoint) -> object:
    """What the entry point leads to.

    Raises:
        DefinitionError: where its name is another's, and for what is none of its kind.
        BaseException: what its import raises.
    """
    if plugin.taken_by is not None:
        raise DefinitionError(f"its name is taken by {plugin.taken_by}")
    found = point.load()
    if isinstance(found, type) and plugin.kind != "tools":
        found = found()
    if not (
        callable(found)
        or callable(getattr(found, _METHOD_OF_KIND.get(plugin.kind, ""), None))
        or plugin.kind == "tools"
    ):
        raise DefinitionError(f"{found!r:.200} is none of the {plugin.kind}")
    return found


_METHOD_OF_KIND: Final = {"guards": "check", "selectors": "select"}
"""What an object has that is one of a kind and cannot be called."""


def _check_asked_for(kind: str, names: Iterable[str], known: list[Plugin]) -> None:
    names = [*names]
    if not names:
        raise DefinitionError(
            f"name the plug-ins that are to be loaded, or '*' for all: {sorted({one.name for one in known})}"
        )
    for name in names:
        offers = [one for one in known if one.name == name]
        if name != "*" and not offers:
            raise DefinitionError(f"no package offers {kind} {name!r}; there are {sorted({one.name for one in known})}")
        if any(one.taken_by for one in offers):
            offered = ", ".join(f"{one.value} of {one.package}" for one in offers)
            raise DefinitionError(f"several packages offer {kind} {name!r}: {offered}; import the one that you mean")


def guards(*names: str) -> list[Guard]:
    """The guards of plug-ins, for `Runner(guards=…)`. See docs/sources.md#plug-ins.

    Args:
        names: Their names, or `"*"` for all that are installed. A class is called without arguments.

    Raises:
        DefinitionError: for what is not there or cannot be used: a guard that was left out would let calls pass.
    """
    return _all_of("guards", names)


def middleware(*names: str) -> list[Middleware]:
    """The middleware of plug-ins, for `Runner(around=…)` or `inside`, as `guards`. See docs/sources.md#plug-ins."""
    return _all_of("middleware", names)


def approvers(*names: str) -> list[Approver]:
    """The approvers of plug-ins, as `guards`. See docs/sources.md#plug-ins."""
    return _all_of("approvers", names)


def _all_of(kind: str, names: Iterable[str]) -> list[Any]:
    loaded, faults = load(kind, *names)
    for plugin, why in faults.items():
        raise DefinitionError(f"{plugin} cannot be used: {why}")
    return [*loaded.values()]
