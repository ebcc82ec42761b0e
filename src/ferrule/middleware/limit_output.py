"""The whole of what a call gives the model stays within a number of characters, and of bytes of media."""

from __future__ import annotations

from ferrule.errors import DefinitionError
from ferrule.middleware._counted import whole
from ferrule.types import Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.content import KEEP_CHOICES, MAX_MEDIA_BYTES, Keep, Text, truncate_blocks, truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def limit_output(characters: int, *, keep: Keep = "both", max_media: int = MAX_MEDIA_BYTES) -> Middleware:
    """A middleware that cuts a result's blocks and error, taken together, to `characters`, and leaves out media beyond
    `max_media` bytes. See docs/talking-to-the-model.md.

    What is cut says how much was left out, and JSON stays JSON. Media are left out whole; those that a model reads as
    text, such as `text/csv`, count as characters. `result.output` is still the handler's value, which no provider
    reads.

    Put it in `around`, within an `untrusted`; in `inside`, it cuts nothing of what is said of a call that did not run.

    Args:
        characters: How many at most.
        keep: Which end of a long text is kept, and of a long list or object in JSON: its `"head"`, its `"tail"`, or
            half of the room for each, since what was done stands at the start and what came of it often at the end.
        max_media: How many bytes of images, audio and files at most. The runner has a `max_media` of its own.

    Raises:
        DefinitionError: if `characters` or `max_media` is not a whole number above 0, or `keep` is none of the three.
    """
    whole("limit_output(characters)", characters)
    whole("limit_output(max_media)", max_media)
    if keep not in KEEP_CHOICES:
        raise DefinitionError(f"limit_output(keep) is 'head', 'tail' or 'both', not {keep!r}")

    async def limited(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        result = await next(call, context)
        error = result.error
        if error is None:
            content = truncate_blocks(result.content, characters, keep, max_media)
            return result if content == result.content else result.replace(content=content)
        short = truncate_text(error, characters, keep)
        if result.content == (Text(error),):
            return result if short == error else result.replace(error=short, content=(Text(short),))
        # An error that came with content of its own: the error goes first, the content gets what is left.
        content = truncate_blocks(result.content, characters - len(short), keep, max_media)
        if short == error and content == result.content:
            return result
        return result.replace(error=short, content=content)

    return limited
