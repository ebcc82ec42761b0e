"""Every public name is documented, with an example or a page."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import griffe
import pytest
from mkdocs_hooks import PAGE_OF_A_DOCSTRING, ROOT, place_of, public_modules, public_names

import ferrule
from test_rings import PACKAGE, ROOMS, name_of


@cache
def package() -> Any:
    return griffe.load("ferrule", search_paths=[PACKAGE.parent], resolve_aliases=True)


def docstring(module: str, name: str) -> str:
    """The docstring of a public name; of a type alias or a constant, the text below it."""
    value = getattr(import_module(module), name)
    if inspect.isfunction(value):  # `stop` and `reason` of a provider are made by a function
        return inspect.getdoc(value) or ""
    found = package()[place_of(module, name).removeprefix("ferrule.")].docstring
    return found.value if found else ""


def examples(text: str) -> Iterator[str]:
    """The blocks of code in a docstring: indented, after an empty line."""
    for block in re.findall(r"\n\n((?: {4}.*(?:\n|$)|\n)+)", text):
        yield textwrap.dedent(block)


def is_program(text: str) -> bool:
    try:
        compile(text, "an example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def leads_on(text: str) -> bool:
    """Whether there is an example, or a page with more."""
    return bool(PAGE_OF_A_DOCSTRING.search(text)) or any(map(is_program, examples(text)))


@pytest.mark.parametrize("module", public_modules())
def test_a_public_name_has_an_example_or_a_page(module: str) -> None:
    # The functions of a provider module are about one thing, which its docstring shows; those of tools are for models.
    shared = import_module(module).__doc__ or "" if module.startswith(("ferrule.providers.", "ferrule.tools.")) else ""
    names = [name for name in public_names(module) if place_of(module, name).startswith("ferrule.")]
    own = {name: docstring(module, name) for name in names}
    assert [name for name, text in own.items() if not text or not leads_on(f"{text}\n\n{shared}")] == []


@pytest.mark.parametrize("module", public_modules())
def test_a_public_module_has_a_docstring(module: str) -> None:
    assert import_module(module).__doc__


def docstrings() -> Iterator[tuple[str, str]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        for page in PAGE_OF_A_DOCSTRING.finditer(file.read_text(encoding="utf-8")):
            yield name_of(file, PACKAGE.parent), page[0]


@pytest.mark.parametrize(("module", "page"), sorted(set(docstrings())))
def test_a_page_that_a_docstring_names_exists(module: str, page: str) -> None:
    path, _, anchor = page.partition("#")
    text = (ROOT / path).read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w\- ]", "", line.strip("# ").lower()).replace(" ", "-") for line in text.splitlines()}
    assert not anchor or anchor in headings


def test_every_module_outside_the_kernel_is_exported() -> None:
    public = set(public_modules())
    modules = {name_of(file, PACKAGE.parent) for file in PACKAGE.rglob("*.py")} - public
    inner = {"", *ROOMS, "adapters", "__main__"}
    left = [name for name in modules if f"{name}.".split(".")[1] not in inner and name.rpartition(".")[0] not in public]
    assert left == []


def documented_objects(place: Any) -> Iterator[Any]:
    """The classes and functions of a module or a class that have a docstring, at any depth."""
    for one in place.members.values():
        if not one.is_alias and (one.is_module or one.is_class or one.is_function):
            if one.docstring and not one.is_module:
                yield one
            yield from documented_objects(one)


def described_names(described: Any, part: str) -> Iterator[str]:
    """The names in one part of a docstring, such as `attributes`; several may share a line."""
    for section in described.docstring.parse("google", warnings=False):
        if section.kind.value == part:
            yield from (name.strip(" *") for entry in section.value for name in entry.name.strip(",").split(","))


def test_each_attribute_in_a_docstring_exists() -> None:
    wrong = [
        f"{one.path}.{name}"
        for one in documented_objects(package())
        for name in described_names(one, "attributes")
        if name not in one.all_members and not re.search(rf"\bself\.{name}\b", one.source)
    ]
    assert wrong == []


def test_each_parameter_in_a_docstring_exists() -> None:
    wrong = []
    for one in documented_objects(package()):
        function = one.all_members.get("__init__") if one.is_class else one
        parameters = [] if function is None else list(function.parameters)
        if not any(parameter.kind.value == "variadic keyword" for parameter in parameters):
            known = {parameter.name for parameter in parameters}
            wrong += [f"{one.path}({name})" for name in described_names(one, "parameters") if name not in known]
    assert wrong == []


def imported_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "ferrule":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "ferrule")


def code_that_users_read() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]:
        blocks = re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        yield from ((page.name, textwrap.dedent(block)) for block in blocks)
    yield from ((file.name, file.read_text(encoding="utf-8")) for file in ROOT.glob("examples/**/*.py"))


def test_pages_and_examples_import_public_names_only() -> None:
    modules = set(public_modules())
    public = modules | {f"{module}.{name}" for module in modules for name in public_names(module)}
    public |= {"ferrule.serve"}  # a short name of `ferrule.mcp.serve`
    public |= {f"ferrule.adapters.{page.stem.replace('-', '_')}" for page in ROOT.glob("docs/frameworks/*.md")}
    used = {
        (place, name) for place, code in code_that_users_read() if is_program(code) for name in imported_names(code)
    }
    assert len(used) > 100
    assert {(place, name) for place, name in used if name not in public} == set()


def test_help_shows_only_documented_names() -> None:
    shown = pydoc.render_doc(ferrule.Runner, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    heads = set(re.findall(r"^ \|  (?:async )?([a-z]\w*)(?:\(|$)", shown, re.MULTILINE))
    pages = "\n".join(page.read_text(encoding="utf-8") for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
    assert "run" in heads and {name for name in heads if not re.search(rf"\.{name}\b", pages)} == set()
