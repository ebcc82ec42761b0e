"""`sanitize()`: remove from results what people do not see, and disarm what acts on a reader."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable

from ferrule.middleware._texts import change_texts
from ferrule.security.characters import disarm, remove_hidden
from ferrule.security.hidden_html import remove_hidden_html
from ferrule.security.urls import Destinations, read_url
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

_LABEL = r"(?m)(^[ \t>*+.)\d-]{0,20}\[(?:[^\[\]\\]|\\.){1,999}\]:\s*"
_HREF = r"(?i)(<a\s[^<>]*?href\s*=\s*"
_ADDRESSES = (
    *(r"(\]\(\s*<)([^<>\n]*)", r"(\]\(\s*)([^\s<>]+)"),  # [text](address)
    *(_LABEL + r"<)([^<>\n]*)", _LABEL + r")([^\s<>]+)"),  # [label]: address
    *(_HREF + rf"\\*{quote})([^{quote}<>]*?(?=\\*(?:[{quote}<>]|\Z)))" for quote in "\"'"),
    _HREF + r""")([^\s"'<>\\]+)""",
)
"""Links: the part in front, and the whole address. A browser reads `https://a.test @b.test` as an address of b.test."""
_IS_PLAIN = re.compile(r"[\w .+-]*\Z", re.ASCII).match
_TABS_AND_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))
_BLANKS = "".join(map(chr, range(33)))
_HAS_HOST = re.compile(r"(?i)https?:|//").match
_WITHOUT_HOST = re.compile(r"(?i)(?:mailto|tel):|[^:\\]*\Z").match
REPORT = "sanitized"
"""The member of `metadata` with the number of each thing that was removed."""


def sanitize(*, hosts: Iterable[str] | None = None) -> Sanitize:
    """Return a middleware that removes or escapes the hidden and active parts of all texts in a result: in the output
    and its keys, in content, in an error's text and in metadata. See docs/guides/untrusted-content.md#clean-the-text.

    It removes escape sequences, invisible and bidirectional characters, comments of HTML and elements hidden by an
    attribute, and makes every line break `\\n`. HTML elements that load or run something, and Markdown images, become
    inert, and their addresses lose everything behind `?` and `#`. The marks of chat templates (`<|im_start|>`,
    `[INST]`, `Human:` at the beginning of a line …) and of Ferrule's cuts have their first character as a reference of
    HTML, as `&lt;|im_start|>`. If there was such a reference before, its `&` becomes `&amp;`, so the text can be
    restored. `metadata["sanitized"]` counts each thing that was removed.

    Use it for texts of others. In files to edit later, it would change the text that an edit looks for. It belongs in
    `around`, innermost: `around=[untrusted, limit_output(16_000), redact(), sanitize()]`.

    Args:
        hosts: Patterns of hosts, as for `guards.hosts`. Markdown images may load from these, and links lead only there:
            a link to another host leads to `#`. Without it, no image loads, and links stay.

    Raises:
        DefinitionError: A pattern is not valid.
    """
    return Sanitize(None if hosts is None else Destinations.from_options(tuple(hosts), (), (), ("https", "http"), None))


class Sanitize:
    """The middleware of `sanitize`. See docs/guides/untrusted-content.md#clean-the-text."""

    only_around = "sanitize() belongs in `around`: in `inside`, it would miss the runner's text about a failure"

    def __init__(self, destinations: Destinations | None) -> None:
        self._destinations = destinations

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        removed: Counter[str] = Counter()
        result = change_texts(await next(call, context), lambda text, name: self._clean(text, removed))
        counts = {name: count for name, count in removed.items() if count}
        return result.replace(metadata={**result.metadata, REPORT: counts}) if counts else result

    def _clean(self, text: str, removed: Counter[str]) -> str:
        if _IS_PLAIN(text):
            return text
        text, removed_characters = remove_hidden(text)
        text, comments, elements = remove_hidden_html(text)
        removed.update(invisible=removed_characters, comments=comments, hidden_elements=elements)
        if self._destinations is None:
            return disarm(text, removed)
        return disarm(self._remove_links(text, removed), removed, self._is_allowed)

    def _is_allowed(self, address: str) -> bool:
        """Return whether an address, as a browser reads it, leads to an allowed host, or stays on its page or host."""
        address = html.unescape(address).translate(_TABS_AND_BREAKS).strip(_BLANKS)
        if not _HAS_HOST(address):
            return bool(_WITHOUT_HOST(address))
        try:
            url = read_url(f"https:{address}" if address.startswith("//") else address)
        except ValueError:
            return False
        return self._destinations is not None and self._destinations.verdict(url)[0] == "allow"

    def _remove_links(self, text: str, removed: Counter[str]) -> str:
        def change(found: re.Match[str]) -> str:
            address = found[2].rstrip(")") if "(" not in found[2] else found[2]
            if self._is_allowed(address):
                return found[0]
            removed["links"] += 1
            return f"{found[1]}#{')' * found[0].endswith(')')}"

        for pattern in _ADDRESSES:
            text = re.sub(pattern, change, text)
        return text
