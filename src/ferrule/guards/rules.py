"""Policy files of a team decide: `rules("policy.toml")`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.policy import Policy, TrustedFiles
from ferrule.policy.rule import Scope

Files: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def rules(
    *files: str | os.PathLike[str],
    managed: Files = (),
    user: Files = (),
    project: Files = (),
    session: Files = (),
    tools: Iterable[Any] | None = None,
    shadow: str | os.PathLike[str] | None = None,
    trusted: TrustedFiles | str | os.PathLike[str] | None = None,
) -> Policy:
    """Make a guard from the rules in policy files: deny, then ask, then allow, in any order in the files.

    It asks about a call without a rule if the call changes things. See docs/policy.md.

    Args:
        files: The program's own files, with the scope `managed`.
        managed, user, project, session: More files by scope. A `deny` and an `ask` count from any scope. An `allow` of
            a project file, or of a file changed since a person trusted it, counts once a person trusts the file.
        tools: The tools for the rules, such as a toolset, to check arguments and values against. A tool that they lack
            is a warning in `Policy.findings`; a misspelled one in a file of a project or a session is an error.
        shadow: A file to try in place of the program's own. It never decides; see `Policy.differences`.
        trusted: The list of trusted files, or the path of that list; `$XDG_STATE_HOME/ferrule/trusted.json` by default.

    Raises:
        DefinitionError: The files have errors; the text lists all of them with file and line.
    """
    scopes: dict[Scope, Files] = {"managed": managed, "user": user, "project": project, "session": session}
    scoped: list[tuple[Scope, str | os.PathLike[str]]] = [("managed", file) for file in files]
    scoped += [(scope, file) for scope, listed in scopes.items() for file in _list_files(listed)]
    if not scoped:
        raise DefinitionError('rules(…) takes policy files, such as rules("policy.toml")')
    trusted_files = trusted if isinstance(trusted, TrustedFiles) else TrustedFiles(trusted)
    policy = Policy(scoped, tools=tools, shadow=shadow, trusted=trusted_files)
    if errors := [str(finding) for finding in policy.findings if finding.level == "error"]:
        raise DefinitionError("\n".join(errors))
    return policy


def _list_files(files: Files) -> list[str | os.PathLike[str]]:
    return [files] if isinstance(files, str | os.PathLike) else list(files)
