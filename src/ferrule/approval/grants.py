"""Grants: answers of a person that stay valid for a while.

Each grant is bound to the version of the tool, to the principal and the working directory, to the rule that asked, and
to the arguments as the person saw them. A grant for a shell line or for code covers the exact arguments of the
question.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from ferrule.approval.bounds import find_bounds, is_at_most, meets_condition, needs_exact_arguments, resolve_roots
from ferrule.approval.offer import Offer
from ferrule.approval.question import format_name
from ferrule.approval.request import Asked
from ferrule.errors import DefinitionError
from ferrule.policy.lock import make_definition
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.security.paths import PATH_NAMES, has_last_word, resolve_path
from ferrule.stores.store import Memory, Store, read_row, replace_row
from ferrule.values.call import ToolCall
from ferrule.values.content import truncate_text
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import Decision
from ferrule.values.frozen import FrozenDict, JsonObject, thaw
from ferrule.values.json_text import SECRET_STARS, is_same_json

log = logging.getLogger("ferrule")
HALF_A_DAY = 12 * 3600.0
"""The most seconds of a grant for a session or a destructive call. See docs/approvals.md#remembered-answers."""
ALWAYS = 30 * 86_400.0
"""The most seconds of an "always". See docs/approvals.md#remembered-answers."""
_KEY_PREFIX = "grant/"
_POLICY_LINE = re.compile(r":\d+(?:; |$)")
"""The line of a policy file in the name of a rule. Several rules may stand on that line, and other rules tomorrow."""
_MOST_ARGUMENT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission by a person for a while. See docs/approvals.md#remembered-answers.

    Attributes:
        id: The id for revoking it.
        tool: The name of the tool.
        fingerprint: A digest of the tool's definition, of its traits for the arguments of the question, and of the
            rule's text if it is a rule of a policy file.
        rule: The rule that asked, as in `Decision.rule`. A question by another rule is asked again.
        principal: The principal of its calls.
        session: The session of its calls; `None` for any.
        directory: The working directory of its calls.
        exactly: The only covered arguments; `None` if `arguments` decides.
        paths: The real paths of the arguments in `exactly`.
        arguments: The condition for each argument, as JSON, or `None` for any text other than a path or a URL. A call
            with other arguments than these is not covered.
        made_at, expires_at: Seconds since the epoch.
        uses: The number of calls it still answers; `None` for any number.
        by: The name of the person, if known.
        text: The text of the grant as the person read it.
    """

    id: str
    tool: str
    fingerprint: str
    rule: str | None
    principal: str | None
    session: str | None
    directory: str
    exactly: JsonObject | None
    paths: tuple[str, ...]
    arguments: JsonObject
    made_at: float
    expires_at: float
    uses: int | None
    by: str | None
    text: str
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    @property
    def decision(self) -> Decision:
        """The answer to a covered call."""
        return Decision("allow", f"granted earlier: {self.text}", by=self.by, rule=f"grant {self.id}")

    def is_in_force(self, now: float) -> bool:
        """Return whether the grant has not expired."""
        return now < self.expires_at

    def covers(self, subject: Subject, now: float) -> bool:
        """Return whether the grant answers the question about this call at this time."""
        return (
            self.made_at <= now
            and self.is_in_force(now)
            and self.uses != 0
            and self.tool == subject.tool
            and self.fingerprint == subject.fingerprint
            and self.rule == subject.rule
            and self.principal == subject.principal
            and self.session in {None, subject.session}
            and self.directory == subject.directory
            and self._covers_arguments(subject)
        )

    def _covers_arguments(self, subject: Subject) -> bool:
        given = subject.arguments
        if self.exactly is not None:
            return is_same_json(thaw(self.exactly), given) and list(self.paths) == list(subject.paths)
        if self.arguments.keys() != given.keys() or needs_exact_arguments(subject.context.tool, given, subject.context):
            return False
        return all(meets_condition(one, name, given, subject.context) for name, one in self.arguments.items())

    def to_json(self) -> dict[str, Any]:
        """Return the grant as JSON for the store."""
        return {field.name: thaw(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Grant:
        """Return the grant from the result of `to_json`.

        Raises:
            ValueError: `stored` is anything else.
        """
        return _grant_reader().validate_json(json.dumps(stored))


@cache
def _grant_reader() -> TypeAdapter[Grant]:
    return TypeAdapter(Grant)


@dataclass(frozen=True, slots=True)
class Subject:
    """The facts about a question that a grant is compared with. They come from the tool, or a person saw them."""

    tool: str
    fingerprint: str
    rule: str | None
    principal: str | None
    session: str | None
    directory: str
    arguments: dict[str, Any]
    paths: tuple[str, ...]
    context: ToolContext


def find_subject(call: ToolCall, decision: Decision, context: ToolContext) -> Subject | None:
    """Return the facts about a question, or None if no grant may answer it.

    The result is None if the question asks for a value, the person does not see all arguments, or the tool is unknown.
    """
    if decision.into is not None or decision.schema is not None or context.call is None:
        return None
    tool = context.tool.definition
    if not _is_all_shown(tool, context.call.arguments):
        return None
    given = {name: thaw(value) for name, value in call.arguments.items() if name not in tool.hidden}
    if SECRET_STARS in json.dumps(given) or _has_secret(tool.input_schema):
        return None
    try:
        directory = resolve_path(context.working_directory, ".")
    except (OSError, ValueError):
        return None
    return Subject(
        tool=tool.name,
        fingerprint=_fingerprint(tool, decision, context),
        rule=decision.rule,
        principal=context.principal,
        session=context.session,
        directory=directory,
        arguments=given,
        paths=tuple(_resolve_path(text, directory) for text in _path_texts(given, context)),
        context=context,
    )


def _resolve_path(path: str, directory: str) -> str:
    """Return the real path, or the text itself if it cannot be a path."""
    try:
        return resolve_path(path, directory)
    except (OSError, ValueError):
        return path


def _path_texts(given: Mapping[str, Any], context: ToolContext) -> list[str]:
    """Return the paths among the arguments, by type or by name."""
    by_name = [text for name, text in given.items() if isinstance(text, str) and has_last_word(name, PATH_NAMES)]
    return [*(found.text for found in context.paths if found.place[0] in given), *by_name]


def _is_all_shown(tool: Any, arguments: JsonObject) -> bool:
    """Return whether nothing is bound, and every private value is the tool's own default."""
    parameters = tool.handling.parameters
    given = tool.hidden & arguments.keys()
    return not parameters.bound and all(
        name in parameters.defaults and is_same_json(thaw(parameters.defaults[name]), thaw(arguments[name]))
        for name in given
    )


def _has_secret(schema: Any) -> bool:
    """Return whether a schema declares a secret value at any depth."""
    if isinstance(schema, Mapping):
        return (
            schema.get("writeOnly") is True
            or schema.get("format") == "password"
            or any(map(_has_secret, schema.values()))
        )
    return isinstance(schema, list | tuple) and any(map(_has_secret, schema))


def _fingerprint(tool: Any, decision: Decision, context: ToolContext) -> str:
    """Return a digest of the tool, its origin, its traits for the arguments, and the text of a policy's rule."""
    from hashlib import sha256  # this import loads OpenSSL, and most programs never need it

    parameters = tool.handling.parameters
    facts = {
        "definition": make_definition(tool)["digest"],
        "mounted": [mount.name for mount in tool.mounts],
        "schema": thaw(parameters.schema),
        "asks": decision.reason if _POLICY_LINE.search(decision.rule or "") else None,
        "traits": {name: getattr(context.tool, name) for name in JUDGED_TRAITS},
    }
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _now(context: ToolContext) -> float:
    return (context.clock or MONOTONIC).now()


class Grants:
    """The stored grants. See docs/approvals.md#remembered-answers.

    Its methods may block, as the store does, and may be called from any thread.

    Args:
        store: The store for grants; the memory of this process by default.
        scope: The narrowest grant to offer: for the session of the call, or for its working directory. Use `"folder"`
            if your sessions never come again.
    """

    def __init__(self, store: Store | None = None, *, scope: Literal["session", "folder"] = "session") -> None:
        self.store: Store = Memory() if store is None else store
        self._scope = scope

    def list_active(self, clock: Clock = MONOTONIC) -> list[Grant]:
        """Return the active grants, the oldest first."""
        now = clock.now()
        found = [grant for grant, _ in self._read_grants(lambda grant: grant.is_in_force(now))]
        return sorted(found, key=lambda grant: (grant.made_at, grant.id))

    def revoke(self, id: str) -> Grant | None:
        """Revoke a grant for good. Return the grant, or None if there is none with this id."""
        key = _KEY_PREFIX + id
        while (stored := self.store.get(key)) is not None:
            if self.store.compare_and_set(key, stored, None):
                grant = read_row(stored, Grant.from_json)
                return grant if isinstance(grant, Grant) else None
        return None

    def find(self, call: ToolCall, decision: Decision, context: ToolContext) -> Grant | None:
        """Return the grant for this question, if any, without using it up."""
        return next((grant for grant, _ in self._find_grants(call, decision, context)), None)

    def use(self, call: ToolCall, decision: Decision, context: ToolContext) -> Grant | None:
        """Return the grant for this question, if any, and use it once.

        Concurrent calls never get more answers than the grant has uses.
        """
        while found := self._find_grants(call, decision, context):
            grant, stored = found[0]
            if grant.uses is None:
                return grant
            left = None if grant.uses == 1 else {**stored, "uses": grant.uses - 1}
            if self.store.compare_and_set(_KEY_PREFIX + grant.id, stored, left):
                return grant
        return None

    def offers(self, request: Asked) -> tuple[Offer, ...]:
        """Return the offers for a question beside a single yes; none if no grant may answer it."""
        subject = find_subject(request.call, request.decision, request.context)
        if subject is None:
            return ()
        within = find_bounds(request.context.tool, subject.arguments, subject.context)
        exact = Offer("these", subject.tool, exactly=True, seconds=ALWAYS)
        if self._scope == "folder" and within is None:
            return (replace(exact, seconds=HALF_A_DAY),)
        offers = [(exact, "these in this session")]
        if within is not None and any(one is None or "equals" not in one for one in within.values()):
            wider = Offer("always", subject.tool, arguments=FrozenDict(within), seconds=ALWAYS)
            offers.append((wider, "this session"))
        found: list[Offer] = []
        for always, key in offers:
            if self._scope == "session" and subject.session is not None:
                found.append(replace(always, key=key, session=True, seconds=HALF_A_DAY))
            if within is not None:
                found.append(always)
        return tuple(found)

    def grant(self, request: Asked, offer: Offer, *, by: str | None = None) -> Grant:
        """Store a grant for the person's choice among the offers, perhaps narrowed.

        Args:
            request: The question, with its offers.
            by: The name of the person.

        Raises:
            ValueError: The choice goes beyond the offers. The text has the right form.
        """
        subject = find_subject(request.call, request.decision, request.context)
        offered = next((one for one in request.offers if one.key == offer.key), None)
        if subject is None or offered is None:
            raise ValueError(f"{offer.key!r} was not offered")
        _check_choice(offer, offered, subject)
        now = _now(request.context)
        made = Grant(
            id=secrets.token_hex(8),
            tool=subject.tool,
            fingerprint=subject.fingerprint,
            rule=subject.rule,
            principal=subject.principal,
            session=subject.session if offer.session else None,
            directory=subject.directory,
            exactly=subject.arguments if offer.exactly else None,
            paths=subject.paths if offer.exactly else (),
            arguments={name: resolve_roots(thaw(one), subject.directory) for name, one in offer.arguments.items()},
            made_at=now,
            expires_at=now + float(offer.seconds or 0),
            uses=offer.uses,
            by=by,
            text=_describe_grant(offer, subject),
        )
        self._remove_expired(now)
        replace_row(self.store, _KEY_PREFIX + made.id, made.to_json())
        return made

    def _read_grants(self, meets_condition: Callable[[Grant], bool]) -> list[tuple[Grant, Any]]:
        """Return the grants that fit, each with its stored value. An unreadable one does not hide the others."""

        def read_grant(row: Any) -> Grant | None:
            grant = Grant.from_json(row)
            return grant if grant.id == wanted and grant.made_at < grant.expires_at and meets_condition(grant) else None

        found = []
        for key, stored in self.store.items(_KEY_PREFIX).items():
            wanted = key.removeprefix(_KEY_PREFIX)
            grant = read_row(stored, read_grant)
            if isinstance(grant, Grant):
                found.append((grant, stored))
            elif grant is not None:
                log.error("the stored grant %r is unreadable, so it covers no call", key)
        return found

    def _find_grants(self, call: ToolCall, decision: Decision, context: ToolContext) -> list[tuple[Grant, Any]]:
        """Return the grants for a question: those with unlimited uses first, then by expiry."""
        subject = find_subject(call, decision, context)
        if subject is None:
            return []
        now = _now(context)
        found = self._read_grants(lambda grant: grant.covers(subject, now))
        return sorted(found, key=lambda one: (one[0].uses is not None, one[0].expires_at, one[0].id))

    def _remove_expired(self, now: float) -> None:
        for grant, stored in self._read_grants(lambda grant: not grant.is_in_force(now)):
            self.store.compare_and_set(_KEY_PREFIX + grant.id, stored, None)


def _check_choice(offer: Offer, offered: Offer, subject: Subject) -> None:
    """Refuse a choice beyond the offer.

    Raises:
        ValueError: The choice covers more than the offer. The text has the right form.
    """
    seconds: Any = offer.seconds
    uses: Any = offer.uses
    if (offer.tool, offer.exactly) != (offered.tool, offered.exactly) or (offered.session and not offer.session):
        raise ValueError(f"{offer.text!r} goes beyond the offer: {offered.text}")
    if offer.session and subject.session is None:
        raise ValueError("the call has no session, so a grant for a session cannot cover it")
    if seconds is None or not math.isfinite(seconds) or not 0 < seconds <= (offered.seconds or 0):
        raise ValueError(f"seconds={seconds!r} goes beyond the offer: {offered.text}")
    if uses is not None and (isinstance(uses, bool) or not isinstance(uses, int) or uses < 1):
        raise ValueError(f"uses must be a whole number of at least 1, not {uses!r}")
    if offered.uses is not None and (uses is None or uses > offered.uses):
        raise ValueError(f"uses must be at most {offered.uses}, not {uses!r}")
    if offer.arguments.keys() != offered.arguments.keys():
        raise ValueError(f"the offer has the arguments {sorted(offered.arguments)}, not {sorted(offer.arguments)}")
    for name, condition in offer.arguments.items():
        try:
            narrower = is_at_most(thaw(condition), thaw(offered.arguments[name]))
        except DefinitionError as error:
            raise ValueError(f"{name}: {error}") from None
        if not narrower:
            raise ValueError(f"{name}: {json.dumps(thaw(condition))} goes beyond the offer: {offered.text}")


def _describe_grant(offer: Offer, subject: Subject) -> str:
    """Return the text of the grant, with the arguments if it is for exactly these."""
    if not offer.exactly:
        return offer.text
    written = ", ".join(f"{format_name(name)}={json.dumps(value)}" for name, value in subject.arguments.items())
    return offer.text.replace(
        "with these arguments", f"with {truncate_text(written, _MOST_ARGUMENT_CHARACTERS)}" if written else "", 1
    )
