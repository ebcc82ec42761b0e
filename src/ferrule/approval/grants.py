"""Grants: what a person has allowed for a while.

Each is bound to the tool as it was, to who called it and where, to the rule that asked, and to what the person was
shown of the arguments. A grant for a shell line or for code covers the exact arguments that the person was shown.
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

from ferrule.approval.asked import Asked
from ferrule.approval.offer import Offer
from ferrule.approval.offering import bounds, covers_exactly, fits, is_narrower, with_real_roots
from ferrule.approval.question import shown_name
from ferrule.errors import DefinitionError
from ferrule.policy.lock import definition_of
from ferrule.scheduling.clock import MONOTONIC, Clock
from ferrule.security.paths import PATH_NAMES, has_name_of, real
from ferrule.stores.store import Memory, Store, read_row, replace_row
from ferrule.values.call import ToolCall
from ferrule.values.content import truncate_text
from ferrule.values.context import JUDGED_TRAITS, ToolContext
from ferrule.values.decision import Decision
from ferrule.values.frozen import FrozenDict, JsonObject, thaw
from ferrule.values.json_text import SECRET_STARS, is_same_json

log = logging.getLogger("ferrule")
HALF_A_DAY = 12 * 3600.0
"""Seconds that a grant for a session or a destructive call lasts at most. See docs/approvals.md#remembered-answers."""
ALWAYS = 30 * 86_400.0
"""Seconds that an "always" lasts at most. See docs/approvals.md#remembered-answers."""
_KEPT_AS = "grant/"
_OF_A_POLICY = re.compile(r":\d+(?:; |$)")
"""In the name of a rule: the line of a policy file, on which several rules may stand, and others tomorrow."""
_MOST_OF_ARGUMENTS = 200


@dataclass(frozen=True, slots=True)
class Grant:
    """What a person has allowed for a while. See docs/approvals.md#remembered-answers.

    Attributes:
        id: What it is revoked by.
        tool: The name of the tool.
        fingerprint: Of the tool as it was, of its traits for the arguments of the question, and of what the rule says,
            where it is one of a policy file.
        rule: What asked, as `Decision.rule`; a question by another rule is put again.
        principal: For whom.
        session: In which session; `None` for any.
        directory: In which working directory.
        exactly: The arguments, and no others; `None` where it goes by `arguments`.
        paths: Beside `exactly`: the real paths that these arguments led to.
        arguments: For each argument its condition as JSON, or `None` for any text that is no path and no URL. A call
            with other arguments than these is not covered.
        made_at, expires_at: Seconds since the epoch.
        uses: How many calls it still answers; `None` for any number.
        by: Who has given it, where that is known.
        text: What it covers, as the person read it.
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
        """The answer that it gives."""
        return Decision("allow", f"granted before: {self.text}", by=self.by, rule=f"grant {self.id}")

    def is_in_force(self, now: float) -> bool:
        """Whether it has not expired."""
        return now < self.expires_at

    def covers(self, subject: Subject, now: float) -> bool:
        """Whether it answers the question about this call, at this time."""
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
        if self.arguments.keys() != given.keys() or covers_exactly(subject.context.tool, given, subject.context):
            return False
        return all(fits(condition, name, given, subject.context) for name, condition in self.arguments.items())

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {field.name: thaw(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Grant:
        """Of what `to_json` gave.

        Raises:
            ValueError: for anything else.
        """
        return _grant_reader().validate_json(json.dumps(kept))


@cache
def _grant_reader() -> TypeAdapter[Grant]:
    return TypeAdapter(Grant)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a question is about, as a grant is compared with it: all of it was shown to a person, or is the tool's."""

    tool: str
    fingerprint: str
    rule: str | None
    principal: str | None
    session: str | None
    directory: str
    arguments: dict[str, Any]
    paths: tuple[str, ...]
    context: ToolContext


def subject_of(call: ToolCall, decision: Decision, context: ToolContext) -> Subject | None:
    """What a question is about; `None` where no grant may answer it: a value is asked for, or a person is not shown all
    of the arguments, or nothing is known of the tool."""
    if decision.into is not None or decision.schema is not None or context.call is None:
        return None
    tool = context.tool.definition
    if not _is_all_shown(tool, context.call.arguments):
        return None
    given = {name: thaw(value) for name, value in call.arguments.items() if name not in tool.hidden}
    if SECRET_STARS in json.dumps(given) or _has_secret(tool.input_schema):
        return None
    try:
        directory = real(context.working_directory, ".")
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
        paths=tuple(_led_to(text, directory) for text in _path_texts(given, context)),
        context=context,
    )


def _led_to(path: str, directory: str) -> str:
    """The real path; the text itself where it can be none."""
    try:
        return real(path, directory)
    except (OSError, ValueError):
        return path


def _path_texts(given: Mapping[str, Any], context: ToolContext) -> list[str]:
    """What is a path among the arguments, by its type or by its name."""
    by_name = [text for name, text in given.items() if isinstance(text, str) and has_name_of(name, PATH_NAMES)]
    return [*(found.text for found in context.paths if found.place[0] in given), *by_name]


def _is_all_shown(tool: Any, arguments: JsonObject) -> bool:
    """Whether nothing is bound, and what is private is as the tool itself fills it in."""
    parameters = tool.handling.parameters
    given = tool.hidden & arguments.keys()
    return not parameters.bound and all(
        name in parameters.defaults and is_same_json(thaw(parameters.defaults[name]), thaw(arguments[name]))
        for name in given
    )


def _has_secret(schema: Any) -> bool:
    """Whether a schema says anywhere that a value is secret."""
    if isinstance(schema, Mapping):
        return (
            schema.get("writeOnly") is True
            or schema.get("format") == "password"
            or any(map(_has_secret, schema.values()))
        )
    return isinstance(schema, list | tuple) and any(map(_has_secret, schema))


def _fingerprint(tool: Any, decision: Decision, context: ToolContext) -> str:
    """Of all that the tool says of itself and where it comes from, of its traits for the arguments of the call, and of
    the text of a policy's rule."""
    from hashlib import sha256  # loads OpenSSL, which most programs never need

    parameters = tool.handling.parameters
    facts = {
        "definition": definition_of(tool)["digest"],
        "mounted": [mount.name for mount in tool.mounts],
        "schema": thaw(parameters.schema),
        "asks": decision.reason if _OF_A_POLICY.search(decision.rule or "") else None,
        "traits": {name: getattr(context.tool, name) for name in JUDGED_TRAITS},
    }
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _now(context: ToolContext) -> float:
    return (context.clock or MONOTONIC).now()


class Grants:
    """All that was granted, in a store. See docs/approvals.md#remembered-answers.

    Its methods may block, as the store does, and may be called from any thread.

    Args:
        store: Where grants are kept; in the memory of this process where it is left out.
        scope: What is offered at least: a grant for the session of the call, or one for its working directory. A
            program whose sessions never come again offers the latter.
    """

    def __init__(self, store: Store | None = None, *, scope: Literal["session", "folder"] = "session") -> None:
        self.store: Store = Memory() if store is None else store
        self._scope = scope

    def listed(self, clock: Clock = MONOTONIC) -> list[Grant]:
        """The grants that are in force, the oldest first."""
        now = clock.now()
        found = [grant for grant, _ in self._kept(lambda grant: grant.is_in_force(now))]
        return sorted(found, key=lambda grant: (grant.made_at, grant.id))

    def revoke(self, id: str) -> Grant | None:
        """Take a grant back, for good; the grant, or `None` where there is none of this id."""
        key = _KEPT_AS + id
        while (kept := self.store.get(key)) is not None:
            if self.store.compare_and_set(key, kept, None):
                grant = read_row(kept, Grant.from_json)
                return grant if isinstance(grant, Grant) else None
        return None

    def find(self, call: ToolCall, decision: Decision, context: ToolContext) -> Grant | None:
        """The grant that would answer this question; nothing is used up."""
        return next((grant for grant, _ in self._answering(call, decision, context)), None)

    def use(self, call: ToolCall, decision: Decision, context: ToolContext) -> Grant | None:
        """The grant that answers this question. One for so many uses has one less then: of several calls at once, no
        more are answered than it has."""
        while found := self._answering(call, decision, context):
            grant, kept = found[0]
            if grant.uses is None:
                return grant
            left = None if grant.uses == 1 else {**kept, "uses": grant.uses - 1}
            if self.store.compare_and_set(_KEPT_AS + grant.id, kept, left):
                return grant
        return None

    def offers(self, asked: Asked) -> tuple[Offer, ...]:
        """What a person may be offered beside a yes for this once; nothing for a question that no grant may answer."""
        subject = subject_of(asked.call, asked.decision, asked.context)
        if subject is None:
            return ()
        within = bounds(asked.context.tool, subject.arguments, subject.context)
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

    def grant(self, asked: Asked, offer: Offer, *, by: str | None = None) -> Grant:
        """Keep what a person has chosen of what was offered, perhaps narrowed.

        Args:
            asked: The question, with its offers.
            by: Who has chosen it.

        Raises:
            ValueError: where it is no part of what was offered; it says what would be right.
        """
        subject = subject_of(asked.call, asked.decision, asked.context)
        offered = next((one for one in asked.offers if one.key == offer.key), None)
        if subject is None or offered is None:
            raise ValueError(f"nothing like {offer.key!r} was offered")
        _check_part(offer, offered, subject)
        now = _now(asked.context)
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
            arguments={name: with_real_roots(thaw(one), subject.directory) for name, one in offer.arguments.items()},
            made_at=now,
            expires_at=now + float(offer.seconds or 0),
            uses=offer.uses,
            by=by,
            text=_granted_text(offer, subject),
        )
        self._drop_expired(now)
        replace_row(self.store, _KEPT_AS + made.id, made.to_json())
        return made

    def _kept(self, fits: Callable[[Grant], bool]) -> list[tuple[Grant, Any]]:
        """The grants that fit, each with the value that is kept of it. What cannot be read hides no other."""

        def grant_of(row: Any) -> Grant | None:
            grant = Grant.from_json(row)
            return grant if grant.id == wanted and grant.made_at < grant.expires_at and fits(grant) else None

        found = []
        for key, kept in self.store.items(_KEPT_AS).items():
            wanted = key.removeprefix(_KEPT_AS)
            grant = read_row(kept, grant_of)
            if isinstance(grant, Grant):
                found.append((grant, kept))
            elif grant is not None:
                log.error("what is kept as %r is no grant, and grants nothing", key)
        return found

    def _answering(self, call: ToolCall, decision: Decision, context: ToolContext) -> list[tuple[Grant, Any]]:
        """The grants that answer a question: those for any number of calls first, then those that end first."""
        subject = subject_of(call, decision, context)
        if subject is None:
            return []
        now = _now(context)
        found = self._kept(lambda grant: grant.covers(subject, now))
        return sorted(found, key=lambda one: (one[0].uses is not None, one[0].expires_at, one[0].id))

    def _drop_expired(self, now: float) -> None:
        for grant, kept in self._kept(lambda grant: not grant.is_in_force(now)):
            self.store.compare_and_set(_KEPT_AS + grant.id, kept, None)


def _check_part(offer: Offer, offered: Offer, subject: Subject) -> None:
    """Refuse what is no part of what was offered.

    Raises:
        ValueError: with what would be right.
    """
    seconds: Any = offer.seconds
    uses: Any = offer.uses
    if (offer.tool, offer.exactly) != (offered.tool, offered.exactly) or (offered.session and not offer.session):
        raise ValueError(f"what was offered is: {offered.text}")
    if offer.session and subject.session is None:
        raise ValueError("this call belongs to no session")
    if seconds is None or not math.isfinite(seconds) or not 0 < seconds <= (offered.seconds or 0):
        raise ValueError(f"what was offered is at most: {offered.text}")
    if uses is not None and (isinstance(uses, bool) or not isinstance(uses, int) or uses < 1):
        raise ValueError(f"a grant has a whole number of uses, at least 1, not {uses!r}")
    if offered.uses is not None and (uses is None or uses > offered.uses):
        raise ValueError(f"at most {offered.uses} uses were offered")
    if offer.arguments.keys() != offered.arguments.keys():
        raise ValueError(f"it is about {', '.join(offered.arguments) or 'no arguments'}")
    for name, condition in offer.arguments.items():
        try:
            narrower = is_narrower(thaw(condition), thaw(offered.arguments[name]))
        except DefinitionError as error:
            raise ValueError(f"{name}: {error}") from None
        if not narrower:
            raise ValueError(f"{name}: {json.dumps(thaw(condition))} is more than what was offered: {offered.text}")


def _granted_text(offer: Offer, subject: Subject) -> str:
    """What is granted, with the arguments where it is for these."""
    if not offer.exactly:
        return offer.text
    written = ", ".join(f"{shown_name(name)}={json.dumps(value)}" for name, value in subject.arguments.items())
    return offer.text.replace(
        "with these arguments", f"with {truncate_text(written, _MOST_OF_ARGUMENTS)}" if written else "", 1
    )
