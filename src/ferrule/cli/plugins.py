"""`ferrule plugins`: the plug-ins of installed packages, and their faults."""

from __future__ import annotations

import argparse

from ferrule import plugins
from ferrule.cli.screen import make_table, print_table, wide
from ferrule.cli.text import to_line
from ferrule.cli.usage import check_known
from ferrule.sources._objects import to_toolset

_NAME = 60
_FAULT = 300


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option: the plug-ins to load."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        default=[],
        help="load these plug-ins and report their faults; '*' loads all. Without a name, nothing is loaded",
    )


def command(options: argparse.Namespace) -> int:
    """Print the table. Return 1 if a plug-in is broken."""
    found = plugins.installed()
    names = sorted({plugin.name for plugin in found})
    check_known("plug-in", [name for name in options.names if name != "*"], names)
    if not found:
        print("There are no plug-ins: no installed package has an entry point such as ferrule.tools.")
        return 0
    faults = _find_faults(found, options.names)
    table = make_table("kind", "name", "package", wide("object"), wide("fault"))
    for plugin in found:
        package = to_line(f"{plugin.package} {plugin.version}".strip(), _NAME)
        fault = to_line(faults.get(plugin, ""), _FAULT)
        table.add_row(plugin.kind, to_line(plugin.name, _NAME), package, plugin.value, fault)
    print_table(table)
    return 1 if faults else 0


def _find_faults(found: list[plugins.Plugin], names: list[str]) -> dict[plugins.Plugin, str]:
    """Return the faults of the entry points and, for plug-ins that are loaded, of their objects."""
    faults = {plugin: f"its name is taken by {plugin.taken_by}" for plugin in found if plugin.taken_by is not None}
    for kind in plugins.KINDS:
        same_kind = {plugin.name for plugin in found if plugin.kind == kind and plugin.taken_by is None}
        selected = same_kind if "*" in names else same_kind & {*names}
        for name in sorted(selected - {plugin.name for plugin in faults if plugin.kind == kind}):
            objects, errors = plugins.load(kind, name)
            faults |= errors
            for plugin, item in objects.items() if kind == "tools" else ():
                try:
                    to_toolset(item)
                except Exception as error:  # any error of the package's object
                    faults[plugin] = plugins.fault_of(error)
    return faults
