"""A file of tokens: who may call, until when and how much; and a gateway that follows its upstream servers."""

from __future__ import annotations

import asyncio
import io
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as wire
import pytest
from connected import MODERN, text
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from test_over_http import connected

from ferrule import DefinitionError, Event, Journal, Runner, ToolContext, mcp, serve, tool
from ferrule.cli import main
from ferrule.guards import within
from ferrule.mcp.serve._tokens import TokenFile, TokenLimits, hash_token, parse_tokens
from ferrule.stores.store import ReachableError
from ferrule.testing import ManualClock
from gates import Gate
from waits import BOUND

SECRETS = {"ann": "the token of ann", "bob": "the token of bob"}


@tool(read_only=True)
async def who(context: ToolContext) -> str:
    return str(context.principal)


@tool(read_only=True)
async def twice(context: ToolContext) -> str:
    return str([(await context.run("who")).output, (await context.run("who")).output])


def entry(name: str, token: str | None = None, **more: Any) -> str:
    lines = [f"[{name}]", f'sha256 = "{hash_token(token or SECRETS[name])}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in more.items()), "\n"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the token of ann, who may call twice, and that of bob."""
    path = tmp_path / "tokens.toml"
    write(path, entry("ann", calls=2) + entry("bob"))
    return path


def write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)


@asynccontextmanager
async def gateway(runner: Runner, **options: Any) -> AsyncIterator[str]:
    """Serve a runner; the address."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve.http(runner, port=0, ready=ready.set_result, stop=stop, **options))
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield ready.result() if ready.done() else await serving
    finally:
        stop.set()
        await serving


async def call(url: str, name: str, tool_name: str = "who") -> str:
    async with connected(url, MODERN, SECRETS[name], path="") as client:
        return text(await client.call_tool(tool_name))


async def status(url: str, token: str) -> int:
    """What a request with that token is answered with."""
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        return (await http.post(url, headers={"Authorization": f"Bearer {token}"}, json={})).status_code


async def test_each_token_is_a_principal_and_a_changed_file_counts_at_once(file: Path) -> None:
    events: list[Event] = []
    async with gateway(Runner([who], observers=[events.append]), tokens=file) as url:
        assert [await call(url, "ann"), await call(url, "bob")] == ["ann", "bob"]
        assert await status(url, "another token") == 401
        write(file, entry("bob", principal='"team"'))
        assert await status(url, SECRETS["ann"]) == 401
        assert await call(url, "bob") == "team"
        write(file, entry("bob", expires=f"{datetime.now(UTC) - timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"))
        assert await status(url, SECRETS["bob"]) == 401
        write(file, entry("bob", expires=f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"))
        assert await call(url, "bob") == "bob"
    refused = [event.data for event in events if event.kind == "client:refused"]
    assert len(refused) == 3 and not any(secret in str(refused) for secret in SECRETS.values())


@pytest.mark.parametrize("broken", ["gone", "no TOML", "writable", "a link to a device"])
async def test_a_file_that_becomes_unusable_lets_nobody_in(file: Path, broken: str) -> None:
    async with gateway(Runner([who]), tokens=str(file)) as url:
        found = await call(url, "bob")
        if broken == "writable":
            file.chmod(0o620)
        elif broken == "no TOML":
            write(file, entry("bob") + "[")
        else:
            file.unlink()
            if broken == "a link to a device":
                file.symlink_to("/dev/zero")
        assert (found, await status(url, SECRETS["bob"])) == ("bob", 401)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[ann]", "the token 'ann' needs sha256, 64 hexadecimal digits"),
        (f'sha256 = "{"0" * 64}"', "'sha256' is outside a token"),
        (entry("ann", calls_per_minuet=2), "unknown key 'calls_per_minuet'; did you mean 'calls_per_minute'"),
        (entry("ann", calls=0), "calls of the token 'ann' must be a whole number of at least 1, not 0"),
        (entry("ann", expires="2027-01-31"), "a time with its offset, such as 2027-01-31T00:00:00Z, not 2027-01-31"),
        ("[ann", "it is not TOML"),
    ],
)
def test_an_invalid_file_is_an_error_when_serving_begins(file: Path, content: str, said: str) -> None:
    write(file, content)
    with pytest.raises(DefinitionError, match=f"{file}.*{said}"):
        serve.mcp(Runner([who]), tokens=file)


@pytest.mark.skipif(os.name == "nt", reason="rights of Unix")
@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_file_that_others_can_write_to_is_refused(file: Path, place: str) -> None:
    (file if place == "file" else file.parent).chmod(0o777)
    with pytest.raises(DefinitionError, match=r"others can write to .*: chmod go-w"):
        serve.mcp(Runner([who]), tokens=file)


def test_a_file_that_tools_may_reach_is_refused(file: Path) -> None:
    link = file.parent.parent / "elsewhere.toml"
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(ReachableError, match="where tools may reach it"):
            serve.mcp(Runner([who], guards=[within(file.parent)]), tokens=path)


async def test_limits_hold_for_each_principal_and_outlast_a_restart(file: Path, tmp_path: Path) -> None:
    async def run(times: int) -> list[str]:
        with closing(Journal.open(tmp_path / "calls.db")) as journal:
            async with gateway(Runner([who, twice], journal=journal), tokens=file) as url:
                return [await call(url, "ann", "twice") for _ in range(times)] + [await call(url, "bob")]

    once = "['ann', 'ann']"  # what a tool calls counts with its call
    assert await run(1) == [once, "bob"]
    found = await run(2)
    assert found[0] == once and found[2] == "bob"
    assert "The budget of 2 calls for this principal is used up. Nothing was run." in found[1]


async def limited(runner: Runner, path: Path, clock: ManualClock, steps: list[float]) -> list[str]:
    """The statuses of calls of ann, each so many seconds after the one before."""
    limit = TokenLimits(TokenFile(path), None)
    served = runner.replace(inside=[limit])
    found = []
    for step in steps:
        await clock.advance(step)
        found.append((await served.run("who", {}, principal="ann")).status)
    return found


async def test_a_minute_slides_a_day_ends_at_midnight_and_a_total_never(file: Path) -> None:
    clock = ManualClock()
    runner = Runner([who], clock=clock)
    write(file, entry("ann", calls_per_minute=2))
    assert await limited(runner, file, clock, [0, 30, 0, 30, 0]) == ["ok", "ok", "limited", "ok", "limited"]
    write(file, entry("ann", calls_per_day=2))
    assert await limited(runner, file, clock, [0, 0, 0, 86_400, 0, 0]) == ["ok", "ok", "limited"] * 2
    write(file, entry("ann", calls=2))
    assert await limited(runner, file, clock, [0, 0, 0, 86_400]) == ["ok", "ok", "limited", "limited"]


@given(limits=st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=4))
def test_the_smallest_limit_of_the_tokens_of_a_principal_counts(
    limits: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    given = [{} if limit is None else {"calls": limit} for limit in limits]
    write(path, "".join(entry(f"t{at}", str(at), principal='"ann"', **one) for at, one in enumerate(given)))
    expected = min((limit for limit in limits if limit is not None), default=None)
    assert TokenFile(path).find_limits("ann").calls == expected


async def test_a_call_waits_while_as_many_of_its_principal_run_as_may(file: Path) -> None:
    started, gate = asyncio.Semaphore(0), Gate()

    def observe(event: Event) -> None:
        if event.kind == "tool:started":
            started.release()

    write(file, entry("ann", concurrency=1) + entry("bob"))
    async with gateway(Runner([gate.tool, who], observers=[observe]), tokens=file) as url:
        held = [asyncio.ensure_future(call(url, "ann", "wait")) for _ in range(2)]
        for _ in held:
            await started.acquire()
        await gate.inside.wait()
        assert await call(url, "bob") == "bob"
        assert gate.runs == 1
        gate.open.set()
        assert await asyncio.gather(*held) == ["through"] * 2 and gate.runs == 2


async def test_an_address_beyond_the_loopback_needs_tokens_and_a_name(file: Path) -> None:
    with pytest.raises(DefinitionError, match=r"everybody who reaches 0\.0\.0\.0 could call the tools: give tokens="):
        await serve.http(Runner([who]), host="0.0.0.0", port=0)
    with pytest.raises(DefinitionError, match=r"give the name that clients use, hosts="):
        await serve.http(Runner([who]), host="0.0.0.0", port=0, tokens=file)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(DefinitionError, match=r"cannot serve at 127\.0\.0\.1:\d+: Address already in use"):
            await serve.http(Runner([who]), port=taken.getsockname()[1])


async def test_a_gateway_follows_the_changed_list_of_an_upstream_server() -> None:
    names, bus = ["first"], InMemorySubscriptionBus()

    async def list_tools(context: Any, params: Any) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[wire.Tool(name=name, input_schema={"type": "object"}) for name in names])

    upstream = Server("growing", on_list_tools=list_tools, on_subscriptions_listen=ListenHandler(bus))
    servers = mcp.connect(upstream)
    async with servers as tools, gateway(Runner(tools), changes=servers.changes()) as url:
        async with Client(url, mode=MODERN) as client, client.listen(tools_list_changed=True) as told:
            names.append("second")
            await bus.publish(ToolsListChanged())
            await anext(aiter(told))
            assert [one.name for one in (await client.list_tools(cache_mode="refresh")).tools] == ["first", "second"]


def test_the_server_reads_what_the_command_writes(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    entries = {"a": "ann", "-b": 'say "é\\" [x]', "_": "#\t'''\U0001f600"}
    secrets = {
        name: run_command(["token", "new", f"--tokens={path}", f"--principal={principal}", "--", name]).strip()
        for name, principal in entries.items()
    }
    path.write_text(f"# by hand\n{path.read_text('utf-8')}", encoding="utf-8")
    run_command(["token", "remove", f"--tokens={path}", "--", "-b"])
    assert path.read_text("utf-8").startswith("# by hand\n") and path.stat().st_mode & 0o777 == 0o600
    known = TokenFile(path)
    assert {name: known(secret) for name, secret in secrets.items()} == {**entries, "-b": None}


def run_command(words: list[str]) -> str:
    """Run a command in this process; its standard output."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        assert main(words) == 0
    return out.getvalue()


def test_the_file_is_private_and_holds_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "tokens.toml"
    words = ["token", "new", "ann", "--tokens", str(path), "--days", "3", "--calls-per-minute", "60"]
    assert main(words) == 0
    secret = capsys.readouterr().out.strip()
    assert secret not in path.read_text("utf-8") and path.stat().st_mode & 0o777 == 0o600
    token = parse_tokens(path.read_bytes())["ann"]
    assert token.limits.calls_per_minute == 60 and token.expires is not None
    assert timedelta(days=2) < token.expires - datetime.now(UTC) <= timedelta(days=3)
    assert main(words) == 2 and "there is already a token 'ann'" in capsys.readouterr().err
    assert main(["token", "list", "--tokens", str(path)]) == 0
    assert "calls_per_minute=60" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["remove", "an"], "there is no token 'an'; did you mean 'ann'?"),
        (["remove", "ann", "--days", "3"], "are options of ferrule token new, not of remove"),
        (["new", "a b"], "'a b' is not a valid name of a token"),
    ],
)
def test_an_invalid_command_is_an_error_and_changes_nothing(
    file: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_bytes()
    assert main(["token", *words, "--tokens", str(file)]) == 2
    assert said in capsys.readouterr().err and file.read_bytes() == before


def test_a_file_that_a_removal_would_damage_is_left_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, entry("ann", principal='"""\n[bob]\n"""') + entry("bob"))
    before = file.read_bytes()
    assert main(["token", "remove", "bob", "--tokens", str(file)]) == 2
    assert "was not changed" in capsys.readouterr().err and file.read_bytes() == before
