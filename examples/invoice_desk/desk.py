"""An invoice desk: an agent pays the invoices and refunds of an inbox, each of them once, whatever happens meanwhile.

It may be killed at any moment, and started again: what was paid is in its journal, what was cut off is found out at the
bank, and nothing is paid twice. A refund above a limit waits for a person, who answers by a second process.

    python examples/invoice_desk/desk.py work              # deals with the inbox; start it as often as you like
    python examples/invoice_desk/desk.py answer R-2 yes    # or no: what a person says of a refund that waits
    ferrule log desk/calls.db                              # what happened

It needs no key for a model: `pretend` in agent.py stands in for one, and `--model anthropic:claude-sonnet-5-5` asks a
real one (`pip install "ferrule[anthropic]"`). What to change first:

- bank.py and `ask_the_bank` in agent.py: your bank. The reference of a transfer is the key of its call, by which it is
  found again.
- inbox.json: where your invoices come from.
- examples/policies/invoice_desk.toml: what is paid without a person.

The journal is in a folder that no tool writes to: who could write there could say that something was paid.
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

from agent import INBOX, TASK, Office, model_named, runner
from bank import Bank

from ferrule import FerruleError, Journal, models
from ferrule.approval import printable
from ferrule.journal.reading import Reader
from ferrule.loop import NotResumed, Run, resume, run


class Desk:
    """The inbox, and what became of each document: `said` when it is done, `waits` where a person is asked."""

    def __init__(self, folder: Path, journal: Any, model: str | None) -> None:
        self.journal, self.model = journal, model
        self.office = Office(Bank(folder / "bank.db"), Reader(journal.path))
        self.runner = runner(self.office, journal, read_key(folder / "resume.key"))

    async def work(self) -> None:
        """Deal with every document that is not done."""
        for result in await self.runner.recover():
            arguments = result.call.arguments
            tell(arguments["document"], f"was cut off while it was paid; {result.error or result.text}")
        for document in INBOX:
            state = self.journal.store.get(document) or {}
            paid = self.office.payment(document)
            if paid is not None and "said" not in state:  # by a run that did not come to its end
                state = self.keep(document, said=paid.result.get("output") or paid.status)
            if not state:
                state = await self.follow(document, self.begin(document))
            tell(document, state.get("said") or f"waits for a person: desk.py answer {document} yes|no")

    async def answer(self, document: str, yes: bool, by: str) -> None:
        """What a person says of a refund that waits."""
        waits = (self.journal.store.get(document) or {}).get("waits")
        if waits is None or self.office.payment(document) is not None:
            raise SystemExit(printable(f"{document} waits for nobody: desk.py work says how it stands"))
        answers = dict.fromkeys(waits["waiting"], yes)
        try:
            state = await self.follow(document, resume(waits, answers, model_named(self.model), self.runner, by=by))
        except NotResumed:  # a process took the answer, and was killed before it began to pay: the question is put anew
            state = await self.follow(document, self.begin(document))
        tell(document, state.get("said") or "the answer was lost with a process that was killed: please answer again")

    def begin(self, document: str) -> Run:
        model = model_named(self.model)
        messages = model.user(TASK.format(document=document))
        return run(model, messages, self.runner, principal="desk", session=document)

    async def follow(self, document: str, going: Run) -> dict[str, Any]:
        result = await going
        return self.keep(document, **({"waits": result.suspended} if result.suspended else {"said": result.text}))

    def keep(self, document: str, **state: Any) -> dict[str, Any]:
        """Kept beside the calls, in the same file."""
        store = self.journal.store
        store.compare_and_set(document, store.get(document), state)
        return state


def tell(document: str, text: str) -> None:
    print(printable(f"{document}: {text}"))


def read_key(path: Path) -> bytes:
    """What suspended calls are sealed with; made once, readable for its owner alone."""
    if not path.exists():
        fresh = path.with_suffix(".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        fresh.replace(path)
    return path.read_bytes()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time works at the desk; the system lets go of the lock, however the process ends."""
    with open(folder / "desk.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    options = argparse.ArgumentParser(description="Pays the invoices and refunds of an inbox, each once.")
    options.add_argument("--folder", type=Path, default=Path("desk"), help="where the journal and the bank are (desk)")
    options.add_argument("--model", metavar="PROVIDER:NAME", help="a real model, such as anthropic:claude-sonnet-5-5")
    commands = options.add_subparsers(dest="command", required=True)
    commands.add_parser("work", help="deal with the inbox")
    answers = commands.add_parser("answer", help="answer to a refund that waits")
    answers.add_argument("document", choices=INBOX)
    answers.add_argument("word", choices=["yes", "no"])
    answers.add_argument("--by", default=getpass.getuser(), help="who answers (who is signed in)")
    given = options.parse_args()
    given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with alone(given.folder), closing(Journal.open(given.folder / "calls.db")) as journal:
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
