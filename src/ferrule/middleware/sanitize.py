"""What a tool returns moves no cursor, hides nothing, loads nothing, and holds no mark of a model's own."""

from __future__ import annotations

from ferrule.middleware._texts import with_texts
from ferrule.security.characters import inert, visible
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


async def sanitize(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    """Take from all that comes back what does something instead of saying something: in the output and its keys, in
    content, in an error's text and in metadata. See docs/middleware.md#what-comes-back.

    Escape sequences, control characters and what nobody sees are removed, and every line break is `\\n`. HTML that
    loads or runs something, and images of Markdown, do nothing any more, and their addresses lose what stands behind
    `?` and `#`. The marks of chat templates (`<|im_start|>`, `[INST]`, `Human:` at the beginning of a line …) and of
    what Ferrule cut have their first character as a reference of HTML, as `&lt;|im_start|>`; where one stood there
    before, its `&` is `&amp;`, so that it can be turned back.

    It is for what others write. Of files that are edited afterwards it would change what is looked for.
    It belongs in `around`, innermost: `around=[untrusted, limit_output(16_000), redact, sanitize]`.
    """
    return with_texts(await next(call, context), lambda text, name: inert(visible(text)[0]))


sanitize.__dict__["only_around"] = (
    "sanitize belongs in `around`: in `inside`, what the runner says of a failure is left out"
)
