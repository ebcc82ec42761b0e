#!/usr/bin/env python3
"""Draw the pictures of docs/inspect.md: each view of `ferrule inspect`, in Chromium, on the tools of the tests.

python scripts/page_pictures.py             the pictures of the docs, into docs/assets
python scripts/page_pictures.py FOLDER      every view into a folder, light and dark, wide and narrow
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tests/support", "scripts")]

from browser import Browser, browser  # noqa: E402

TOOLS = ROOT / "tests" / "web"
WIDE, NARROW = (1200, 760), (390, 800)
IN_DOCS = {"denied": "light", "approvals": "light", "calls": "dark", "policy": "light"}


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The page in a process of its own; its link."""
    command = [sys.executable, "-m", "ferrule", "inspect", "desk_tools.py", "--policy", "policy.toml"]
    command += ["--by", "ann", "--no-browser", "--journal", str(folder / "calls.db")]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with subprocess.Popen(command, cwd=TOOLS, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield next(found[1] for line in process.stderr if (found := re.search(r"open (http\S+)", line)))
        finally:
            process.terminate()
            process.communicate(timeout=60)


def call(window: Browser, address: str, tool: str, **values: str) -> None:
    """Fill the form of a tool, and send it."""
    window.do("url", url=f"{address}/tool?name={tool}")
    for name, value in values.items():
        window.script("document.getElementById(arguments[0]).value = arguments[1]", f"f%2F{name}", value)
    window.send("form[action='/tool/call'] .actions .primary")
    window.wait("return !document.querySelector('form[action=\"/run/stop\"]')")


def visit_views(window: Browser, address: str) -> Iterator[str]:
    """Go to one view after the other, and yield its name."""
    for tool, values in {
        "stock": {"article": '"tea"'},
        "list_orders": {"limit": "6"},
        "pack": {"boxes": "6"},
        "label": {"order_id": "1001"},
    }.items():
        call(window, address, tool, **values)
    yield "run"
    call(window, address, "set_price", article="cocoa", euros="9")
    yield "denied"
    call(window, address, "set_price", article="coffee", euros="8")
    window.send(".answers .primary")
    window.wait("return document.querySelector('.result')")
    call(window, address, "set_price", article="tea", euros="9")
    for view in ("approvals", "tools", "tool?name=order", "calls"):
        window.do("url", url=f"{address}/{view}")
        window.wait("return document.readyState === 'complete'")
        yield view.partition("?")[0]
    window.do("url", url=f"{address}/policy?name=set_price")
    for name, value in {"article": "cocoa", "euros": "9"}.items():
        window.script("document.getElementById(arguments[0]).value = arguments[1]", f"f%2F{name}", value)
    window.click("#try")
    window.wait("return document.body.innerText.includes('would be denied')")
    yield "policy"


def draw(window: Browser, size: tuple[int, int], *, dark: bool) -> bytes:
    """Return a picture of a view. A narrow one is as long as the page."""
    window.resize(*size, dark=dark)
    if size == NARROW:
        height = window.script("return document.documentElement.scrollHeight")
        window.resize(size[0], min(int(height), 3000), dark=dark)
    return window.picture()


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with serve(folder) as link, browser(folder / "profile") as window:
            window.do("url", url=link)
            window.wait("return location.pathname === '/tools'")
            for name in visit_views(window, link.partition("/#")[0]):
                if target is not None:
                    target.mkdir(parents=True, exist_ok=True)
                    for label, size in {"wide": WIDE, "narrow": NARROW}.items():
                        for dark in (False, True):
                            picture = draw(window, size, dark=dark)
                            (target / f"{name}-{label}-{'dark' if dark else 'light'}.png").write_bytes(picture)
                elif name in IN_DOCS:
                    picture = draw(window, WIDE, dark=IN_DOCS[name] == "dark")
                    (ROOT / "docs" / "assets" / f"inspect-{name}.png").write_bytes(picture)
                window.resize(*WIDE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
