"""Functions that the tests run in processes of their own, which import this module."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, StringConstraints

from ferrule import CONTEXT, Media, Text, ToolCall, ToolContext, ToolError, ToolHandler, ToolResult, tool
from ferrule.executors.process import Recipe
from ferrule.executors.process.order import Order
from ferrule.executors.process.pool import shared_pool
from ferrule.executors.threads import Raised
from ferrule.values.context import find_running_call

shared_pool().warm(2)


class Item(BaseModel):
    name: str
    count: int


Lowered = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)]
HERE = os.getpid()
Elsewhere = Annotated[str, AfterValidator(lambda value: f"{value.partition(chr(32))[0]} in {HERE}")]


class OutOfStock(ToolError):
    """A tool's own."""


class Coded(Exception):
    """An exception that cannot be made from its text."""

    def __init__(self, code: int, *, because: str) -> None:
        super().__init__()
        self.code = code
        self.because = because
        open(os.devnull).close()

    def __str__(self) -> str:
        return f"code {self.code}: {self.because}"


def add(a: int, b: int = 2) -> int:
    return a + b


@tool
def decorated(a: int) -> int:
    return a * 2


@tool(context={"db": object(), "shared": "module"})
def own_context() -> list[str]:
    return [type(CONTEXT.get()["db"]).__name__, CONTEXT.get()["shared"]]


def pid() -> int:
    return os.getpid()


def describe(item: Item, when: date) -> list[str]:
    return [type(item).__name__, item.name, type(when).__name__, when.isoformat()]


def of_model(args: Item) -> str:
    return f"{type(args).__name__} {args.name}"


def execute(payload: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return {"success": True, "output": [payload, context.session]}


class Greet(ToolHandler):
    name: str

    async def __call__(self) -> str:
        return f"hello {self.name}"


class Kept:
    @classmethod
    def shout(cls, text: str) -> str:
        return f"{cls.__name__}: {text.upper()}"

    def bound(self, text: str) -> str:
        return text


def progress(context: ToolContext) -> str:
    context.progress(1, 3, "one")
    thread = threading.Thread(target=context.progress, args=(2, 3, "two"))
    thread.start()
    thread.join()
    KEPT.append(context)
    return "done"


KEPT: list[ToolContext] = []


def late_progress() -> int:
    KEPT[-1].progress(9, 9, "late")
    return len(KEPT)


def context(context: ToolContext) -> dict[str, Any]:
    call, fields = context.call, ("session", "principal", "working_directory", "deps")
    assert call is not None
    return {
        **{name: getattr(context, name) for name in fields},
        "metadata": dict(context.metadata),
        "secret": context.secrets.get("token"),
        "call": [call.id, call.name, dict(call.arguments), call.parent],
        "tool": [context.tool.name, context.tool.read_only],
        "remaining": context.remaining(),
        "own": dict(CONTEXT.get()),
        "running": find_running_call() is not None,
    }


def metadata(context: ToolContext, key: str) -> Any:
    return context.metadata[key]


def where() -> list[str | None]:
    return [os.getcwd(), os.environ.get("FERRULE_TEST"), sys.path[-1]]


def wander(place: str) -> str:
    os.chdir(place)
    return os.getcwd()


def prints(text: str) -> str:
    print(text)
    print(text, file=sys.stderr)
    os.write(1, b"raw\n")
    print("to the end", end="")
    return sys.stdin.read()


def echo(text: str) -> str:
    return text


def raises(kind: str) -> None:
    local = type("Local", (LookupError,), {"__module__": "nowhere"})
    made: dict[str, Callable[[], BaseException]] = {
        "value": lambda: ValueError("no such value"),
        "key": lambda: KeyError("k"),
        "stock": lambda: OutOfStock("none left"),
        "busy": lambda: OutOfStock("none until tomorrow", retry_after=9),
        "unsent": lambda: OutOfStock("the bank could not be reached", executed=False, retryable=False),
        "unsent and plain": lambda: ToolError("the bank could not be reached", executed=False, retryable=False),
        "ferrule": lambda: ToolError("come back later", retry_after=7),
        "coded": lambda: Coded(7, because="so"),
        "exit": lambda: SystemExit(3),
        "interrupt": KeyboardInterrupt,
        "group": lambda: ExceptionGroup("several", [ValueError("one")]),
        "local": lambda: local("of no module"),
    }
    if kind == "nested":
        asyncio.run(runs_isolated(raises, {"kind": "coded"}))
    if kind == "file":
        os.stat("/no/such/file")
    raise made[kind]()


async def exits_async() -> None:
    sys.exit(4)


def gives(what: str) -> Any:
    return {
        "set": {1},
        "bytes": b"\xff\x00",
        "surrogate": "\ud800",
        "text": Text("a"),
        "media": [Text("a"), Media("image", b"\xff", "image/png", "s3://b/n", "n", fetch=True)],
        "result": ToolResult([1, b"\xfe".hex()], metadata={"m": 1}, content=[Media("file", b"\x00", "a/b")]),
        "error": ToolResult(None, "went wrong", status="failed"),
        "item": Item(name="i", count=1),
    }[what]


def leaves(code: int) -> None:
    os._exit(code)


def crashes() -> None:
    ctypes.string_at(0)


def closes_everything() -> None:
    os.closerange(3, 100)
    signal.pause()


def note(path: str, *lines: Any) -> None:
    """Write it so that whoever sees the file sees all of it."""
    temporary = Path(f"{path}.{os.getpid()}")
    temporary.write_text("\n".join(map(str, lines)))
    temporary.rename(path)


def waits(path: str) -> None:
    note(path, os.getpid())
    signal.pause()


def reads(path: str) -> str:
    return Path(path).read_text()


def ignores_sigterm(path: str) -> None:
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    note(path, os.getpid())
    while True:
        signal.pause()


def holds_the_gil(path: str) -> None:
    note(path, os.getpid())
    re.match(r"(a+)+$", "a" * 40 + "b")


def has_children(path: str) -> None:
    """One by exec that starts another, and one by fork, none of which ends by itself."""
    child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = child.stdout.readline().strip()
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    note(path, os.getpid(), child.pid, grandchild, forked)
    signal.pause()


def goes_elsewhere(path: str, then: str = "waits") -> None:
    """One in a session of its own that has one in another, one in a group of its own, and one that nobody waits for."""
    child = subprocess.Popen(
        ["sh", "-c", "setsid sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    grandchild = child.stdout.readline().strip()
    alone = subprocess.Popen(["sleep", "600"], process_group=0)
    daemon = subprocess.check_output(["sh", "-c", "setsid sleep 600 > /dev/null & echo $!"], text=True).strip()
    note(path, os.getpid(), child.pid, grandchild, alone.pid, daemon)
    if then == "dies":
        os._exit(1)
    signal.pause()


def touches(path: str) -> None:
    Path(path).touch()


async def leaves_a_task() -> str:
    async def more() -> None:
        await asyncio.Event().wait()

    LEFT.append(asyncio.create_task(more()))
    await asyncio.sleep(0)
    return "done"


LEFT: list[asyncio.Task[None]] = []


async def left_tasks() -> list[bool]:
    return [task.cancelled() for task in LEFT]


def own_workers() -> int:
    import probe  # not on the import path of every script that imports this module

    return len(probe.worker_pids(shared_pool()))


async def runs_isolated(handler: Any, arguments: dict[str, Any]) -> Any:
    call = ToolCall("inner", handler.__name__, arguments)
    order = Order(Recipe(tool(handler)), call, ToolContext().fields, None, None, key="k1")
    outcome = await shared_pool().submit(order).future
    if isinstance(outcome, Raised):
        raise outcome.error
    return outcome


async def has_an_isolated_call(path: str) -> None:
    await runs_isolated(waits, {"path": path})


async def speaks(count: int, path: str = "") -> AsyncIterator[str]:
    """Say words; with a path, note itself and wait after the last."""
    for n in range(count):
        yield f"word {n} "
    if path:
        note(path, os.getpid())
        await asyncio.Event().wait()


async def greets(context: ToolContext, name: Lowered) -> dict[str, str]:
    """Say what came."""
    assert context.call is not None
    return {"name": name, "judged": context.call.arguments["name"]}


async def depends(name: Elsewhere) -> str:
    """Take what another process reads otherwise."""
    return name


async def tells_its_secret(context: ToolContext) -> None:
    raise LookupError(f"refused {context.secrets['token']}")


async def asks_for(context: ToolContext, name: str, count: int = 1, seconds: float = 10.0) -> list[Any]:
    """Run another tool, several times at once; what came of each."""
    runs = (asyncio.wait_for(context.run(name, {"n": n}), seconds) for n in range(count))
    found = await asyncio.gather(*runs, return_exceptions=True)
    return [[one.status, one.output, one.executed] if isinstance(one, ToolResult) else repr(one) for one in found]


def held_by_none(n: int) -> int:
    return n


async def asks_with_id(name: str, context: ToolContext) -> Any:
    return (await context.run(name, {"n": 1}, id="1")).output


async def asks_whole(context: ToolContext, name: str, arguments: Any = None) -> list[Any]:
    result = await context.run(name, arguments)
    call = result.call
    assert call is not None
    return [call.id, call.parent, dict(call.arguments), result.tool_name, list(result.repairs), dict(result.metadata)]


def asks_plainly(context: ToolContext, name: str) -> Any:
    """Run another tool from a plain function, on a loop of its own and by what it returns."""

    async def both() -> list[Any]:
        found = await asyncio.gather(context.run(name, {"n": 1}), context.run(name, {"n": 2}))
        return [one.output for one in found]

    outputs = asyncio.run(both())

    async def more() -> list[Any]:
        return [*outputs, (await context.run(name, {"n": 3})).output]

    return more()


async def leaves_a_call(context: ToolContext, name: str) -> str:
    """Return while a call that it has made still runs."""
    KEPT.append(context)
    LEFT.append(asyncio.ensure_future(context.run(name)))
    await asyncio.sleep(0)
    return "done"


async def asks_late(name: str) -> list[Any]:
    """Run another tool for a call that has ended."""
    result = await KEPT[-1].run(name)
    return [result.status, result.executed, result.error]


class Scratch(BaseModel):
    folder: str = f"/tmp/run-{os.getpid()}"


@tool(isolation="process")
def clean_of(scratch: Scratch) -> str:
    """Clean a folder."""
    return scratch.folder


def reports_each_line(path: str, context: ToolContext) -> str:
    with open(path) as pipe:
        for number, line in enumerate(pipe):
            context.progress(number, message=line.strip())
    return "done"
