"""What one call costs, as a ratio to Pydantic's own validate-and-call, and what each promise adds.

Run: python benchmarks/call.py
"""

from __future__ import annotations

import asyncio
import sys
from statistics import median

from cases import ADD, CASES, CONTEXT, Case, add, everything, floor, runs, settings
from measure import Block, measure_rounds, ratio

from ferrule import Runner, ToolCall, ToolContext, tool

FLOOR, NOTHING, EVERYTHING = "floor: TypeAdapter(fn).validate_json", "nothing configured", "everything"
Times = dict[str, list[float]]


@tool
async def call_tool_often(context: ToolContext, count: int) -> None:
    """Add two integers many times."""
    for _ in range(count):
        await context.run("add", ADD)


async def _one_task() -> None:
    pass


async def created_tasks(calls: int) -> None:
    for _ in range(calls):
        await asyncio.create_task(_one_task())


def promises(case: Case) -> dict[str, Block]:
    """The floor, nothing configured, each promise by itself, and everything."""
    bare, text, added = tool(case.function), case.text, settings(case)
    names = {"timeout": "deadline", "observers": "observer", "guards": "guard that reads one value"}
    names |= {"around": "before", "inside": "after"}
    return {
        FLOOR: floor(case.function, text),
        NOTHING: runs(text, bare),
        "+ context": runs(text, bare, CONTEXT),
        "+ concurrency of the tool": runs(text, bare.replace(concurrency=8)),
        **{f"+ {name}": runs(text, bare, **{key: added[key]}) for key, name in names.items()},
        EVERYTHING: everything(case),
        "(one create_task)": created_tasks,
    }


def calls_from_inside() -> dict[str, Block]:
    """The same call from outside and from inside of a handler."""
    runner = Runner([tool(add), call_tool_often])

    async def outside(calls: int) -> None:
        for _ in range(calls):
            await runner.run("add", ADD)

    async def inside(calls: int) -> None:
        await runner.run("nested", {"count": calls})

    return {"runner.run": outside, "context.run": inside}


def unknown_names(count: int) -> dict[str, Block]:
    """Calls of tools that there are not, which look like some that there are."""
    made, base = [], tool(add)
    verbs, nouns = ("get", "set", "list", "find", "drop"), ("order", "user", "invoice", "file", "ticket", "page")
    for number in range(count):
        made.append(base.replace(name=f"{verbs[number % 5]}_{nouns[number % 6]}_{number}_by_id"))
    runner = Runner(made)
    wrong = [item.name.replace("_by", "by") for item in made[:: count // 50]] + ["completely_different"]

    async def block(calls: int) -> None:
        for number in range(calls):
            await runner.run(ToolCall("call_1", wrong[number % len(wrong)], ADD))

    return {"unknown": block}


def report(case: Case, times: Times) -> None:
    base, nothing = median(times[FLOOR]), median(times[NOTHING])
    print(f"\n{case.title} ({len(case.text)} bytes): median, the ratios of the medians and of the least")
    for name, found in times.items():
        least, middle = ratio(found, times[FLOOR])
        extra = f"{median(found) - nothing:+7.2f} µs" if name.startswith("+") else ""
        print(f"  {name:38} {median(found):8.2f} µs {middle:6.2f} x {least:6.2f} x  {extra}")
    everything, bare = case.asked
    print(f"  floor {base:.2f} µs; asked for: nothing configured {bare} x, everything {everything} x", end="")
    print(" (before 3.12 plus one create_task)")


def measure_case(case: Case, rounds: int) -> Times:
    return asyncio.run(measure_rounds(promises(case), calls=case.calls, rounds=rounds))


def measure_inside(rounds: int) -> Times:
    return asyncio.run(measure_rounds(calls_from_inside(), calls=500, rounds=rounds))


def measure_unknown(rounds: int, count: int = 10_000) -> list[float]:
    return asyncio.run(measure_rounds(unknown_names(count), calls=51, rounds=rounds))["unknown"]


def main(rounds: int = 100) -> None:
    print(f"Python {sys.version.split()[0]}")
    for case in CASES:
        report(case, measure_case(case, rounds))
    inside = measure_inside(rounds)
    least, middle = ratio(inside["context.run"], inside["runner.run"])
    print(f"\ncontext.run in a handler, against runner.run: {middle:.2f} x, {least:.2f} x (asked for: 1.4 x)")
    unknown = measure_unknown(5)
    print(f"a name that no tool has, among 10,000: {median(unknown) / 1000:.2f} ms (asked for: 1 ms)")


if __name__ == "__main__":
    main()
