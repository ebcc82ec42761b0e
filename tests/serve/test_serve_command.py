"""`ferrule serve` as a program: over standard input and output, over HTTP, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from connected import ENVELOPE, ERAS, LEGACY, MODERN, Person, text
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from ferrule.cli.program import main
from products import sampled
from waits import BOUND, until

pytestmark = pytest.mark.slow
TOOLS = '''
import asyncio
import subprocess
import sys
from pathlib import Path

from ferrule import serve, tool

print("printed when it was imported")


@serve.resource("shop://hours")
def hours() -> str:
    """When it is open."""
    return "8 to 17"


@serve.prompt
def restock(article: str) -> str:
    """Restock an article."""
    return f"Order {article}."


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    print("printed by a tool")
    subprocess.run([sys.executable, "-c", "print('printed by a program')"])
    return a + b


@tool
async def remove(name: str) -> str:
    """Remove it."""
    return f"removed {name}"


@tool(read_only=True)
async def ask_input() -> str:
    """Read the standard input."""
    return repr(sys.stdin.read())


@tool(read_only=True)
async def hold() -> str:
    """Hold until a file is there."""
    Path("entered").touch()
    while not Path("leave").exists():
        await asyncio.sleep(0.01)
    return "held"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def parameters(folder: Path, *words: str) -> StdioServerParameters:
    command = ["-m", "ferrule", "serve", "shop.py", *words]
    return StdioServerParameters(command=sys.executable, args=command, cwd=folder, env={**os.environ})


@contextlib.asynccontextmanager
async def started(folder: Path, *words: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program, which is not left running."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ferrule", "serve", "shop.py", *words),
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}, **variables},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def line(name: str, arguments: Any = None, number: int = 1) -> bytes:
    """A call as one line."""
    params = {"name": name, "arguments": arguments or {}, "_meta": ENVELOPE}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


async def address_of(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if "serving http" in line:
            return line.split()[-1]
    raise AssertionError("it ended without an address")


# -- standard input and output -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", sampled(ERAS, one_in=2))
async def test_a_client_starts_the_program_and_calls(folder: Path, era: str) -> None:
    person = Person({"approve": True})
    async with Client(parameters(folder), mode=era, elicitation_callback=person) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool("add", {"a": 1, "b": 2}), await client.call_tool("ask_input")]
        results.append(await client.call_tool("remove", {"name": "vase"}))
        [read] = (await client.read_resource("shop://hours")).contents
        [message] = (await client.get_prompt("restock", {"article": "tea"})).messages
        assert (read.model_dump()["text"], message.content.model_dump()["text"]) == ("8 to 17", "Order tea.")
        assert len(person.asked) == 1
        assert (names[:2] + [text(result) for result in results]) == ["add", "remove", "3", "''", "removed vase"]


@pytest.mark.large
async def test_only_the_protocol_goes_to_standard_output_and_the_end_of_input_ends_it(folder: Path) -> None:
    async with started(folder) as process:
        assert process.stdin and process.stdout
        process.stdin.write(line("add", {"a": 1, "b": 2}))
        first = await process.stdout.readline()
        process.stdin.close()
        out, errors = await process.communicate()
    messages = [json.loads(one) for one in [first, *out.splitlines()]]
    assert [message["result"]["content"][0]["text"] for message in messages] == ["3"] and process.returncode == 0
    for said in (b"printed when it was imported", b"printed by a tool", b"printed by a program"):
        assert said in errors


@pytest.mark.large
@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_lets_running_calls_end_and_answers_them(folder: Path, number: int, code: int) -> None:
    async with started(folder) as process:
        assert process.stdin and process.stdout
        process.stdin.write(line("hold"))
        await until((folder / "entered").exists)
        process.send_signal(number)
        process.stdin.write(line("add", {"a": 1, "b": 2}, 2))
        refused = json.loads(await process.stdout.readline())
        assert refused["id"] == 2 and refused["result"]["isError"]
        (folder / "leave").touch()
        held = json.loads(await process.stdout.readline())
        assert (held["result"]["content"][0]["text"], await process.wait()) == ("held", code)


@pytest.mark.large
@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
async def test_a_second_ctrl_c_stops_running_calls(folder: Path) -> None:
    async with started(folder) as process:
        assert process.stdin and process.stderr
        process.stdin.write(line("hold"))
        await until((folder / "entered").exists)
        process.send_signal(signal.SIGINT)
        while b"press ctrl-C again" not in await process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


@pytest.mark.large
async def test_an_unreadable_line_is_answered_with_an_error(folder: Path) -> None:
    call = line("add", {"a": 1, "b": 2}, 7)
    lines = [
        (line("add", {"c": "x" * (5 * 1024 * 1024)}, 7), -32700, 7),
        (line("add", {"c": "\ud800"}, 7), -32700, 7),
        (b'{"jsonrpc":"2.0","id":7\n', -32700, None),  # or 70, or 71
        (b'{"jsonrpc":"2.0","id":7.0,"method":"ping"}\n', -32600, 7),
        (b"[" + call.strip() + b"]\n", -32600, 7),
        (b'{"jsonrpc":"2.0","id":"7","method":7}\n', -32600, "7"),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}\n', -32600, None),
    ]
    found = []
    async with started(folder) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b'\n{"jsonrpc":"2.0","id":1,"result":null}\n')  # nobody answers an answer
        process.stdin.write(b'{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}\n')  # or a notification
        for sent, _, _ in lines:
            process.stdin.write(sent)
            answer = json.loads(await process.stdout.readline())
            found.append((sent, answer["error"]["code"], answer["id"]))
        process.stdin.write(call)
        assert json.loads(await process.stdout.readline())["result"]["content"][0]["text"] == "3"
        process.stdin.write(b"a last line without an end")
        process.stdin.close()
        assert json.loads(await process.stdout.readline())["error"]["code"] == -32700
    assert found == lines


# -- HTTP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", sampled(ERAS, one_in=2))
async def test_over_http_a_call_needs_the_token_that_the_command_names(folder: Path, era: str) -> None:
    token = "0123456789abcdef"
    async with started(folder, "--http", "127.0.0.1:0", "--token-env", "SHOP_TOKEN", SHOP_TOKEN=token) as process:
        url = await address_of(process)
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
            async with Client(streamable_http_client(url, http_client=http), mode=era) as client:
                assert text(await client.call_tool("add", {"a": 1, "b": 2})) == "3"
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
        assert process.stderr is not None
        assert b"refused a client at 127.0.0.1: it gave no token" in await process.stderr.readline()


async def refused(url: str, era: str) -> None:
    """Come back when a server takes no new calls, or no new connections."""
    with contextlib.suppress(Exception):
        async with Client(streamable_http_client(url), mode=era) as client:
            while not (await client.call_tool("add", {"a": 1, "b": 2})).is_error:
                pass


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code", "era"), [(signal.SIGTERM, 0, MODERN), (signal.SIGINT, 130, LEGACY)])
async def test_over_http_a_signal_lets_running_calls_end(folder: Path, number: int, code: int, era: str) -> None:
    async with started(folder, "--http", "0") as process:
        assert process.stderr
        url = await address_of(process)
        async with Client(streamable_http_client(url), mode=era) as client:
            await client.list_tools()  # else it asks for them after the call, when no connection is taken any more
            held = asyncio.ensure_future(client.call_tool("hold"))
            await until((folder / "entered").exists)
            process.send_signal(number)
            await refused(url, era)
            (folder / "leave").touch()
            assert text(await held) == "held"
        assert await process.wait() == code and b"Traceback" not in await process.stderr.read()


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--http", "localhost.example.com:8000"], "write --tokens FILE"),
        (["--http", "0.0.0.0:8000", "--token-env", "GOOD"], "--allow-host tools.example.com"),
        (["--http", "8000", "--token-env", "NO_SUCH_VARIABLE"], "variable of --token-env: a token must have at"),
        (["--http", "::1:8000"], "is not an address"),
        (["--tokens", "tokens.toml"], "--tokens needs --http"),
        (["--http", "0", "--tokens", "tokens.toml", "--token-env", "GOOD"], "leave out one of them"),
        (["--http", "0", "--tokens", "./tokens.toml"], "no file './tokens.toml'; ferrule token new writes it"),
        (["--http", "0", "--tokens", "./reachable.toml"], "where tools may reach it. Use another place, such as '"),
        (["--http", "8000", "--install"], "leave out --http"),
        (["--yes", "sell"], "there is no tool 'sell'"),
    ],
)
def test_an_invalid_command_is_an_error_and_serves_nothing(
    words: list[str], error: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GOOD", "0123456789abcdef")
    (folder / "reachable.toml").touch(mode=0o600)
    assert main(["serve", "shop.py", *words]) == 2
    assert error in capsys.readouterr().err


def test_the_start_of_the_server_is_printed_as_json_for_each_client(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["serve", "shop.py", "--yes", "remove", "--install"]) == 0
    parts = capsys.readouterr().out.split("\n\n")
    assert [part.partition(":")[0] for part in parts] == ["Claude Desktop", "Claude Code", "Cursor", "VS Code"]
    for part in parts:
        [servers] = json.loads(part.partition("\n")[2]).values()
        command = servers["shop"]
        assert Path(command["command"]).is_file() and Path(command["command"]).is_absolute()
        assert command["args"][-3:] == ["--yes=remove", "--directory", str(folder)]


# -- what is imported --------------------------------------------------------------------------------------------------


def test_importing_serve_does_not_import_mcp() -> None:
    code = "import sys; from ferrule import serve; print([name for name in sys.modules if name.startswith('mcp')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND).stdout == "[]\n"


def test_without_mcp_it_says_what_to_install(folder: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from ferrule.cli import main; sys.exit(main(['serve', 'shop.py']))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BOUND, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and 'pip install "ferrule[mcp]"' in done.stderr
