"""Runs the Python snippets of README.md and docs/*.md as tests, one namespace and one event loop for each page; and
says how many examples a property is tried with: `FERRULE_TESTS=all`, as in `make test`, is four times as many.

This file is at the root because pytest asks a conftest.py only about files below it. A snippet may `await` at its top
level; it runs in an empty directory of its own. `<!-- skip: next -->` above a snippet leaves it out.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import tempfile
from contextlib import ExitStack, chdir
from typing import Any

from hypothesis import HealthCheck, settings
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

_OPEN = "_open"

# How long the examples take to make says how busy the machine is.
settings.register_profile("everyday", max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("all", max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("all" if os.environ.get("FERRULE_TESTS") == "all" else "everyday")


def enter(namespace: dict[str, Any]) -> None:
    """Give a page its loop and an empty working directory."""
    stack = ExitStack()
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    stack.enter_context(chdir(directory))
    namespace["__name__"] = "snippets"
    namespace["_loop"] = stack.enter_context(asyncio.Runner())
    namespace[_OPEN] = stack


def leave(namespace: dict[str, Any]) -> None:
    """Close what `enter` opened."""
    namespace[_OPEN].close()


def evaluate(example: Example) -> None:
    """Run one snippet; where it awaits at its top level, on the page's loop."""
    __tracebackhide__ = True
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, os.fspath(example.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        example.namespace["_loop"].run(_coroutine(code, example.namespace))
    else:
        exec(code, example.namespace)


async def _coroutine(code: Any, namespace: dict[str, Any]) -> None:
    await eval(code, namespace)


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser("python", evaluate), SkipParser()],
    patterns=["README.md", "docs/*.md"],
    setup=enter,
    teardown=leave,
).pytest()
