"""Tools of installed plug-ins. Packages offer them by entry points of the group `ferrule.tools`.

    runner = Runner(plugins("crm", "mail"))

See docs/sources.md#plug-ins.
"""

from __future__ import annotations

import logging

from ferrule import Tool
from ferrule.plugins import Plugin, fault_of, load
from ferrule.security.similar_names import lookalike_key
from ferrule.sources._objects import to_toolset
from ferrule.sources._report import Imported, ImportedTool, LeftOut, Report, make_entry

__all__ = ["plugins"]

log = logging.getLogger("ferrule")


def plugins(*names: str) -> Imported:
    """Return the tools of plug-ins. See docs/sources.md#plug-ins.

    An entry point leads to a tool of any form, a list, a toolset, a runner, a module, or an instance with methods. An
    unusable one is left out, with the reason in the report and an error in the log; so is a tool with the name of
    another plug-in's.

    Args:
        names: The names of the entry points, or `"*"` for all that are installed. Nothing else is imported.

    Raises:
        DefinitionError: There are no names, or nobody has a name, or several packages have it.
    """
    loaded, faults = load("tools", *names)
    left_out = [LeftOut(str(plugin), why) for plugin, why in faults.items()]
    tools: list[Tool] = []
    entries: list[ImportedTool] = []
    owners: dict[str, str] = {}
    for plugin, found in loaded.items():
        try:
            offered = [(tool, make_entry(tool, _format_origin(plugin))) for tool in to_toolset(found)]
        except Exception as error:  # the package may have anything there
            left_out.append(LeftOut(str(plugin), fault_of(error)))
            log.error("%s", left_out[-1])
            continue
        for tool, entry in offered:
            names_of_it = {lookalike_key(tool.name), lookalike_key(tool.wire_name)}
            if owner := next((owners[name] for name in names_of_it if name in owners), None):
                left_out.append(LeftOut(f"the tool {tool.name!r} of {plugin}", f"its name is taken by {owner}"))
                log.error("%s", left_out[-1])
                continue
            owners.update(dict.fromkeys(names_of_it, str(plugin)))
            tools.append(tool)
            entries.append(entry)
    return Imported(tools, Report(tuple(entries), tuple(left_out)))


def _format_origin(plugin: Plugin) -> str:
    return f"{plugin.value} of {plugin.package} {plugin.version}".strip()
