"""`limit_output(characters)`: bound the characters and the bytes of media that a call returns to the model."""

from __future__ import annotations

from ferrule.errors import DefinitionError
from ferrule.middleware._limits import check_whole_number
from ferrule.types import Middleware, Next
from ferrule.values.call import ToolCall
from ferrule.values.content import KEEP_CHOICES, MAX_MEDIA_BYTES, Keep, Text, truncate_blocks, truncate_text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


def limit_output(characters: int, *, keep: Keep = "both", max_media: int = MAX_MEDIA_BYTES) -> Middleware:
    """Return a middleware that cuts a result's blocks and error, taken together, to `characters`, and omits media
    beyond `max_media` bytes. See docs/talking-to-the-model.md.

    Each cut reports how much it removed, and JSON stays JSON. Media are omitted whole; media shown to a model as text,
    such as `text/csv`, count as characters. `result.output` is still the handler's value, which no provider reads.

    Put it in `around`, within an `untrusted`. In `inside`, it does not cut the texts of calls that did not run.

    Args:
        characters: The largest number of characters.
        keep: The end to keep of a long text, and of a long list or object in JSON: its `"head"`, its `"tail"`, or
            `"both"`, half of the room for each: the action stands at the start and its result often at the end.
        max_media: The largest number of bytes of images, audio and files. The runner has a `max_media` of its own.

    Raises:
        DefinitionError: `characters` or `max_media` is not a whole number above 0, or `keep` is none of the three.
    """
    check_whole_number("limit_output(characters)", characters)
    check_whole_number("limit_output(max_media)", max_media)
    if keep not in KEEP_CHOICES:
        raise DefinitionError(f"limit_output(keep) is 'head', 'tail' or 'both', not {keep!r}")

    async def limit_result(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        result = await next(call, context)
        error = result.error
        if error is None:
            content = truncate_blocks(result.content, characters, keep, max_media)
            return result if content == result.content else result.replace(content=content)
        short_error = truncate_text(error, characters, keep)
        if result.content == (Text(error),):
            return result if short_error == error else result.replace(error=short_error, content=(Text(short_error),))
        # The content differs from the error: the error goes first, the content gets the rest.
        content = truncate_blocks(result.content, characters - len(short_error), keep, max_media)
        if short_error == error and content == result.content:
            return result
        return result.replace(error=short_error, content=content)

    return limit_result
