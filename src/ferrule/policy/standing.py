"""What counts of a policy file: all of it in a version that a person has trusted, else less."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.policy.files import PolicyFile
from ferrule.policy.reading import Document, Finding, read_document
from ferrule.policy.rule import Scope
from ferrule.policy.trust import Trusted, TrustedVersion, how_to_trust, short_digest

NEEDS_TRUST: Final[tuple[Scope, ...]] = ("project",)
"""The scopes of files that may have come with a folder, from anybody. See docs/policy.md#trust."""


class Trust(NamedTuple):
    """What a person has trusted, and which files need that."""

    trusted: Trusted
    needed_by: Collection[Scope] = NEEDS_TRUST
    """The scopes of the files that allow nothing before they are trusted."""
    loaded: Mapping[str, str] | None = None
    """The digests that were loaded before. If it is given, a file with another digest has to be trusted."""


class Standing(NamedTuple):
    """What counts of a file."""

    source: str
    allows: bool
    """Whether its allow rules count."""
    findings: tuple[Finding, ...] = ()
    older: Document | None = None
    """The trusted version, if the file has changed since: its restrictions count beside those of the file."""


def standings_of(
    read: Mapping[str, PolicyFile], names: Mapping[str, str], documents: Mapping[str, Document], trust: Trust
) -> Iterator[Standing]:
    """What counts of each file, by the path that was given.

    A trusted version counts. A changed one is an error if files are loaded again, and restricts at start. A file that
    nobody has trusted counts at start, unless it is of a scope that needs trust.
    """
    versions: Mapping[str, TrustedVersion] = {}
    problem = ""
    try:
        versions = trust.trusted.versions()
    except DefinitionError as error:
        problem = f" ({error})"
    for path, file in read.items():
        source, version = names[file.path], versions.get(file.place)
        remedy = f"read it, then {how_to_trust(file.place)}"
        if version is not None and version.digest == file.digest:
            yield Standing(source, True)
        elif trust.loaded is not None and trust.loaded.get(path) != file.digest:
            change = _change(trust.loaded.get(path, "nothing"), file.digest)
            text = f"{file.place} has changed {change}, which nobody has trusted{problem}: {remedy}"
            yield Standing(source, False, (Finding("error", source, 0, text),))
        elif version is not None:
            older = read_document(version.text, f"{source} (as trusted)", file.scope)
            text = f"it has changed {_change(version.digest, file.digest)} since it was trusted: its allow rules do not"
            text += f" count, and the deny and ask rules of both versions do; {remedy}"
            yield Standing(source, False, (Finding("warning", source, 0, text), *older.findings), older)
        elif problem or file.scope in trust.needed_by:
            yield Standing(source, False, tuple(_untrusted_allows(documents[path], problem, remedy)))


def _change(before: str, now: str) -> str:
    return f"from {short_digest(before)} to {short_digest(now)}"


def _untrusted_allows(document: Document, problem: str, remedy: str) -> Iterator[Finding]:
    """A warning about the allow rules that do not count, if there are any."""
    allows = [rule for rule in document.rules if rule.decide == "allow"]
    if allows:
        text = f"{len(allows)} of its allow rules do not count, as nobody has trusted the file as it is"
        yield Finding("warning", allows[0].source, allows[0].line, f"{text}{problem}: {remedy}")
