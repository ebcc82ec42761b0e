"""What a call costs on DBOS and on Ray, beside what each of them takes for the same function by itself.

Run: python benchmarks/remote.py [step queue workers ray …]

Each is measured in the environment of the tests (`tests/remote/engines/pins`), on a PostgreSQL of its own with its log
flushed to disk, by the wall clock, both ways in turns. What is promised: a step 1.3 × DBOS's own step, a call by way of
a queue 1.3 × enqueueing and waiting with DBOS itself, a call on an actor 1.5 × calling the actor, and two workers 1.7 ×
one for handlers that wait.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / "tests" / "remote" / "engines"
Way = Callable[[int], Awaitable[Any]]
POLL = 0.02
OWN = """
import sys, time
from dbos import DBOS, DBOSPortableJSONSerializer

@DBOS.step()
async def add(a, b):
    return a + b

@DBOS.workflow(name="own_add")
async def own_add(a, b):
    return await add(a, b)

config = {"name": "own", "application_version": "own", "system_database_url": sys.argv[1], "log_level": "ERROR"}
DBOS(config={**config, "serializer": DBOSPortableJSONSerializer()})
DBOS.launch()
DBOS.register_queue("own", worker_concurrency=16, global_concurrency=16, polling_interval_sec=0.02)
print("ready", flush=True)
time.sleep(3600)
"""


async def in_turns(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 10):
        for name, way in ways.items():
            begin = time.perf_counter()
            await way(number)
            if number >= 10:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return times


def say(what: str, times: dict[str, list[float]]) -> None:
    own, ours = (sorted(times[name]) for name in ("own", "ours"))
    middle = statistics.median(ours) / statistics.median(own)
    texts = [f"{statistics.median(one):7.2f} (p95 {one[int(len(one) * 0.95)]:.2f})" for one in (own, ours)]
    print(f"{what:38} own {texts[0]}   ours {texts[1]} ms   {middle:.2f} ×", flush=True)


async def step(url: str) -> None:
    """A step of a workflow: of DBOS itself, and a call that is one; of what only reads, and of what changes things."""
    from dbos import DBOS
    from far_tools import add_async

    from ferrule import Runner, tool
    from ferrule.remote import dbos

    runner = Runner(
        [tool(add_async, name="reads", read_only=True), tool(add_async, name="changes")], inside=[dbos.step()]
    )

    async def own(number: int) -> Any:
        return await DBOS.run_step_async({"name": "own"}, add_async, number, 1)

    async def ours(number: int) -> Any:
        return await runner.run("reads", {"a": number, "b": 1})

    async def changes(number: int) -> Any:
        return await runner.run("changes", {"a": number, "b": 1})

    @DBOS.workflow()  # type: ignore[untyped-decorator, unused-ignore]
    async def measure_changes(changing: bool) -> dict[str, list[float]]:
        return await in_turns({"own": own, "ours": changes if changing else ours}, 200)

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    say("a step, of what only reads", await measure_changes(False))
    say("a step, of what changes things", await measure_changes(True))
    DBOS.destroy()


def own_worker(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", OWN, url], stdout=subprocess.PIPE, text=True)


async def queue(url: str) -> None:
    """From the program to a worker and back."""
    import far_tools
    from dbos import DBOSClient, DBOSPortableJSONSerializer
    from workers import worker

    from ferrule import Runner, tool
    from ferrule.remote import dbos

    theirs = own_worker(url)
    try:
        assert theirs.stdout is not None and theirs.stdout.readline() == "ready\n"
        with worker(url, poll=POLL):
            client = DBOSClient(
                system_database_url=url, serializer=DBOSPortableJSONSerializer(), application_name="own"
            )
            runner = Runner([tool(far_tools.add_async, read_only=True, isolation=dbos.queue("far", url=url))])
            options: Any = {"queue_name": "own", "workflow_name": "own_add", "app_version": "own"}

            async def own(number: int) -> Any:
                handle: Any = await client.enqueue_async(options, number, 1)
                return await handle.get_result(polling_interval_sec=POLL)

            async def ours(number: int) -> Any:
                result = await runner.run("add_async", {"a": number, "b": 1})
                assert result.success, result

            say("queued to a worker", await in_turns({"own": own, "ours": ours}, 100))
            client.destroy()
    finally:
        theirs.kill()
        theirs.wait()


async def workers(url: str) -> None:
    """How long 100 calls take that wait 0.3 s each, eight at once in a worker: with one, and with two."""
    import far_tools
    from workers import worker

    from ferrule import Runner, ToolCall, tool
    from ferrule.remote import dbos

    runner = Runner([tool(far_tools.wait, read_only=True, isolation=dbos.queue("far", url=url))], concurrency=500)
    limits = {"per_worker": 8, "concurrency": 64, "poll": POLL}

    async def every() -> float:
        begin = time.perf_counter()
        results = await runner.run_all([ToolCall(str(number), "wait", {"seconds": 0.3}) for number in range(100)])
        assert all(result.success for result in results)
        return time.perf_counter() - begin

    with worker(url, **limits):
        one = [await every() for _ in range(2)]
        with worker(url, **limits):
            two = [await every() for _ in range(2)]
    rates = f"one {100 / min(one):.0f}, two {100 / min(two):.0f} calls a second"
    print(f"{'workers, of calls that wait':38} {rates}   {min(one) / min(two):.2f} ×", flush=True)


async def actors(url: str) -> None:
    """A call on an actor: of Ray itself, and through a runner; with nothing to tell, and with progress."""
    import far_tools
    import ray

    from ferrule import Runner, tool
    from ferrule.remote import ray as places

    path = os.pathsep.join([str(ENGINES), os.environ["PYTHONPATH"]])
    environment = {"env_vars": {"PYTHONPATH": path}}
    quiet = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    ray.init(num_cpus=2, runtime_env=environment, **quiet)

    @ray.remote
    class Own:
        async def add(self, a: int, b: int) -> int:
            return a + b

    actor = Own.options(max_concurrency=8).remote()
    place = places.actors(1)
    handlers = (far_tools.add_async, far_tools.steps)
    runner = Runner([tool(handler, isolation=place) for handler in handlers])

    async def own(number: int) -> Any:
        return await actor.add.remote(number, 1)

    async def ours(number: int) -> Any:
        return await runner.run("add_async", {"a": number, "b": 1})

    async def streams(number: int) -> Any:
        return await runner.run("steps", {"count": 0})

    say("a call on an actor", await in_turns({"own": own, "ours": ours}, 500))
    say("one that may tell of progress", await in_turns({"own": own, "ours": streams}, 300))
    ray.shutdown()


PARTS = {"step": step, "queue": queue, "workers": workers, "ray": actors}


def main() -> None:
    if os.environ.get("FERRULE_FRAMEWORK"):
        sys.path[:0] = [str(ENGINES), str(ROOT / "tests" / "support"), str(ROOT / "scripts")]
        import postgres

        postgres.UNSAFE = ()
        with postgres.server() as url_of:
            for name in sys.argv[1:] or PARTS:
                asyncio.run(PARTS[name](url_of(name)))
        return
    sys.path.insert(0, str(ROOT / "scripts"))
    from frameworks import environment

    given = {**os.environ, "FERRULE_FRAMEWORK": "remote", "FERRULE_REMOTE_KEY": os.urandom(32).hex()}
    given["PYTHONPATH"] = str(ROOT / "src")
    subprocess.run([str(environment("remote")), __file__, *sys.argv[1:]], env=given, check=True)


if __name__ == "__main__":
    main()
