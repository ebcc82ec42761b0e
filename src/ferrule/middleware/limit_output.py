"""`limit_output(characters)`: bound the characters and the bytes of media that a call returns to the model."""

from __future__ import annotations

import asyncio
import logging

from ferrule.errors import DefinitionError
from ferrule.middleware._limits import check_whole_number
from ferrule.stores.artifacts import Artifact, Artifacts
from ferrule.types import Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.content import (
    KEEP_CHOICES,
    MAX_MEDIA_BYTES,
    Keep,
    Text,
    count_characters,
    is_within_limits,
    truncate_blocks,
    truncate_text,
)
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
_LEAST_WITH_NOTE = 1_000
"""The least characters that leave room for the note on an artifact, which has up to 500."""


def limit_output(
    characters: int,
    *,
    keep: Keep = "both",
    max_media: int = MAX_MEDIA_BYTES,
    artifacts: Artifacts | None = None,
) -> Middleware:
    """Return a middleware that cuts a result's blocks and error, taken together, to `characters`, and omits media
    beyond `max_media` bytes. See docs/talking-to-the-model.md.

    Each cut reports how much it removed, and JSON stays JSON. Media are omitted whole; media shown to a model as text,
    such as `text/csv`, count as characters. `result.output` is still the handler's value, which no provider reads.

    With `artifacts`, a success that is cut is kept whole, and the model reads its id, size and shape. Give the runner
    `ferrule.tools.artifacts.read_artifact(artifacts)`, too. See docs/guides/large-results.md.

    Put it in `around`, within an `untrusted`, and with `artifacts` around every `redact` and `sanitize`: it keeps what
    they let through. In `inside`, it does not cut the texts of calls that did not run.

    Args:
        characters: The largest number of characters.
        keep: The end to keep of a long text, and of a long list or object in JSON: its `"head"`, its `"tail"`, or
            `"both"`, half of the room for each: the action stands at the start and its result often at the end.
        max_media: The largest number of bytes of images, audio and files. The runner has a `max_media` of its own.
        artifacts: Keeps the whole results. Their id, shape and size are in `metadata["artifact"]`.

    Raises:
        DefinitionError: `characters` or `max_media` is not a whole number above 0, `characters` is below 1,000 with
            `artifacts`, or `keep` is none of the three.
    """
    check_whole_number("limit_output(characters)", characters)
    check_whole_number("limit_output(max_media)", max_media)
    if keep not in KEEP_CHOICES:
        raise DefinitionError(f"limit_output(keep) is 'head', 'tail' or 'both', not {keep!r}")
    given: object = artifacts
    if not (given is None or isinstance(given, Artifacts)):
        raise DefinitionError(f"limit_output(artifacts) must be made by ferrule.stores.Artifacts(…), not {given!r}")
    if artifacts is not None and characters < _LEAST_WITH_NOTE:
        raise DefinitionError(f"limit_output(characters) with artifacts must be at least {_LEAST_WITH_NOTE:,}")

    async def limit_result(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        result = await next(call, context)
        error = result.error
        if error is None:
            if is_within_limits(result.content, characters, max_media):
                return result
            # A result with an artifact is a page of it, or forwards another call's.
            if artifacts is not None and "artifact" not in result.metadata:
                kept = await _keep_whole(artifacts, result, call, context)
                if kept is not None:
                    return _refer_to_artifact(result, kept, characters, keep, max_media)
            return result.replace(content=truncate_blocks(result.content, characters, keep, max_media))
        short_error = truncate_text(error, characters, keep)
        if result.content == (Text(error),):
            return result if short_error == error else result.replace(error=short_error, content=(Text(short_error),))
        # The content differs from the error: the error goes first, the content gets the rest.
        content = truncate_blocks(result.content, characters - len(short_error), keep, max_media)
        if short_error == error and content == result.content:
            return result
        return result.replace(error=short_error, content=content)

    if artifacts is not None:
        artifacts.page_limit = min(artifacts.page_limit, characters)
        limit_result.__dict__["only_around"] = (
            "limit_output(…, artifacts=…) belongs in `around`: in `inside`, it would keep what a `redact` removes later"
        )
    return limit_result


async def _keep_whole(
    artifacts: Artifacts, result: ToolResult, call: ToolCall, context: ToolContext
) -> Artifact | None:
    """Keep the content of a result, or return None if that is not possible: the tool has run, so its result counts."""
    try:
        kept = await asyncio.to_thread(artifacts.add, result.content, context)
    except Exception:
        log.exception("the result of a call of tool %r is cut, and could not be kept", call.name)
        return None
    if kept is None:
        log.warning("the result of a call of tool %r is cut, and too large to be kept", call.name)
    return kept


def _refer_to_artifact(result: ToolResult, kept: Artifact, characters: int, keep: Keep, max_media: int) -> ToolResult:
    reading = "Call read_artifact with this id for any rows or characters of it, or to search it."
    if not kept.text:
        reading = "Only the program can open it."
    note = Text(f"[cut: the whole result is artifact {kept.id}: {kept.shape}. {reading}]")
    content = truncate_blocks(result.content, characters - count_characters((Text(""), note)), keep, max_media)
    about = {"id": kept.id, "shape": kept.shape, "bytes": kept.size}
    return result.replace(content=(*content, note), metadata={**result.metadata, "artifact": about})
