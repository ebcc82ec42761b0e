"""What users write of policies, guards of commands and hosts, approvals that remember, and locks; mypy and pyright must
find nothing, both in strict mode.

It is checked and never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_type

from ferrule import (
    Approver,
    Decision,
    Diff,
    Event,
    Guard,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Toolset,
    allow,
    approval,
    deny,
    tool,
)
from ferrule.adapters import afk
from ferrule.approval import AcceptedAnswer, Answer, Asked, Grants, Offer, RequestApprover, WaitingCall
from ferrule.guards import commands, hosts, rules, within
from ferrule.journal import events
from ferrule.middleware import redact, sanitize
from ferrule.policy import Condition, Finding, Policy, PolicyDecision, Rule, TrustedFiles, find_files, parse_condition
from ferrule.security.commands import CommandPattern, Line, has_match, read_line
from ferrule.security.http import async_client, client
from ferrule.security.urls import Url, find_address_kind, host_matches, read_url
from ferrule.stores.store import Memory, SealedFile, Store


def difference(arguments: Mapping[str, Any]) -> Diff:
    """What a person is shown, and what is written."""
    return Diff("", f"{arguments['euros']}", "paid", binds={"expected": "0"})


@tool(destructive=False, preview=difference)
def pay(to: str, euros: int, expected: str = "") -> str:
    """Pay somebody."""
    return f"{euros} to {to}"


# Guards and policies.

policy: Policy = rules("policy.toml", project=[".ferrule/policy.toml"], tools=[pay], shadow=Path("next.toml"))
guards: list[Guard] = [
    within("notes"),
    commands(allow=["pytest *"], ask=["git push *"], deny=["rm *"], within=["out"], parameters=["script"]),
    hosts("*.example.org", deny=["internal.example.org"], ports=[443]),
    policy,
    afk.policy(object()),
]


def checked(files: Sequence[str]) -> list[str]:
    """What is wrong in files, without an exception."""
    loaded = Policy([("user", file) for file in files], tools=Toolset([pay]), trusted=TrustedFiles())
    assert_type(loaded.rules, tuple[Rule, ...])
    loaded = Policy(find_files("."))
    return [f"{finding.source}:{finding.line}" for finding in loaded.findings if finding.level == "error"]


def said(call: ToolCall, context: ToolContext) -> Decision | None:
    """What each rule says of a call."""
    judged = policy.decide(call, context)
    assert_type(judged, PolicyDecision)
    assert_type(judged.deciding_rules, tuple[Rule, ...])
    assert_type([rule.text for rule, fits in judged.answers if fits is None], list[str])
    return judged.decision


def narrower(given: dict[str, object]) -> bool:
    """Whether one condition is as strict as another."""
    one: Condition = parse_condition(given)
    return parse_condition({"at_most": 100}).covers(one)


def reloaded() -> Sequence[Finding]:
    """What is wrong in the files as they are now."""
    return policy.reload()


# The parsers.


def read(text: str) -> tuple[Line, Url, bool | None, bool | None]:
    """A shell line and a URL."""
    pattern = CommandPattern("git * push *")
    assert_type(pattern.covers(CommandPattern("git push")), bool)
    assert_type(read_line(text).commands[0].words, tuple[str | None, ...])
    print(find_address_kind("127.0.0.1") == "loopback")
    return read_line(text), read_url(text), has_match(read_line(text), [pattern]), host_matches(text, [])


async def opened(url: str) -> int:
    """Open what was judged."""
    with client("*.example.org", deny=["internal.example.org"]) as here:
        here.get(url)
    async with async_client(ports=[443]) as there:
        return (await there.get(url)).status_code


# Approvals.


async def by_chat(asked: Asked) -> Answer:
    """Ask somebody elsewhere."""
    offers: tuple[Offer, ...] = asked.offers
    if asked.call.name == "pay" and offers:
        return asked.approve(by="ann")
    return asked.deny(f"{asked.text}: not {asked.digest}")


def at_once(asked: Asked) -> bool:
    return asked.decision.into is None


def decided(asked: Asked) -> Decision:
    return allow(by="ann") if asked.binds else deny("no")


sealed: Store = SealedFile("grants.json", b"x" * 32, apart_from=[Path("notes")])
grants = Grants(sealed)
approvers: list[Approver | RequestApprover] = [
    approval.callback(by_chat, own=False),
    approval.callback(at_once),
    approval.callback(decided),
    approval.console(by="ann"),
    approval.later,
    approval.remembered(approval.console(), grants),
    approval.remembered(approval.later),
]

queue = approval.web(Memory(), tools=[pay], own=False)


async def drained(suspended: ToolResult, body: dict[str, str], user: str) -> AcceptedAnswer:
    """A page that shows what waits, and answers it."""
    await queue.put(suspended)
    waiting: list[WaitingCall] = await queue.waiting()
    print([one.text for one in waiting])
    taken = await queue.answer(body["id"], body["digest"], body["said"] == "yes", by=user)
    await runner.resume(taken.record, taken.decision)
    return taken


def revoked() -> list[str]:
    """Take back what was remembered."""
    return [grant.text for grant in grants.list_active() if grants.revoke(grant.id) is not None]


# Definitions that hold still.

locked: Toolset = Toolset([pay]).with_lock("ferrule.lock")
put_aside: list[tuple[Tool, str | None]] = [(one, one.quarantine) for one in locked.quarantined]
runner = Runner(
    locked,
    guards=guards,
    approve=approval.remembered(approval.callback(by_chat), grants),
    around=[sanitize(), redact()],
    observers=[events.to_file("log.jsonl", decisions=True)],
)


def watch(event: Event) -> None:
    """Who allowed what, by which rule."""
    if event.kind == "tool:decided":
        print(event.data["rule"], event.data["by"])
