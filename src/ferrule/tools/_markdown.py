"""Make readable Markdown of a web page, in bounded time and memory.

The library is html-to-markdown, in Rust. On 23 hostile pages of up to a megabyte it took at most 0.25 s each;
markdownify, html2text, justhtml and trafilatura took over 20 s for at least one. It also leaves out hidden text.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urljoin

from ferrule.errors import ToolError

try:
    from html_to_markdown import ConversionOptions, PreprocessingOptions, convert
except ImportError as error:
    raise ImportError('ferrule.tools.http needs html-to-markdown: pip install "ferrule[http]"') from error

MAX_HTML: Final = 1_000_000
"""The most characters of a page to convert."""
_MAX_DEPTH: Final = 100
"""Elements within elements. An item of a list has a line with two blanks for each list around it."""
_MAX_BASE: Final = 300
"""The most characters of the address that goes before every relative link."""
_MAX_HEAD: Final = 20_000
_SPAN = re.compile(r"(?ai)(?<![\w-])(?=(?:col|row)span\s*=)")
"""The attributes that repeat a cell: 15 characters of HTML may become 8,000."""
_CODE = re.compile(r"(?ai)<(script|style)(?=[\s/>])")
_CODE_ENDS = {name: re.compile(f"(?ai)</{name}") for name in ("script", "style")}
_HEAD = re.compile(r"(?ai)<head(?=[\s/>])")
_TITLE = re.compile(r"(?ai)<(/?)title(?=[\s/>])")
"""The tags of a title. The library leaves out one without a `<head>` around it, and keeps a paragraph."""
_ABOUT = re.compile(r"(?ai)<(?:meta|link|base)(?=[\s/>])")
"""Tags without text. A page of nothing else takes the library minutes."""
_BASE_ADDRESS = re.compile(r"(?ai)<base\s[^>]{0,500}?\bhref\s*=\s*[\"']?([^\"'\s>]{1,500})")


def to_markdown(html: str, url: str) -> str:
    """Return the readable text of a page as Markdown, with whole addresses in its links.

    Navigation, scripts, styles and hidden text are left out.

    Args:
        url: The address of the page.

    Raises:
        ToolError: It cannot be converted.
    """
    base = _find_base(html, url)
    options = ConversionOptions(
        base_url=base,
        compact_tables=True,
        extract_metadata=False,
        inline_data_media="alt_text_only",
        max_depth=_MAX_DEPTH,
        preprocessing=PreprocessingOptions(remove_forms=False),
    )
    page = _without_code(html.replace("\0", ""))
    body = _HEAD.sub("<x-head", _ABOUT.sub("<wbr", page[:MAX_HTML]))
    try:
        found = convert(_SPAN.sub("x-", _TITLE.sub(r"<\1p", body, count=2)), options)
    except Exception as error:  # the library names no class of its own for all of them
        raise ToolError("The page cannot be converted to text.", retryable=False) from error
    notes = [f"[cut after {MAX_HTML:,} characters of HTML]"] if len(page) > MAX_HTML else []
    if found.warnings:
        notes.append("[parts of the page are nested too deeply, and were left out]")
    return "\n\n".join(filter(None, [(found.content or "").strip(), *notes]))


def _without_code(html: str) -> str:
    """Return the page without scripts and style sheets, which may be most of it, and end before one that does not."""
    kept, at = [], 0
    while begins := _CODE.search(html, at):
        kept.append(html[at : begins.start()])
        ends = _CODE_ENDS[begins[1].lower()].search(html, begins.end())
        if ends is None:
            return "".join(kept)
        at = ends.start()
    return "".join([*kept, html[at:]])


def _find_base(html: str, url: str) -> str | None:
    """Return the address at which the relative links of a page start, or `None` if these stay as they are."""
    found = _BASE_ADDRESS.search(html, 0, _MAX_HEAD)
    try:
        base = urljoin(url, found[1]) if found else url
    except ValueError:  # half an IPv6 address
        return None
    return base if len(base) <= _MAX_BASE and base.startswith(("http://", "https://")) else None
