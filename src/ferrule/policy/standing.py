"""Decide how much of a policy file counts: all of a trusted version, otherwise less."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.policy.files import PolicyFile
from ferrule.policy.reading import Document, Finding, read_document
from ferrule.policy.rule import Scope
from ferrule.policy.trust import TrustedFiles, TrustedVersion, format_trust_command, short_digest

NEEDS_TRUST: Final[tuple[Scope, ...]] = ("project",)
"""The scopes of files that may come with a folder, from anybody. See docs/policy.md#trust."""


class Trust(NamedTuple):
    """The versions that a person has trusted, and the scopes in need of trust."""

    trusted: TrustedFiles
    needed_by: Collection[Scope] = NEEDS_TRUST
    """The scopes of files that allow nothing until they are trusted."""
    loaded: Mapping[str, str] | None = None
    """The digests loaded before. If set, a file with another digest must be trusted."""


class Standing(NamedTuple):
    """The part of a file that counts."""

    source: str
    allows: bool
    """Whether its allow rules count."""
    findings: tuple[Finding, ...] = ()
    older: Document | None = None
    """The trusted version, if the file has changed since. Its ask and deny rules count beside those of the file."""


def find_standings(
    read: Mapping[str, PolicyFile], names: Mapping[str, str], documents: Mapping[str, Document], trust: Trust
) -> Iterator[Standing]:
    """Yield the standing of each file with a restriction or a finding, and of each trusted file.

    A trusted version counts in full. A changed file is an error if files are loaded again; at start it only restricts.
    An untrusted file counts at start, unless its scope needs trust or the list of trusted versions cannot be read.
    """
    versions: Mapping[str, TrustedVersion] = {}
    problem = ""
    try:
        versions = trust.trusted.versions()
    except DefinitionError as error:
        problem = f" ({error})"
    for path, file in read.items():
        source, version = names[file.path], versions.get(file.place)
        remedy = f"read it, then run {format_trust_command(file.place)}"
        if version is not None and version.digest == file.digest:
            yield Standing(source, True)
        elif trust.loaded is not None and trust.loaded.get(path) != file.digest:
            change = _format_change(trust.loaded.get(path, "nothing"), file.digest)
            text = f"{file.place} has changed {change}, and nobody trusts that version{problem}: {remedy}"
            yield Standing(source, False, (Finding("error", source, 0, text),))
        elif version is not None:
            older = read_document(version.text, f"{source} (as trusted)", file.scope)
            change = _format_change(version.digest, file.digest)
            text = f"it has changed {change} since it was trusted: its allow rules have no effect, and the deny"
            text += f" and ask rules of both versions apply; {remedy}"
            yield Standing(source, False, (Finding("warning", source, 0, text), *older.findings), older)
        elif problem or file.scope in trust.needed_by:
            yield Standing(source, False, tuple(_untrusted_allows(documents[path], problem, remedy)))


def _format_change(before: str, now: str) -> str:
    return f"from {short_digest(before)} to {short_digest(now)}"


def _untrusted_allows(document: Document, problem: str, remedy: str) -> Iterator[Finding]:
    """Yield a warning about the allow rules without effect, if there are any."""
    allows = [rule for rule in document.rules if rule.decide == "allow"]
    if allows:
        text = f"{len(allows)} of its allow rules have no effect, because nobody trusts this version of the file"
        yield Finding("warning", allows[0].source, allows[0].line, f"{text}{problem}: {remedy}")
