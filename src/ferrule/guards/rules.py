"""What a team wrote into a file decides: `rules("policy.toml")`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.policy import Policy, Trusted, load
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
    trusted: Trusted | str | os.PathLike[str] | None = None,
) -> Policy:
    """A guard that decides by the rules in policy files: deny, then ask, then allow, in whatever order they stand. What
    no rule speaks of is asked about where it changes things. See docs/policy.md.

    Args:
        files: The program's own, of the scope `managed`.
        managed, user, project, session: More files by scope. A `deny` and an `ask` count from any; an `allow` of a
            project file, and of a file that has changed since it was trusted, counts once a person trusts the file.
        tools: What the rules may speak of, such as a toolset: a rule that cannot speak of any call of theirs is an
            error.
        shadow: A file that is tried in the place of the program's own and never counts; see `Policy.differences`.
        trusted: What was trusted, or the file of that list; `$XDG_STATE_HOME/ferrule/trusted.json` if it is left out.

    Raises:
        DefinitionError: with all that is wrong in the files, with file and line.
    """
    scopes: dict[Scope, Files] = {"managed": managed, "user": user, "project": project, "session": session}
    given: list[tuple[Scope, str | os.PathLike[str]]] = [("managed", file) for file in files]
    given += [(scope, file) for scope, listed in scopes.items() for file in _files_of(listed)]
    if not given:
        raise DefinitionError('rules(…) takes policy files, such as rules("policy.toml")')
    kept = trusted if isinstance(trusted, Trusted) else Trusted(trusted)
    policy = load(given, tools=tools, shadow=shadow, trusted=kept)
    if errors := [str(one) for one in policy.findings if one.level == "error"]:
        raise DefinitionError("\n".join(errors))
    return policy


def _files_of(files: Files) -> list[str | os.PathLike[str]]:
    return [files] if isinstance(files, str | os.PathLike) else list(files)
