"""`redact`: replace credentials in results with stars."""

from __future__ import annotations

from itertools import groupby

from ferrule.middleware._texts import with_texts
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
    result = with_texts(await next(call, context), _redacted)
    content = _redacted_across(result.content)
    return result if content == result.content else result.replace(content=content)


redact.__dict__["only_around"] = (
    "redact belongs in `around`: in `inside`, what the runner says of a failure is left out"
)


def _redacted(text: str, name: str) -> str:
    """Return the text without credentials.

    A key with invisible characters between its own counts as a credential, and so does a secret under its member's
    name.
    """
    seen, hidden = remove_hidden(text)
    masked = mask_certain_credentials(seen)
    if name and masked == seen and is_secret_member(name, seen, mask_certain_credentials):
        return MASK
    return masked if not hidden or masked != seen else text


def _redacted_across(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks with adjacent texts joined if a credential begins in one and ends in another."""
    found: list[Block] = []
    for is_text, group in groupby(blocks, lambda block: isinstance(block, Text)):
        some = list(group)
        joined = "".join(block.text for block in some if isinstance(block, Text))
        masked = _redacted(joined, "") if is_text and len(some) > 1 else joined
        found += some if masked == joined else [Text(masked)]
    return tuple(found)
