"""`hosts` in a runner: URLs and hosts are judged wherever they stand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import HttpUrl, IPvAnyAddress, create_model

from ferrule import Decision, Runner, Tool, ToolCall, tool
from ferrule.errors import DefinitionError
from ferrule.guards import hosts
from steps import steps

ATTACKS = json.loads((Path(__file__).parent.parent / "data" / "url_attacks.json").read_text(encoding="utf-8"))
RESOLVED = ("//internal.test", "v6internal.test", "mixed.test", "rebind.test", "/r1", "/r2", "/r3", "/r4", "/loop")
"""Attacks that cannot be seen in the text; tests/security/test_http.py runs all of them."""
LOOPBACK = "http://127.0.0.1/"
URI = {"type": "string", "format": "uri"}


def judged(kind: Any, value: Any, name: str = "value", guard: Any = None, **call: Any) -> Decision:
    """The decision about a call of a tool with one parameter of this type, or of this JSON Schema."""
    if isinstance(kind, dict):
        schema = {"type": "object", "properties": {name: kind}, "required": [name]}
        taken = Tool(name="take", description="x", handler=lambda payload: None, input_schema=schema, read_only=True)
    else:

        @tool(name="take", input_schema=create_model("Arguments", **{name: (kind, ...)}), read_only=True)
        def taken(arguments: Any) -> None:
            """Take it."""

    runner = Runner([taken], guards=[guard or hosts()])
    return asyncio.run(runner.decide(ToolCall("1", "take", {name: value, **call})))


@pytest.mark.parametrize("row", ATTACKS["rows"], ids=lambda row: ascii(row["url"]))
def test_every_attack_is_denied_by_name_type_and_text(row: dict[str, str]) -> None:
    url = row["url"]
    denied = row["expect"] == "deny" and not url.endswith(tuple(RESOLVED)) and not any(one in url for one in RESOLVED)
    kinds = {judged(str, url, "url").kind, judged(URI, url).kind, judged(str, url).kind, judged(Any, {"a": [url]}).kind}
    assert kinds == ({"deny"} if denied else {"allow"}) or row["expect"] == "either"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (str, "url", "127.0.0.1:8000/x"),
        (dict[str, str], "proxies", {"http": "127.0.0.1:8080"}),
        (list[str], "urls", ["https://example.org/", "example.org"]),
        (str, "host", "127.1"),
        (int, "host", 2130706433),
        (dict[str, int], "hosts", {"10.0.0.1": 22}),
        (HttpUrl, "value", "http://0x7f.1/"),
        (IPvAnyAddress, "value", "10.0.0.1"),
        ({"type": "string", "format": "uri-reference"}, "value", "//example.org/x"),
        ({"type": "string", "format": "hostname"}, "value", "db"),
        ({"type": "object", "propertyNames": {"format": "hostname"}}, "value", {"db": 1}),
        ({"type": "object"}, "value", {"url": "localhost:1"}),
        ({"anyOf": [{"type": "array", "items": URI}, {"type": "null"}]}, "value", ["a"]),
        *((str, "value", text) for text in (f"'{LOOPBACK}'", f"{LOOPBACK} is the page", f"\ufeff{LOOPBACK}")),
        *((str, "value", text) for text in (f"url:jar:{LOOPBACK}!/a", f"feed:\n{LOOPBACK}", "HTTP:127.0.0.1")),
        *((str, "value", text) for text in ("http:// 127.0.0.1/", "gopher:/127.0.0.1:6379/_x", "\\\\server\\share")),
    ],
)
def test_a_url_or_host_that_is_not_public_is_denied(kind: Any, name: str, value: Any) -> None:
    assert judged(kind, value, name).kind == "deny"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (str, "url", "https://example.org/a?b=http://127.0.0.1/"),
        (str, "url", ""),
        (str, "url", "/users/5?x=a:b"),
        (Literal["auto", "https://example.org/"], "url", "auto"),
        (str, "host", "example.org:8080"),
        (bool, "host", True),
        (HttpUrl | None, "value", None),
        ({"type": "string", "format": "uri-reference"}, "value", "a/b.html?c:d"),
        ({"type": "string", "contentMediaType": "text/html"}, "value", LOOPBACK),
        *((str, "value", text) for text in ("see http://127.0.0.1/", "// a comment", "http: the protocol")),
        *((str, "value", text) for text in ("<https://example.org>", "https://example.org, https://a.com: down")),
        *((str, "value", text) for text in ("Source:https://example.org/", "12:30 and /usr/bin and C:\\x and a//b")),
        (str, "curl", "localhost:1"),
    ],
)
def test_public_hosts_and_other_texts_are_allowed(kind: Any, name: str, value: Any) -> None:
    assert judged(kind, value, name).kind == "allow"


def test_the_strictest_matching_pattern_counts() -> None:
    guard = hosts("*.example.org", "127.0.0.1:8000", ask=["pay.example.org", "*:22"], deny=["evil.example.org"])
    kinds = {
        "https://a.example.org/": "allow",
        "http://127.0.0.1:8000/": "allow",
        "http://127.0.0.1:8001/": "deny",
        "https://example.com/": "deny",
        "https://pay.example.org/": "ask",
        "https://evil.example.org/": "deny",
        "http://evil.example.org:22/": "deny",
        "http://127.1:22/": "deny",
    }
    assert {url: judged(str, url, "url", guard).kind for url in kinds} == kinds
    assert judged(str, "a.example.org", "host", guard).kind == "ask"  # by which port, cannot be known
    assert judged(str, "http://[2606:4700::1111]", "value", guard=hosts("[2606:4700::1111]")).kind == "allow"
    several = ["https://a.example.org/", "https://pay.example.org/", "https://evil.example.org/"]
    assert [judged(list[str], several[:end], "urls", guard).kind for end in (1, 2, 3)] == ["allow", "ask", "deny"]
    assert judged(list[str], several[::-1], "urls", guard).kind == "deny"


def test_schemes_and_ports_are_bounded() -> None:
    guard = hosts(schemes=("https", "data"), ports=(443, 8443))
    kinds = {
        "https://example.org/": "allow",
        "https://example.org:8443/": "allow",
        "https://example.org:8444/": "deny",
        "http://example.org:443/": "deny",
        "data:text/plain,hello": "allow",
    }
    assert {url: judged(str, url, "url", guard).kind for url in kinds} == kinds
    assert judged(str, "data:text/plain,hello", "url").kind == "deny"
    assert [judged(str, host, "host", guard).kind for host in ("example.org", "example.org:443")] == ["deny", "allow"]


def test_names_may_be_of_urls_or_of_text() -> None:
    guard = hosts(parameters=("target",), text=("url", "content", "place"))
    assert judged(str, "localhost:80", "target", guard).kind == "deny"
    assert judged(str, "example.org:80", "target", guard).kind == "allow"
    assert judged(str, LOOPBACK, "url", guard).kind == "allow"
    assert judged({"type": "object"}, {"content": LOOPBACK}, "value", guard).kind == "deny"  # a key of a model's making
    assert judged(HttpUrl, LOOPBACK, "place", guard).kind == "allow"


@pytest.mark.parametrize(("url", "kind"), [("http://secret.internal/", "deny"), ("https://example.org/", "allow")])
async def test_a_bound_url_is_judged_but_not_named(url: str, kind: str) -> None:
    @tool
    def fetch(url: str, note: str) -> None:
        """Fetch."""

    runner = Runner([fetch.bind(url=url, note=LOOPBACK)], guards=[hosts()])
    decision = await runner.decide(ToolCall("1", "fetch", {}))
    assert decision.kind == kind
    assert kind == "allow" or decision.reason == "a URL set by the program leads to a host that is not allowed"


@pytest.mark.parametrize(
    "options",
    [
        *({option: "example.org"} for option in ("ask", "deny", "schemes", "parameters", "text")),
        *({"ports": ports} for ports in (["443"], [0], 443)),
        *({"ask": ["a*b"]}, {"schemes": ["https:"]}, {"parameters": ["a"], "text": ["a"]}),
    ],
)
def test_a_wrong_option_is_a_definition_error(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        hosts(**options)


def test_judging_costs_no_more_than_the_arguments() -> None:
    """Each form of a schema that refers to itself is found once, however deep the arguments are."""
    node: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string", "format": "uri"}]}
    properties = {"left": node, "right": node, "urls": {"type": "array", "items": node}}
    schema = {"type": "object", "properties": {"n": node}, "$defs": {"n": {"type": "object", "properties": properties}}}
    nested = Tool(name="take", description="x", handler=lambda payload: None, input_schema=schema, read_only=True)
    runner = Runner([nested], guards=[hosts()])

    def took(depth: int) -> int:
        value: Any = "https://example.org/"
        for _ in range(depth):
            value = {"left": value, "urls": ["https://example.org/"] * depth}
        return steps(lambda: asyncio.run(runner.decide(ToolCall("1", "take", {"n": value}))))

    assert took(40) < 5 * took(20)
