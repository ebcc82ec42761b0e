"""scripts/pages.py finds the programs of the pages, and scripts/page_types.py reports where their types are wrong."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import mkdocs_hooks
import page_extras
import page_types
import pytest
from pages import RUN_BY, find_pages, find_problems, find_programs, runner_of

ROOT = Path(__file__).parent.parent
PAGE = """# A page

```python
# shop.py
PRICE: int = "much"
```

```toml
# policy.toml
allow = ["buy"]
```

```python
from shop import PRICE

def total(count: int) -> int:
    return PRICE * count

print(total(2))
```

Or this one:

```python
from shop import PRICE
name: str = PRICE
```
"""


def test_a_program_has_the_modules_and_files_that_its_page_shows_before_it(tmp_path: Path) -> None:
    shop, buy, _ = find_programs(PAGE)
    assert (shop.module, {*shop.modules}, {*shop.files}) == ("shop", set(), set())
    assert (buy.module, {*buy.modules}, {*buy.files}) == (None, {"shop"}, {"policy.toml"})
    assert buy.write(tmp_path).read_text().splitlines()[buy.block.line - 1] == "from shop import PRICE"
    assert {file.name for file in tmp_path.iterdir()} == {"program.py", "shop.py", "policy.toml"}


def test_each_page_with_programs_has_a_test_that_names_it() -> None:
    tests = {runner_of(page) for page, text in find_pages().items() if find_programs(text)}
    assert tests == {*RUN_BY.values()} and all((ROOT / str(test)).is_file() for test in tests)
    assert [problem for page, text in find_pages().items() for problem in find_problems(page, text)] == []


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("docs/new/page.md", "```python\n1\n```\n", "docs/new/page.md:2: no test runs the Python of this page"),
        ("docs/page.md", "\n~~~python\n1\n~~~\n", "docs/page.md:3: no test runs Python between fences of '~~~'"),
        ("docs/page.md", "- a\n\n  ```python\n  1\n  ```\n", "docs/page.md:4: no test runs Python between"),
        ("docs/page.md", "```py\n1\n```\n", "docs/page.md:2: the language of a block is one of python, toml"),
        ("docs/page.md", "```toml\na = \n```\n", "docs/page.md:2: this is no TOML"),
    ],
)
def test_a_block_that_nothing_tests_is_a_warning_of_the_build(
    page: str, text: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = SimpleNamespace(file=SimpleNamespace(src_uri=page.removeprefix("docs/")), meta={})
    with caplog.at_level(logging.WARNING, "mkdocs"):
        mkdocs_hooks.on_page_markdown(text, made, None, None)
    [said] = caplog.messages
    assert said.startswith(problem)


def test_a_page_is_run_with_the_extras_that_it_names_and_no_others() -> None:
    named = 'Run `pip install "ferrule[mcp,cli]"`, or `pip install "ferrule[http]" pytest opentelemetry-sdk`.'
    assert page_extras.find_packages(named) == (f"{ROOT}[cli,http,mcp]", "opentelemetry-sdk", "pytest")
    assert page_extras.find_packages("$ pip install ferrule\n") == (str(ROOT),)


@pytest.mark.slow
@pytest.mark.parametrize("checker", page_types.CHECKERS)
def test_a_checker_reports_a_wrong_type_at_its_place_on_the_page(checker: str, tmp_path: Path) -> None:
    passed, said = page_types.check(checker, tmp_path, page_types.extract({"docs/page.md": PAGE}, tmp_path))
    places = re.findall(r"^ *docs/page\.md:(\d+).*\berror: ", said, re.MULTILINE)
    assert not passed and sorted(map(int, places)) == [5, 26], said
