"""`redact()`: replace secrets with stars, in results and wherever else a call leaves traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from ferrule.definition.options import check_observer, wrong_option
from ferrule.errors import DefinitionError
from ferrule.kernel.redact import REDACT_KNOWN, make_call_redactor
from ferrule.middleware._redacted import RedactedEvents, RedactedJournal
from ferrule.middleware._texts import change_texts
from ferrule.security.detection import BY_DEFAULT, NAMES, Finding, Scanner, ScannerStream
from ferrule.security.masking import mask_certain_credentials
from ferrule.security.redaction import redact_texts, redact_value
from ferrule.security.redactor import make_redactor
from ferrule.types import Journal, Next, Observer
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def redact(
    *, also: Iterable[str] = (), without: Iterable[str] = (), patterns: Mapping[str, str] | None = None
) -> Redaction:
    """Return a middleware that replaces secrets with stars in every part of a result: the output and its keys, content,
    an error's text and metadata. See docs/guides/untrusted-content.md#find-secrets.

        hide = redact(also=["email"])
        runner = Runner(tools, around=[untrusted, limit_output(16_000), hide, sanitize()])

    It knows the keys of seventy services by their documented forms, private keys, JSON web tokens, passwords in URLs
    and connection strings, authorizations, settings such as `DB_PASSWORD=…`, card numbers of 14 to 16 digits, IBANs,
    and random words of 20 characters or more near one such as "key"; each also once in base64. Within a call, it also
    knows the values in `context.secrets` and of bound and private parameters. Commit hashes, UUIDs and prose stay. It
    belongs in `around`, inside of `untrusted` and `limit_output`, which could cut a secret in two. The same object
    covers other places by `hide.events(…)`, `hide.journal(…)`, `trace(redact=hide)` and `cassette(…, redact=hide)`.

    Args:
        also: The names of further detectors: `"email"`, `"phone"`.
        without: The names of detectors to leave out, such as `"iban"`.
        patterns: Regular expressions for secrets of your own, by name. Each searches one line at a time.

    Raises:
        DefinitionError: There is no such detector, or a pattern is not valid.
    """
    own: Any = patterns or {}
    if not isinstance(own, Mapping) or not all(isinstance(pattern, str) for pattern in own.values()):
        expected = r"a dict of regular expressions by name, such as {'employee': r'E-\d{4}'}"
        raise wrong_option("redact(patterns)", own, expected)
    added, left_out = _read_detectors("also", also), _read_detectors("without", without)
    try:
        return Redaction(Scanner((BY_DEFAULT | added) - left_out, patterns))
    except re.error as error:
        raise DefinitionError(f"redact(patterns): {error.pattern!r} is no regular expression: {error}") from None


def _read_detectors(option: str, names: Iterable[str]) -> set[str]:
    given = {names} if isinstance(names, str) else set(names)
    if unknown := given - NAMES:
        raise DefinitionError(
            f"redact({option}): there is no detector {min(unknown)!r}, but {', '.join(sorted(NAMES))}"
        )
    return given


def check_redaction(option: str, value: Any) -> Callable[[str], str]:
    """Return the function that redacts a text: that of `redact(…)`, or one for certain credentials if it is None.

    Raises:
        DefinitionError: The value is anything else.
    """
    if value is None:
        return mask_certain_credentials
    if not isinstance(value, Redaction):
        raise DefinitionError(f"{option}(redact) must be made by redact(…), not {value!r}")
    return value.text


class Redaction:
    """The middleware of `redact`. See docs/guides/untrusted-content.md#find-secrets."""

    only_around = "redact() belongs in `around`: in `inside`, it would miss the runner's text about a failure"
    as_observer = "redact() is no observer, but wraps one: observers=[hide.events(observer)]"

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        running, before = context.running_call, REDACT_KNOWN.get()
        own = make_redactor(context.secrets) if running is None else make_call_redactor(running, with_parents=False)
        REDACT_KNOWN.set(own)
        try:
            result = await next(call, context)
            if running is not None:  # the arguments are known now
                REDACT_KNOWN.set(make_call_redactor(running, with_parents=False))
            result = self._redact_result(result)
            content = self._redact_blocks(tuple(map(self._redact_file, result.content)))
        finally:
            REDACT_KNOWN.set(before)
        return result if content == result.content else result.replace(content=content)

    def find(self, text: str) -> list[Finding]:
        """Return the secrets in a text, the first first."""
        return self._scanner.find(text)

    def text(self, text: str) -> str:
        """Return a text with stars for each secret."""
        return self._scanner.redact(REDACT_KNOWN.get()(text))

    def value(self, value: Any) -> Any:
        """Return JSON data, bytes, blocks or a result with stars for each secret, also in keys and numbers."""
        return redact_value(value, self.text)

    def stream(self) -> ScannerStream:
        """Return an object that redacts a text in pieces: `feed(piece)` and `close()` return what is safe to show."""
        return self._scanner.stream()

    def events(self, observer: Observer) -> Observer:
        """Return an observer that passes redacted events on, without exceptions.

        A chunk of text waits until its line has ended.

        Raises:
            DefinitionError: The argument is no observer.
        """
        check_observer("redact().events(observer)", observer)
        return RedactedEvents(observer, self)

    def journal(self, journal: Journal) -> Journal:
        """Return a journal that stores arguments, outcomes and events redacted.

        A replayed call returns the redacted outcome, and `reconcile` sees redacted arguments. The values of
        `journal.store`, such as calls that wait in a queue, and the state of `loop.run(…, key=…)` stay as they are.

        Raises:
            DefinitionError: The argument is no journal.
        """
        if not isinstance(journal, Journal):
            raise wrong_option("redact().journal(journal)", journal, 'a journal, such as Journal.open("calls.db")')
        return RedactedJournal(journal, self)

    def _redact_result(self, result: ToolResult) -> ToolResult:
        """Return the result redacted. All its texts are searched at once."""
        found: dict[tuple[str, str], str] = {}
        change_texts(result, lambda text, name: found.setdefault((text, name), text))
        redacted = redact_texts(found, self.text)
        return change_texts(result, lambda text, name: redacted[text, name])

    def _redact_file(self, block: Block) -> Block:
        """Return a block with its data redacted if they are UTF-8, such as XML."""
        if isinstance(block, Text) or block.data is None:
            return block
        try:
            text = block.data.decode()
        except UnicodeDecodeError:
            return block
        masked = self.text(text)
        return block if masked == text else replace(block, data=masked.encode())

    def _redact_blocks(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return the blocks with adjacent texts joined if a secret begins in one and ends in another."""
        redacted: list[Block] = []
        for is_texts, group in groupby(blocks, lambda block: isinstance(block, Text)):
            adjacent = list(group)
            joined = "".join(block.text for block in adjacent if isinstance(block, Text))
            masked = self.text(joined) if is_texts and len(adjacent) > 1 else joined
            redacted += adjacent if masked == joined else [Text(masked)]
        return tuple(redacted)
