"""What the site has besides docs/: pages made of the files at the root, a page for each public module, one for the
options of the commands, and llms.txt.

`PUBLIC` says which modules are public, for the reference and for the tests. A page with a program that no test runs
fails the build.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import logging
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

from ferrule.cli.program import COMMANDS, make_parser

sys.path.append(str(Path(__file__).parent / "scripts"))
from pages import find_problems

ROOT = Path(__file__).parent
AT_THE_ROOT = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages that are files at the root, where people look for them."""

PUBLIC = ("ferrule", "ferrule.types", "ferrule.guards", "ferrule.middleware", "ferrule.approval", "ferrule.tools")
PUBLIC += (
    "ferrule.security",
    "ferrule.policy",
    "ferrule.mcp",
    "ferrule.openapi",
    "ferrule.plugins",
    "ferrule.sources",
    "ferrule.selection",
    "ferrule.providers",
    "ferrule.models",
    "ferrule.loop",
    "ferrule.journal",
    "ferrule.journal.events",
    "ferrule.stores",
    "ferrule.stores.limits",
    "ferrule.remote",
    "ferrule.mcp.serve",
    "ferrule.adapters",
    "ferrule.adapters.afk",
    "ferrule.adapters.chapter1",
    "ferrule.executors",
    "ferrule.executors.process",
    "ferrule.testing",
    "ferrule.cli",
    "ferrule.web",
)
ONE_BY_ONE = ("ferrule.tools", "ferrule.sources", "ferrule.providers", "ferrule.remote")
"""Packages of which each module is public too: one is imported by its own name."""

PAGE_OF_A_DOCSTRING = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
"""How a docstring names the page with more about it."""

_CODE = re.compile(r"(<pre><span></span><code>)(.*?)</code>", re.DOTALL)
_LINK = re.compile(r"(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def public_modules() -> list[str]:
    """The modules whose names are promised, in the order of the reference."""
    found = []
    for name in PUBLIC:
        found.append(name)
        if name in ONE_BY_ONE:
            inner = (module.name for module in iter_modules(import_module(name).__path__))
            found += [f"{name}.{part}" for part in sorted(inner) if not part.startswith("_")]
    return found


def public_names(module: str) -> list[str]:
    """What a public module promises: its `__all__`, or what it defines at its top level without an underscore, and the
    root package does not export."""
    body = ast.parse(Path(str(import_module(module).__file__)).read_text(encoding="utf-8")).body
    defined = [name for node in body for name in _defines(node)]
    if "__all__" in defined:
        return sorted(import_module(module).__all__, key=str.casefold)
    at_the_root = import_module("ferrule").__all__ if module == "ferrule.types" else ()
    public = [name for name in dict.fromkeys(defined) if not name.startswith("_") and name not in at_the_root]
    return [name for name in public if not isinstance(getattr(import_module(module), name), TypeVar)]


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def reference_page(module: str) -> str:
    """Where the page of a public module is: `reference/guards.md`."""
    return f"reference/{module.removeprefix('ferrule.')}.md"


def place_of(module: str, name: str) -> str:
    """Where a public name is defined: `ferrule.guards.within` is a function here and a file besides."""
    value = getattr(import_module(module), name)
    named = (inspect.isfunction(value) or inspect.isclass(value)) and value.__qualname__ == name  # and no alias
    return f"{value.__module__}.{name}" if named else f"{module}.{name}"


def reference(module: str) -> str:
    """The page of a public module, as mkdocstrings reads it."""
    names, head = public_names(module), f"# {module}\n\n::: {module}\n    options:\n      members: "
    if not hasattr(import_module(module), "__all__"):
        made = "".join(_made(module, name) for name in names)
        return f"{head}{json.dumps(names or False)}\n{made}"
    options = "\n    options: { show_root_heading: true, show_root_full_path: false, show_root_toc_entry: true }\n"
    own = [place for place in (place_of(module, name) for name in names) if place.startswith("ferrule.")]
    return f"{head}false\n\n" + "\n".join(f"::: {place}{options}" for place in own)


def _made(module: str, name: str) -> str:
    """What is said of a function that another one made, which nobody finds in the source: `stop` of a provider."""
    value = getattr(import_module(module), name)
    if not inspect.isfunction(value) or "<" not in value.__qualname__:
        return ""
    head = f"## {name} {{ #{module}.{name} }}"
    return f"\n{head}\n\n```python\n{name}{inspect.signature(value)}\n```\n\n{value.__doc__}\n"


def command_options() -> str:
    """The page with the options of each command, as its parser has them, and once those that many share."""
    parsers = {name: make_parser(name, import_module(f"ferrule.cli.{name}")) for name in COMMANDS}
    options = {name: _options_of(parser) for name, parser in parsers.items()}
    of_tools = {name: each for name, each in options.items() if "--tools" in each}
    shared = set.intersection(*map(set, of_tools.values()))
    page = "# Options of the commands\n\nYou can look up every option of every command here. "
    page += "`ferrule COMMAND --help` shows the same at the terminal.\n\n## Tools\n\n"
    page += f"{', '.join(f'`{name}`' for name in of_tools)} take these options:\n\n"
    page += _option_table(row for name, row in options["list"].items() if name in shared)
    for name, parser in parsers.items():
        page += f"\n## ferrule {name}\n\n{parser.description}\n\n"
        page += _option_table(
            row for option, row in options[name].items() if name not in of_tools or option not in shared
        )
    return page


def _options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """A row of a table for each option and argument, by its name."""
    formatter, rows = parser._get_formatter(), {}
    for action in parser._actions:
        name = action.option_strings[-1] if action.option_strings else action.dest
        value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar}"
        parts = " ".join(formatter._expand_help(action).split()).split("`")
        parts[::2] = [re.sub(r"([*|<_])", r"\\\1", part) for part in parts[::2]]
        rows[name] = f"| `{name}{value}` | {'`'.join(parts)} |\n"
    return {name: row for name, row in rows.items() if name != "--help"}


def _option_table(rows: Iterable[str]) -> str:
    return f"| Option | Effect |\n|---|---|\n{''.join(rows)}"


# -- what mkdocs calls -------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Put the pages of the reference into the navigation."""
    for entry in config.nav:
        if isinstance(entry, dict) and "Reference" in entry:
            entry["Reference"] = [{module: reference_page(module)} for module in public_modules()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in AT_THE_ROOT.items()}
    made |= {reference_page(module): reference(module) for module in public_modules()}
    made["command-options.md"] = command_options()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to the pages of the site; what the repository has besides is named, and no link. A program that no
    test runs is a warning, which fails a strict build."""
    here = page.file.src_uri
    written = next((source for source, made in AT_THE_ROOT.items() if made == here), f"docs/{here}")
    for problem in [] if here.startswith("reference/") else find_problems(written, markdown):
        logging.getLogger("mkdocs.hooks").warning(problem)
    if here.startswith("reference/") or here == "changelog.md":
        page.meta["search"] = {"boost": 0.5}  # who searches for a word finds the page about it first
    folder = "" if here in AT_THE_ROOT.values() else posixpath.join("docs", posixpath.dirname(here))
    return _LINK.sub(lambda link: _on_the_site(link, folder, posixpath.dirname(here)), markdown)


def _on_the_site(link: re.Match[str], folder: str, here: str) -> str:
    label, target, anchor = link[1], link[2], link[3] or ""
    path = posixpath.normpath(posixpath.join(folder, target))
    if ":" in target or not (ROOT / path).exists():
        return link[0]
    page = AT_THE_ROOT.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    return f"{label}({posixpath.relpath(page, here or '.')}{anchor})" if page else label[1:-1]


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Let the keyboard reach code that scrolls. In the reference, make links of the pages that docstrings name."""
    html = _CODE.sub(_focusable, html)
    if not page.file.src_uri.startswith("reference/"):
        return html
    return PAGE_OF_A_DOCSTRING.sub(lambda named: _linked(named, files), html)


def _focusable(code: re.Match[str]) -> str:
    """Code that scrolls in a window of 390 pixels gets content that the keyboard can reach. The theme removes a
    `tabindex` of the `<code>` itself where there is no mouse."""
    lines = unescape(re.sub(r"<[^>]+>", "", code[2])).splitlines()
    longest = max(map(len, lines), default=0)
    return f'{code[1]}<span tabindex="0">{code[2]}</span></code>' if longest > 40 else code[0]


def _linked(named: re.Match[str], files: Any) -> str:
    page = files.get_file_from_path(f"{named[1]}.md").page
    return f'<a href="../{named[1]}.html{named[2] or ""}">{page.title or named[0]}</a>'


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the search for those who hear the page, which the theme does not."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_env(env: Any, config: Any, files: Any) -> Any:
    """Write llms.txt: the index by the convention of llmstxt.org, and a Markdown file for each page that it names."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section: str | None = None
    for page in _in_order(config.nav, files):
        title = ": ".join(above.title for above in reversed(page.ancestors)) or "Docs"
        if title != section:
            lines += ["", f"## {title}", ""]
            section = title
        lines.append(_indexed(page, site))
    site.mkdir(parents=True, exist_ok=True)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return env


def _in_order(nav: Any, files: Any) -> Iterator[Any]:
    for entry in nav:
        if isinstance(entry, str):
            yield files.get_file_from_path(entry).page
        else:
            for inner in entry.values():
                yield from _in_order(inner if isinstance(inner, list) else [inner], files)


def _indexed(page: Any, site: Path) -> str:
    """One line of the index: a page of the reference is read as HTML, every other one as Markdown."""
    source = page.file.src_uri
    if source.startswith("reference/"):
        first = (import_module(page.title).__doc__ or "").splitlines()[0]
        return f"- [{page.title}]({page.file.dest_uri}): {first}"
    written = site / source
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(page.markdown, encoding="utf-8")
    text = re.sub(r"^#.*$", "", page.markdown, flags=re.MULTILINE)
    first = re.sub(":$", ".", text.strip().partition("\n\n")[0].splitlines()[0])
    return f"- [{page.title}]({source}): {_LINK.sub(lambda link: link[1][1:-1], first)}"
