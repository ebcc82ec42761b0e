"""5,000 tools and two MCP servers: a model is offered what fits a budget of tokens, and searches for the rest.

    python examples/five_thousand_tools.py                                  # a scripted model shows all steps
    python examples/five_thousand_tools.py "Who owes us money in Lima?" --model anthropic:claude-sonnet-5-5
    ferrule select why "who owes us money in Lima?" --tools examples/five_thousand_tools.py

It needs `pip install "ferrule[cli,mcp]"`, and for a real model its SDK and its key in the environment. It prints the
offer of each turn, the calls and their results:

    turn 1: offered are 14 of 5,045 tools, about 1,491 of 520,000 tokens
      → notes__read_note {'name': 'payments'}
      ← notes__read_note ok:
          Who paid twice gets the second payment back.

The catalogue has 8 operations on 30 kinds of things in 21 branches of an invented company, the notes of its office (the
program `notes_server.py`), and the exchange rates of the day (a server in this process).

- `by_budget` offers as many tools as there are tokens for: the notes, which are pinned, then what fits the task best.
- `search_tools` finds all others. What it found can be called from the next turn on, and costs tokens of its own.
- A call of what was not offered does not run: it is `not_found`, and the model is told to search.
- Reading is allowed. You are asked about changes, unless you add `--yes TOOL`. Nothing is deleted.

What to change first: `make_operations`, which makes the catalogue, `connect_servers`, and `PINNED`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import runpy
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mcp_types as types
from mcp.server.lowlevel import Server

from ferrule import (
    Decision,
    DefinitionError,
    Event,
    Runner,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    Toolset,
    build_tool,
    deny,
    mcp,
    models,
)
from ferrule.approval import console, printable
from ferrule.guards import ask_before_changes
from ferrule.loop import LoopResult, TurnStarted, run
from ferrule.selection import Ranker, by_budget, chain, definition_tokens, keyword, pinned, search_tool

BUDGET = 1_500
PINNED = ("notes__list_notes", "notes__read_note")
LONGEST = 300

PLACES = {
    "accra": "Ghana",
    "austin": "Texas",
    "bogota": "Colombia",
    "cairo": "Egypt",
    "cork": "Ireland",
    "delhi": "India",
    "dubai": "the Emirates",
    "geneva": "Switzerland",
    "hanoi": "Vietnam",
    "lagos": "Nigeria",
    "lima": "Peru",
    "lyon": "France",
    "milan": "Italy",
    "nairobi": "Kenya",
    "osaka": "Japan",
    "oslo": "Norway",
    "perth": "Australia",
    "porto": "Portugal",
    "quebec": "Canada",
    "riga": "Latvia",
    "seoul": "Korea",
}
THINGS = {  # what each is, and its fields
    "absence": ("days on which somebody is ill or on leave", "person since until reason"),
    "alarm": ("a warning of a building: fire, water or a door left open", "building severity reason"),
    "audit": ("a case that the auditors look into", "amount currency reason"),
    "badge": ("a card that opens doors", "person building until"),
    "booking": ("a room that is reserved for a meeting", "person building since until"),
    "campaign": ("advertising that runs for some weeks", "title since until amount"),
    "candidate": ("somebody who applied for a job", "person title state"),
    "carrier": ("a firm that drives goods for us", "title email state"),
    "claim": ("damage that an insurance shall pay for", "customer amount currency reason"),
    "contract": ("what was agreed and signed with a partner", "title since until amount"),
    "customer": ("somebody who buys from us", "title email address"),
    "discount": ("a lower price for a while, with its code", "article percent since until"),
    "employee": ("somebody who works for us", "person title email"),
    "expense": ("money that a colleague laid out on a journey and wants back", "person amount currency reason"),
    "invoice": ("a bill that a buyer has to settle, and owes us until then", "customer amount currency due state"),
    "lead": ("a firm that may become a buyer", "title email state"),
    "machine": ("equipment of the works, and when it was serviced", "title building state"),
    "parcel": ("goods on their way to a buyer", "customer address carrier state"),
    "payment": ("money that came in or went out", "customer amount currency due"),
    "payslip": ("the wages of a month, with tax", "person amount currency"),
    "product": ("an article that we sell, with its price", "article amount currency"),
    "refund": ("money given back to a buyer", "customer payment amount currency reason"),
    "review": ("what a buyer wrote of an article, with stars", "article stars reason"),
    "shift": ("the hours that somebody works in a week", "person since until"),
    "stock": ("how many of an article lie in the warehouse", "article count building"),
    "subscription": ("a delivery that comes again every month", "customer article since"),
    "supplier": ("a firm that we buy from", "title email state"),
    "ticket": ("a complaint or question of a buyer, and who answers it", "customer title person state"),
    "training": ("a course for staff", "title person since"),
    "vehicle": ("a van or lorry, its number plate and its driver", "title person state"),
}
FIELDS: dict[str, dict[str, Any]] = {
    "address": {"type": "string", "description": "Street, number and town."},
    "amount": {"type": "number", "minimum": 0, "description": "How much money."},
    "article": {"type": "string", "description": "The number of the article."},
    "building": {"type": "string", "enum": ["office", "warehouse", "works"]},
    "carrier": {"type": "string", "description": "Who drives it."},
    "count": {"type": "integer", "minimum": 0, "description": "How many pieces."},
    "currency": {"type": "string", "pattern": "^[A-Z]{3}$", "description": "Such as EUR or NOK."},
    "customer": {"type": "string", "description": "The name of the buyer."},
    "due": {"type": "string", "format": "date", "description": "The last day to pay."},
    "email": {"type": "string", "description": "Where to write to."},
    "payment": {"type": "string", "description": "The number of the payment."},
    "percent": {"type": "integer", "minimum": 1, "maximum": 90},
    "person": {"type": "string", "description": "The name of the colleague."},
    "reason": {"type": "string", "description": "Why, in a sentence."},
    "severity": {"type": "string", "enum": ["low", "high", "danger"]},
    "since": {"type": "string", "format": "date", "description": "The first day."},
    "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    "state": {"type": "string", "enum": ["open", "waiting", "late", "done"]},
    "title": {"type": "string", "description": "What it is called."},
    "until": {"type": "string", "format": "date", "description": "The last day."},
}

Arguments = dict[str, Any]
Records = dict[str, Arguments]
RECORDS: defaultdict[tuple[str, str], Records] = defaultdict(dict)
RECORDS["oslo", "payment"] = {
    "payment-1": {"customer": "Ada Berg", "amount": 12_000, "currency": "NOK", "due": "2026-11-02"},
    "payment-2": {"customer": "Ada Berg", "amount": 12_000, "currency": "NOK", "due": "2026-11-02"},
}
RULES = """Who paid twice gets the second payment back.
For more than 10,000 NOK, a case is opened for the auditors in Lyon, in EUR."""


def get_record(records: Records, arguments: Arguments) -> Arguments:
    if arguments["id"] not in records:
        raise ToolError(f"there is no {arguments['id']!r}; there are {', '.join(records) or 'none'}")
    return records[arguments["id"]]


def find(records: Records, arguments: Arguments) -> Records:
    limit = arguments.pop("limit")
    fitting = [(number, record) for number, record in records.items() if arguments.items() <= record.items()]
    return dict(fitting[:limit])


def create(records: Records, arguments: Arguments) -> str:
    number = f"new-{len(records) + 1}"
    records[number] = arguments
    return f"{number} was created"


def change(records: Records, arguments: Arguments) -> str:
    get_record(records, arguments).update({key: value for key, value in arguments.items() if key != "id"})
    return f"{arguments['id']} was changed"


def delete(records: Records, arguments: Arguments) -> str:
    get_record(records, arguments)
    del records[arguments["id"]]
    return f"{arguments['id']} is gone"


class Verb(NamedTuple):
    """One kind of operation."""

    sentence: str
    """Its description, with gaps for the thing, its meaning, and the place."""
    does: Callable[[Records, Arguments], Any]
    takes: tuple[str, ...] = ()
    """Parameters in addition to the fields."""
    fields: bool = False
    """Whether it takes the fields of the thing."""
    needs: tuple[str, ...] = ("id",)
    read_only: bool = True
    destructive: bool = False


PERIOD = ("since", "until")
VERBS = {
    "find": Verb("Find or list {thing}s of {place}: {what}.", find, ("limit",), fields=True, needs=()),
    "read": Verb("Show all that is known of one {thing} of {place}: {what}.", get_record, ("id",)),
    "count": Verb("Say how many {thing}s there are in {place}: {what}.", lambda records, _: len(records), needs=()),
    "history": Verb("Show who changed a {thing} of {place}, and when: {what}.", lambda *_: [], ("id",)),
    "export": Verb(
        "Write the {thing}s of a period in {place} to a file, as a table or for print: {what}.",
        lambda records, _: f"{len(records)} records were written",
        (*PERIOD, "format"),
        needs=PERIOD,
    ),
    "create": Verb(
        "Make a new {thing} in {place}: open, add or book it: {what}.", create, fields=True, read_only=False
    ),
    "change": Verb("Correct or update a {thing} of {place}: {what}.", change, ("id",), fields=True, read_only=False),
    "delete": Verb("Remove a {thing} of {place}: {what}.", delete, ("id",), read_only=False, destructive=True),
}
COMMON: dict[str, dict[str, Any]] = {
    **FIELDS,
    "id": {"type": "string", "description": "Its number, as find shows it."},
    "format": {"type": "string", "enum": ["csv", "xlsx", "pdf"]},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
}


def make_operation(place: str, thing: str, name: str) -> Tool:
    """Return one tool of the company, such as `oslo_refund_create`."""
    verb, (what, fields) = VERBS[name], THINGS[thing]
    own = fields.split()
    parameters = dict.fromkeys([*verb.takes, *(own if verb.fields else ())])
    schema = {
        "type": "object",
        "properties": {key: COMMON[key] for key in parameters},
        "required": own if verb.does is create else list(verb.needs),
        "additionalProperties": False,
    }
    sentence = verb.sentence.format(thing=thing, what=what, place=f"{place.title()}, {PLACES[place]}")
    return build_tool(
        {"name": f"{place}_{thing}_{name}", "description": sentence, "input_schema": schema},
        lambda payload: verb.does(RECORDS[place, thing], payload),
        read_only=verb.read_only,
        destructive=verb.destructive,
        open_world=False,
    )


def make_operations() -> Iterator[Tool]:
    """Yield all tools: 21 × 30 × 8."""
    for place in PLACES:
        for thing in THINGS:
            for verb in VERBS:
                yield make_operation(place, thing, verb)


def make_rates_server() -> Server[Any]:
    """Return a small MCP server in this process, which converts currencies."""
    in_euros = {"EUR": 1.0, "NOK": 0.085, "USD": 0.86, "INR": 0.0097, "PEN": 0.25}
    parameters = {
        "amount": {"type": "number"},
        "source": {"type": "string", "enum": [*in_euros], "description": "The currency of the amount."},
        "target": {"type": "string", "enum": [*in_euros], "description": "The currency of the result."},
    }
    convert = types.Tool(
        name="convert",
        description="Say what an amount is worth in another currency: the exchange rate of today.",
        input_schema={"type": "object", "properties": parameters, "required": [*parameters]},
        annotations=types.ToolAnnotations(read_only_hint=True),
    )

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[convert])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        worth = arguments["amount"] * in_euros[arguments["source"]] / in_euros[arguments["target"]]
        return types.CallToolResult(content=[types.TextContent(text=f"{worth:.2f} {arguments['target']}")])

    return Server("rates", on_list_tools=list_tools, on_call_tool=call_tool)


def connect_servers(notes: Path) -> mcp.Servers:
    """Both MCP servers; they are this company's own, so what they say of their tools is believed."""
    # A server gets few variables. PYTHONPATH is for a Ferrule that is not installed.
    env = {"NOTES": str(notes), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = ["-P", "-m", "ferrule", "serve", str(Path(__file__).with_name("notes_server.py"))]
    office = mcp.Stdio(sys.executable, command, env=env, name="notes")
    return mcp.connect(office, mcp.Memory(make_rates_server(), name="rates"), trusted=True, required=True)


def nothing_is_deleted(call: ToolCall, context: ToolContext) -> Decision | None:
    """Deny all deletions."""
    if call.name.endswith("_delete"):
        return deny("nothing is deleted here; change its state to done")
    return None


runner = Runner(make_operations(), guards=[nothing_is_deleted, ask_before_changes], timeout=30)


def make_approver(yes: Collection[str]) -> Any:
    """Return an approver that approves the tools in `yes`, and asks at the terminal about all others."""
    ask_at_the_terminal = console()

    async def approve(call: ToolCall, decision: Decision, context: ToolContext) -> Any:
        return True if call.name in yes else await ask_at_the_terminal(call, decision, context)

    return approve


def make_company_runner(
    server_tools: Iterable[Tool], yes: Collection[str] = (), ranker: Ranker | None = None
) -> Runner:
    """Return a runner with all operations, the tools of the servers, and a tool that searches them."""
    catalogue = Toolset([*runner.tools, *server_tools])
    return runner.replace(tools=[*catalogue, search_tool(catalogue, ranker)], approve=make_approver(yes))


def summarize_offer(offered: Collection[Tool], every: Collection[Tool]) -> str:
    cost, whole = sum(map(definition_tokens, offered)), sum(map(definition_tokens, every))
    return f"{len(offered)} of {len(every):,} tools, about {cost:,} of {whole:,} tokens"


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def format_event(event: Event) -> Iterator[str]:
    """Yield the lines about a call: its arguments and its result."""
    if event.kind == "tool:pre":
        yield f"  → {event.call.name} {shorten(str(event.data['input']))}"
    elif event.kind in ("tool:post", "tool:error"):
        result = event.data["result"]
        yield f"  ← {event.call.name} {result.status}:"
        yield from (f"      {shorten(line)}" for line in result.text.splitlines())


def say(text: str) -> None:
    """Print text of models, tools and servers without characters that affect a terminal."""
    print(printable(text), flush=True)


async def work(
    model: Any,
    task: str,
    notes: Path,
    budget: int = BUDGET,
    yes: Collection[str] = (),
    show: Callable[[str], object] = say,
) -> LoopResult:
    """Do the task, and show the offered tools, each call and its result."""
    ranker = keyword(100)  # shared, so that there is one index
    selector = by_budget(budget, chain(pinned(*PINNED), ranker))
    async with connect_servers(notes) as server_tools, make_company_runner(server_tools, yes, ranker) as company, model:
        offered: list[str] = []
        async with run(model, model.user(task), company, selector=selector) as task_run:
            async for event in task_run:
                if isinstance(event, TurnStarted):
                    new = [name for name in event.offered if name not in offered]
                    offered += new
                    here = summarize_offer([company.tools.get(name) for name in offered], company.tools)
                    show(f"\nturn {event.number}: offered are {here}")
                    show(f"  {'new' if event.number > 1 else 'these'}: {', '.join(new)}" if new else "  the same")
                elif isinstance(event, Event):
                    for line in format_event(event):
                        show(line)
    return task_run.result


TASK = (
    "Two payments of Ada Berg came in at Oslo, where she owes one. The rules for payments are in the notes: see to it."
)


def summarize_calls(messages: list[Any]) -> str:
    return "\n".join(["The last calls came to:", *(m["content"] for m in messages[-2:] if m["role"] == "tool")])


REFUND = {"customer": "Ada Berg", "payment": "payment-2", "amount": 12_000, "currency": "NOK", "reason": "Paid twice."}
CASE = {"amount": 1_020, "currency": "EUR", "reason": "A large payment came in twice in Oslo."}
STEPS: list[Any] = [  # the turns of the scripted model
    [("notes__read_note", {"name": "payments"}), ("oslo_payment_find", {"customer": "Ada Berg"})],
    ("So it is. I guess the name of the tool for the case.", [("lyon_audit_create", CASE)]),
    (
        "It may be there, but it was not offered: I have to search for it, and for two tools more.",
        [
            ("search_tools", {"query": "make a new refund for a buyer in Oslo"}),
            ("search_tools", {"query": "open a case for the auditors in Lyon"}),
            ("search_tools", {"query": "what is it worth in another currency"}),
        ],
    ),
    [("rates__convert", {"amount": 12_000, "source": "NOK", "target": "EUR"})],
    [("oslo_refund_create", REFUND), ("lyon_audit_create", CASE)],
    summarize_calls,
]


def parse_model(text: str) -> Any:
    """Return the model of `anthropic:claude-sonnet-5-5`, or one that follows the list `steps` of `scripted:FILE`."""
    try:
        if text.startswith("scripted:"):
            return models.Scripted(runpy.run_path(text.removeprefix("scripted:"))["steps"])
        return models.model_from_name(text)
    except (DefinitionError, OSError) as error:  # no such model or file, or the SDK or its key is missing
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    parser = argparse.ArgumentParser(description="Work with 5,000 tools within a budget of tokens.")
    parser.add_argument("task", nargs="?", help="a task for a real model")
    parser.add_argument("--model", type=parse_model, metavar="PROVIDER:NAME", help="default: a scripted model")
    parser.add_argument(
        "--budget", type=int, default=BUDGET, metavar="TOKENS", help="most tokens for the tools of the first turn"
    )
    parser.add_argument(
        "--yes", action="append", default=[], metavar="TOOL", help="approve without asking; may be repeated"
    )
    arguments = parser.parse_args()
    if (arguments.task is None) != (arguments.model is None):
        parser.error("write both a task and --model, or neither for the scripted model")
    task, model = arguments.task or TASK, arguments.model or models.Scripted(STEPS)
    say(f"task: {task}" if arguments.model else f"task: {task}\nThe model is scripted; the tools are real.")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "payments.md").write_text(RULES, encoding="utf-8")
        try:
            result = asyncio.run(work(model, task, Path(folder), arguments.budget, arguments.yes))
        except (DefinitionError, mcp.ServersDownError) as error:
            raise SystemExit(printable(f"five_thousand_tools: {error}")) from None
        except models.ModelError as error:
            raise SystemExit(printable(f"The model's API: {error}")) from None
        except KeyboardInterrupt:
            print("\nStopped.")
            return 130
    say(f"\n{result.status}: {result.text or result.reason}")
    return 0 if result.status == "done" else 1


if __name__ == "__main__":
    raise SystemExit(main())
