"""`redact`: replace credentials in results with stars."""

from __future__ import annotations

from itertools import groupby

from ferrule.middleware._texts import change_texts
from ferrule.security.characters import remove_hidden
from ferrule.security.masking import MASK, mask_certain_credentials
from ferrule.security.redaction import is_secret_member
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.content import Block, Text
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


async def redact(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    """Replace credentials with stars in every part of the result: the output and its keys, content, an error's text and
    metadata. This also covers the record and the log of calls. See docs/middleware.md#what-comes-back.

    A credential is a text with no other possible meaning: keys with the marks of services (AWS, OpenAI, Anthropic,
    GitHub, GitLab, Slack, Google, Stripe and others), JSON web tokens, private keys in PEM, passwords in URLs, bearer
    tokens and values of `Authorization`, settings in capitals as in a file `.env`, and a text of letters and digits
    under the name of a password or a key; each also once in base64. Commit hashes, UUIDs and prose stay.

    It belongs in `around`, inside of `untrusted` and `limit_output`, which could cut a credential in two.
    """
    result = change_texts(await next(call, context), _redact_text)
    content = _redact_blocks(result.content)
    return result if content == result.content else result.replace(content=content)


redact.__dict__["only_around"] = (
    "redact belongs in `around`: in `inside`, it would miss the runner's text about a failure"
)


def _redact_text(text: str, name: str) -> str:
    """Return the text without credentials.

    A key with invisible characters between its own counts as a credential, and so does a secret under its member's
    name.
    """
    visible_text, hidden = remove_hidden(text)
    masked = mask_certain_credentials(visible_text)
    if name and masked == visible_text and is_secret_member(name, visible_text, mask_certain_credentials):
        return MASK
    return masked if not hidden or masked != visible_text else text


def _redact_blocks(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks with adjacent texts joined if a credential begins in one and ends in another."""
    redacted: list[Block] = []
    for is_texts, group in groupby(blocks, lambda block: isinstance(block, Text)):
        adjacent = list(group)
        joined = "".join(block.text for block in adjacent if isinstance(block, Text))
        masked = _redact_text(joined, "") if is_texts and len(adjacent) > 1 else joined
        redacted += adjacent if masked == joined else [Text(masked)]
    return tuple(redacted)
