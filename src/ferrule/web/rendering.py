"""HTML from the templates of this folder. All text in it is escaped, and hidden characters become visible."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ferrule.cli.journal_calls import format_duration, format_time
from ferrule.security.characters import HIDDEN
from ferrule.web.drawing import tone

_HERE: Final = Path(__file__).parent
STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""The files that the page loads, with their types."""


def show(value: object) -> object:
    """Return a value for a template. In a text, invisible and control characters become escapes such as `\\u202e`."""
    if not isinstance(value, str) or isinstance(value, Markup) or (value.isascii() and value.isprintable()):
        return value
    seen = "".join(c if c.isprintable() or c in "\n\t\u00a0\u3000" else _escape(c) for c in value.replace("\r\n", "\n"))
    return re.sub(HIDDEN, lambda found: _escape(found[0]), seen)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


@cache
def static_file(name: str) -> bytes:
    """Return a file that the page loads."""
    return (_HERE / "static" / name).read_bytes()


@cache
def static_version() -> str:
    """Return a text that changes with the files that the page loads, so browsers may keep them."""
    return hashlib.sha256(b"".join(map(static_file, STATIC))).hexdigest()[:12]


@cache
def make_environment() -> Environment:
    """Return the environment of the templates."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"static_version": static_version, "tone": tone}
    environment.filters |= {"when": format_time, "duration": format_duration}
    environment.globals["m"] = environment.get_template("macros.html").module
    return environment


def render(template: str, **values: Any) -> str:
    """Return the text of a template."""
    return make_environment().get_template(template).render(**values)
