"""An invoice desk: an agent pays the invoices and refunds of an inbox, each exactly once.

You may kill it at any moment and start it again: the journal has the payments, the bank settles the interrupted ones,
and nothing is paid twice. A refund above a limit waits for a person, who answers with a second process.

    python examples/invoice_desk/desk.py work              # deal with the inbox, as often as you like
    python examples/invoice_desk/desk.py answer R-2 yes    # approve a refund that waits; or no
    ferrule log desk/calls.db                              # what happened

It prints what happened to each document:

    I-1: Done: paid by transfer 1.
    R-2: waits for a person: desk.py answer R-2 yes|no

A letter in the inbox tells the agent to send a mail. The agent obeys, and `flow` has a person decide.

It needs no key for a model: `pretend` in agent.py stands in for one. `--model anthropic:claude-sonnet-5-5` asks a real
one (`pip install "ferrule[anthropic]"`). What to change first:

- bank.py and `ask_the_bank` in agent.py: your bank. The reference of a transfer is the key of its call.
- inbox.json: the source of your invoices.
- examples/policies/invoice_desk.toml: the payments that need no person.

The journal is in a folder that no tool can write to, because a tool could fake a payment there.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import getpass
import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent import INBOX, TASK, Office, parse_model, runner
from bank import Bank

from ferrule import FerruleError, Journal, models
from ferrule.approval import printable
from ferrule.journal import Reader
from ferrule.loop import NotResumed, Run, resume, run


class Desk:
    """The inbox and the state of each document: `said` if it is done, `waits` if a person has to answer."""

    def __init__(self, folder: Path, journal: Any, model: str | None) -> None:
        self.journal, self.model = journal, model
        self.office = Office(Bank(folder / "bank.db"), Reader(journal.path))
        self.runner = runner(self.office, journal, read_key(folder / "resume.key"))

    async def work(self) -> None:
        """Deal with all documents that are not done."""
        for result in await self.runner.recover():
            arguments = result.call.arguments
            tell(arguments["document"], f"its payment was interrupted; {result.error or result.text}")
        for document in INBOX:
            state = self.journal.store.get(document) or {}
            paid = self.office.payment(document)
            if paid is not None and "said" not in state:  # a run has paid it and did not end
                state = self.save_state(document, said=paid.result.get("output") or paid.status)
            if not state:
                state = await self.follow(document, self.begin(document))
            tell(document, state.get("said") or f"waits for a person: desk.py answer {document} yes|no")

    async def answer(self, document: str, yes: bool, by: str) -> None:
        """Continue a refund with the answer of a person."""
        waits = (self.journal.store.get(document) or {}).get("waits")
        if waits is None or self.office.payment(document) is not None:
            raise SystemExit(printable(f"{document} does not wait for an answer: desk.py work shows its state"))
        answers = dict.fromkeys(waits["waiting"], yes)
        try:
            state = await self.follow(document, resume(waits, answers, parse_model(self.model), self.runner, by=by))
        except NotResumed:  # a process took the answer and was killed before it paid: ask again
            state = await self.follow(document, self.begin(document))
        tell(document, state.get("said") or "a process was killed with your answer: please answer again")

    def begin(self, document: str) -> Run:
        model = parse_model(self.model)
        messages = model.user(TASK.format(document=document))
        return run(model, messages, self.runner, principal="desk", session=document)

    async def follow(self, document: str, task_run: Run) -> dict[str, Any]:
        result = await task_run
        return self.save_state(document, **({"waits": result.suspended} if result.suspended else {"said": result.text}))

    def save_state(self, document: str, **state: Any) -> dict[str, Any]:
        """Store the state in the file of the journal."""
        store = self.journal.store
        store.compare_and_set(document, store.get(document), state)
        return state


def tell(document: str, text: str) -> None:
    print(printable(f"{document}: {text}"))


def read_key(path: Path) -> bytes:
    """Return the key that seals suspended calls. The first call creates it for its owner alone."""
    if not path.exists():
        new_file = path.with_suffix(".new")
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        new_file.replace(path)
    return path.read_bytes()


@contextmanager
def lock_desk(folder: Path) -> Iterator[None]:
    """Let only one process work. The system releases the lock when the process ends."""
    with open(folder / "desk.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    options = argparse.ArgumentParser(description="Pay the invoices and refunds of an inbox, each once.")
    options.add_argument(
        "--folder", type=Path, default=Path("desk"), help="folder of the journal and the bank (default: desk)"
    )
    options.add_argument("--model", metavar="PROVIDER:NAME", help="a real model, such as anthropic:claude-sonnet-5-5")
    commands = options.add_subparsers(dest="command", required=True)
    commands.add_parser("work", help="deal with the inbox")
    answers = commands.add_parser("answer", help="approve or deny a refund that waits")
    answers.add_argument("document", choices=INBOX)
    answers.add_argument("word", choices=["yes", "no"])
    answers.add_argument("--by", default=getpass.getuser(), help="your name (default: your user name)")
    given = options.parse_args()
    given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with lock_desk(given.folder), closing(Journal.open(given.folder / "calls.db")) as journal:
            desk = Desk(given.folder, journal, given.model)
            if given.command == "work":
                asyncio.run(desk.work())
            else:
                asyncio.run(desk.answer(given.document, given.word == "yes", given.by))
    except (FerruleError, models.ModelError, OSError) as error:
        raise SystemExit(printable(str(error))) from None
    print(printable(f"What happened: ferrule log {given.folder / 'calls.db'}"))


if __name__ == "__main__":
    main()
