"""URLs lead to allowed hosts only, in the arguments of every tool.

The guard checks, in every tool and at every depth, values with the type or schema of a URL or a host, values under the
name of one, and any other whole text if it begins as a URL. It does not look for a URL within a longer text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from ferrule.guards._arguments import (
    QUOTES_AND_BLANKS,
    declares_text,
    format_argument,
    format_place,
    read_names,
    suggest_exemption,
)
from ferrule.security.paths import has_last_word
from ferrule.security.schema_walk import Schema, find_forms, item_schemas, match_forms, property_schemas
from ferrule.security.urls import HOST_NAMES, URL_NAMES, Destinations, Url, has_no_host, read_host, read_url
from ferrule.values.arguments import Place
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision

_Role: TypeAlias = Literal["url", "reference", "host"]
_FORMAT_ROLES: Final[Mapping[str, _Role]] = {
    **dict.fromkeys(("uri", "iri", "uri-template", "multi-host-uri"), "url"),
    **dict.fromkeys(("uri-reference", "iri-reference"), "reference"),
    **dict.fromkeys(("hostname", "idn-hostname", "ipv4", "ipv6", "ipvanyaddress"), "host"),
}
"""Formats of JSON Schema, and Pydantic's own."""
_WITHOUT_HOST: Final = frozenset({"data", "mailto", "tel", "urn"})
"""Schemes whose URLs reach no host: RFC 2397, RFC 6068, RFC 3966, RFC 8141."""
_RELATIVE = re.compile(r"[^:/?#]+(?:[/?#].*)?")
_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BEGINS_AS_URL = re.compile(
    r"(?:[a-z][a-z0-9+.-]*+:)*?(?P<url>[a-z][a-z0-9+.-]*:[/\\]{2}[^\s]|(?:https?|wss?|ftp|file):[^\s]"
    r"|(?:dict|ftps|gophers?|imaps?|ldaps?|mqtts?|pop3s?|rtsps?|scp|sftp|smbs?|smtps?|telnet|tftp):[/\\][^\s]"
    r"|[/\\]{2,}(?=[^\s/\\])[^/\\?#\s]+(?:[/\\?#]|\Z))",
    re.IGNORECASE,
)
"""The beginning of a text that may be a URL.

It covers clients that take backslashes for slashes or accept any number of them, as curl does. It also covers clients
with a scheme of their own before the URL: `view-source:`, `jar:`, urllib's `URL:`. Without a scheme, a text with a
blank in place of the host is no URL: `//TODO this`.
"""
_STRIPPED: Final = QUOTES_AND_BLANKS + "<>\ufeff\u200b" + "".join(map(chr, range(32)))
"""Characters removed at the ends of a URL by the URL Standard, RFC 3986's appendix C, and clients that strip a text."""
_SENTENCE_ENDS: Final = _STRIPPED + ",;:!)}"
_WITHOUT_BREAKS: Final = str.maketrans("", "", "\t\r\n")
"""Characters that the URL Standard removes from a URL at any position."""
_LEAST_ADDRESS: Final = 2**24
"""The least number that is the IPv4 address of something: 0.0.0.0/8 is none (RFC 1122)."""


def hosts(
    *allowed: str,
    ask: Iterable[str] = (),
    deny: Iterable[str] = (),
    schemes: Iterable[str] = ("https", "http"),
    ports: Iterable[int] | None = None,
    parameters: Iterable[str] = (),
    text: Iterable[str] = (),
) -> Callable[[ToolCall, ToolContext], Decision | None]:
    """Make a guard that denies every URL unless it leads to an allowed host. See docs/guards.md#hosts.

    A pattern is a host, `*.example.org` for all hosts below it, or `*`. Each may have a port; without one it matches
    every port. In an allowed pattern, `*` never stands for a non-global address, a name of one machine or network
    (`localhost`, `db`, `x.internal`) unless the pattern has its zone (`*.internal`), or a name with `xn--`. The guard
    denies a text with more than one reading. Read-only tools are checked too.

    The guard checks a name as it is written, whatever it resolves to. A handler should open it with
    `ferrule.security.http`, which checks the addresses; otherwise the owner of the name chooses the destination.

    Args:
        allowed: Patterns of hosts; `*` by default.
        ask: Patterns of hosts to ask a person about, allowed or not.
        deny: Patterns of hosts to deny, even if another pattern matches. Here, and in `ask`, `*` is everything.
        schemes: The schemes of URLs. An allowed `data`, `mailto`, `tel` or `urn` URL needs no other check.
        ports: The ports; `None` for every port.
        parameters: More names of parameters for URLs or hosts, at every depth.
        text: Names of parameters for other text, with everything in them, at every depth, whatever a schema says. The
            name counts only if the tool's schema has it, so a model cannot invent a key for text.

    Raises:
        DefinitionError: A pattern, a scheme, a port or a name is invalid.
    """
    rules = Destinations.from_options(allowed, ask, deny, schemes, ports)
    named, texts = read_names("hosts", parameters=parameters, text=text)

    def guard(call: ToolCall, context: ToolContext) -> Decision | None:
        judge = _HostJudge(rules, named, texts, getattr(context, "tool", None))
        judge.judge_mapping(call.arguments, [judge.schema], (), None)
        return judge.decision

    vars(guard)["asks"] = bool(rules.ask or rules.deny)  # a URL may or may not match a pattern of `deny`
    guard.__name__ = guard.__qualname__ = f"hosts({', '.join(map(repr, allowed))})"
    return guard


class _HostJudge:
    """A walk through the arguments of one call. `decision` is the strictest one, and the first if several are equal."""

    def __init__(self, rules: Destinations, named: frozenset[str], texts: frozenset[str], tool: Any) -> None:
        self.rules = rules
        self.named = named
        self.texts = texts
        self.schema: Schema = getattr(tool, "input_schema", {})
        self.hidden = getattr(tool, "hidden", ())
        self.decision: Decision | None = None
        self.unnamed: set[Place] = set()
        self.forms_by_nodes: dict[tuple[int, ...], list[Schema]] = {}

    def judge_mapping(self, values: Mapping[str, Any], nodes: list[Any], place: Place, role: _Role | None) -> None:
        forms = match_forms(values, self.find_forms(nodes))
        key_schemas = [form["propertyNames"] for form in forms if "propertyNames" in form]
        for key, value in values.items():
            inner = (*place, key)
            if not any(key in form.get("properties", ()) for form in forms):
                self.unnamed.add(inner)
            inherited = role if inner in self.unnamed else None
            self.judge_text(key, self.find_forms(key_schemas), inner, "host" if inherited == "host" else None)
            if key not in self.texts or inner in self.unnamed:
                inner_nodes = [node for form in forms for node in property_schemas(form, key)]
                self.judge_value(value, inner_nodes, inner, self.find_role(key) or inherited)

    def judge_value(self, value: Any, nodes: list[Any], place: Place, role: _Role | None) -> None:
        forms = self.find_forms(nodes)
        role = _find_role(forms) or role
        if isinstance(value, str):
            self.judge_text(value, forms, place, role)
        elif isinstance(value, Mapping):
            self.judge_mapping(value, nodes, place, role)
        elif isinstance(value, list | tuple):
            for at, one in enumerate(value):
                self.judge_value(one, [node for form in forms for node in item_schemas(form, at)], (*place, at), role)
        elif role == "host" and type(value) in {int, float}:
            if type(value) is float or not 0 < value < _LEAST_ADDRESS:
                self.add_decision("deny", place, f"{format_place(place)} must be a host as text, not a number")

    def judge_text(self, text: str, forms: list[Schema], place: Place, role: _Role | None) -> None:
        role = None if _is_constant(text, forms) else _find_role(forms) or role
        if role is not None:
            self.judge_url(text, role, place, format_argument(place, text))
        elif place[0] not in self.hidden and not declares_text(forms):
            exemption = suggest_exemption("hosts", place, self.unnamed)
            description = f"{format_argument(place, text)} reads as a URL{exemption} and"
            for read in _iter_urls(text):
                self.judge_url(read, "url", place, description)

    def judge_url(self, text: str, role: _Role, place: Place, description: str) -> None:
        if role != "host" and self.reaches_no_host(text, role):
            return
        try:
            url = _parse_url(text, role)
        except ValueError as error:
            self.add_decision("deny", place, f"{description} cannot be judged: {error}")
            return
        kind, reason = self.rules.verdict(url)
        if kind != "allow":
            self.add_decision(kind, place, f"{description} {reason}")

    def reaches_no_host(self, text: str, role: _Role) -> bool:
        """Return whether a URL has a scheme without hosts, or is a reference that stays on its host."""
        if not text or has_no_host(text):
            return True
        if "\\" in text or not text.isprintable():
            return False
        if scheme := _URL_SCHEME.match(text):
            return scheme[1].lower() in _WITHOUT_HOST.intersection(self.rules.schemes)
        return role == "reference" and _RELATIVE.fullmatch(text) is not None

    def add_decision(self, kind: Literal["ask", "deny"], place: Place, reason: str) -> None:
        if place[0] in self.hidden:
            reason = "a URL set by the program leads to a host that is not allowed"
        decision = Decision(kind, reason)
        self.decision = decision if self.decision is None else self.decision.stricter(decision)

    def find_role(self, key: str) -> _Role | None:
        if key in self.named or has_last_word(key, HOST_NAMES):
            return "host"
        return "url" if has_last_word(key, URL_NAMES) else None

    def find_forms(self, nodes: list[Any]) -> list[Schema]:
        ids = tuple(map(id, nodes))
        if ids not in self.forms_by_nodes:
            self.forms_by_nodes[ids] = find_forms(nodes, self.schema)
        return self.forms_by_nodes[ids]


def _find_role(forms: Iterable[Schema]) -> _Role | None:
    roles = [_FORMAT_ROLES[str(form["format"])] for form in forms if str(form.get("format")) in _FORMAT_ROLES]
    return next((role for role in ("url", "host", "reference") if role in roles), None)


def _is_constant(text: str, forms: Iterable[Schema]) -> bool:
    """Return whether a schema contains this exact text as an `enum` value or `const`."""
    return any(text in form.get("enum", ()) or text == form.get("const") for form in forms)


def _parse_url(text: str, role: _Role) -> Url:
    return read_host(text) if role == "host" and "://" not in text else read_url(text)


def _iter_urls(text: str) -> Iterator[str]:
    """Yield the URLs at the beginning of a text.

    A client may take the text as it is, strip it, remove line breaks, or open the URL behind another scheme.
    """
    plain = text.strip(_STRIPPED)
    for read in dict.fromkeys((plain, plain.translate(_WITHOUT_BREAKS))):
        if begins := _BEGINS_AS_URL.match(read):
            yield read[begins.start("url") :].split(maxsplit=1)[0].rstrip(_SENTENCE_ENDS)
