"""`sanitize`: remove control characters, active HTML and chat template marks from results."""

from __future__ import annotations

from ferrule.middleware._texts import change_texts
from ferrule.security.characters import disarm, remove_hidden
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult


async def sanitize(call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
    """Remove or escape the active parts of all texts in the result: in the output and its keys, in content, in an
    error's text and in metadata. See docs/middleware.md#what-comes-back.

    Escape sequences, control characters and invisible characters are removed, and every line break is `\\n`. HTML
    elements that load or run something, and Markdown images, become inert, and their addresses lose everything behind
    `?` and `#`. The marks of chat templates (`<|im_start|>`, `[INST]`, `Human:` at the beginning of a line …) and of
    Ferrule's cuts have their first character as a reference of HTML, as `&lt;|im_start|>`. If there was such a
    reference before, its `&` becomes `&amp;`, so the text can be restored.

    Use it for texts of others. In files to edit later, it would change the text that an edit looks for. It belongs in
    `around`, innermost: `around=[untrusted, limit_output(16_000), redact, sanitize]`.
    """
    return change_texts(await next(call, context), lambda text, name: disarm(remove_hidden(text)[0]))


sanitize.__dict__["only_around"] = (
    "sanitize belongs in `around`: in `inside`, it would miss the runner's text about a failure"
)
