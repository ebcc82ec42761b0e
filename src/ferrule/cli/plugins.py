"""`ferrule plugins`: the plug-ins of installed packages, and their faults."""

from __future__ import annotations

import argparse

from rich.table import Table

from ferrule import plugins
from ferrule.cli.screen import lay, screen
from ferrule.cli.text import one_line
from ferrule.cli.usage import UsageError, choices
from ferrule.sources._objects import to_toolset

_FAULT = 300


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option: the plug-ins to load."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        default=[],
        help="load these and say what is wrong with them, or '*' for all; without a name nothing is loaded",
    )


def command(options: argparse.Namespace) -> int:
    """Print the table. Return 1 if something is wrong."""
    found = plugins.installed()
    known = sorted({one.name for one in found})
    for name in options.names:
        if name != "*" and name not in known:
            raise UsageError(
                f"no package offers {name!r}; {choices(name, known)}" if known else "there are no plug-ins"
            )
    if not found:
        print("there are no plug-ins: no installed package has entry points of ferrule.tools, ferrule.guards …")
        return 0
    faults = _faults(found, options.names)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "name", "package"):
        table.add_column(column, no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("wrong", overflow="fold")
    for one in found:
        package = f"{one.package} {one.version}".strip()
        table.add_row(
            one.kind, one_line(one.name, 60), one_line(package, 60), one.value, one_line(faults.get(one, ""), _FAULT)
        )
    lay(screen(), table)
    return 1 if faults else 0


def _faults(found: list[plugins.Plugin], names: list[str]) -> dict[plugins.Plugin, str]:
    """Return the faults of the plug-ins: of their entry points and, for those that are loaded, of the objects."""
    faults = {one: f"its name is taken by {one.taken_by}" for one in found if one.taken_by is not None}
    for kind in plugins.KINDS:
        of_kind = {one.name for one in found if one.kind == kind and one.taken_by is None}
        wanted = of_kind if "*" in names else of_kind & {*names}
        for name in sorted(wanted - {one.name for one in faults if one.kind == kind}):
            loaded, wrong = plugins.load(kind, name)
            faults |= wrong
            for one, what in loaded.items() if kind == "tools" else ():
                try:
                    to_toolset(what)
                except Exception as error:  # any error of the package's object
                    faults[one] = plugins.fault_of(error)
    return faults
