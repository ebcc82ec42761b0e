"""`named`: the selectors that a text can name, real entry points among them; nothing is imported that was not named.
`discover_selectors`: all that entry points name."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from catalogue import SHOP, names

from ferrule import DefinitionError
from ferrule.selection import discover_selectors, selector_from_name

MODULE = """
class Newest:
    async def select(self, messages, tools):
        return list(tools)[-1:]

class Needs(Newest):
    def __init__(self, count):
        pass

def make():
    return Newest()

newest = Newest()
number = 7

class nested:
    newest = Newest()
"""
POINTS = """
[ferrule.selectors]
newest = plugged_newest:Newest
newest_made = plugged_newest:make
newest_itself = plugged_newest:newest
number = plugged_newest:number
broken = plugged_broken:Newest
absent = plugged_newest:Absent
"""


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package that has entry points, and one whose module breaks."""
    (tmp_path / "plugged_newest.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "plugged_broken.py").write_text("raise OSError('no disk')", encoding="utf-8")
    (tmp_path / "plugged_needs.py").write_text("import not_installed", encoding="utf-8")
    distribution(tmp_path, "plugged", POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("ferrule.security.import_path.IMPORT_PATH", tuple(sys.path))
    for name in ("plugged_newest", "plugged_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def distribution(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")


def selected(text: str) -> list[str]:
    return names(asyncio.run(selector_from_name(text).select("the weather", SHOP)))


def test_a_built_in_selector_has_its_number_or_its_names() -> None:
    assert [repr(selector_from_name(text)) for text in ("keyword", " keyword:3 ")] == ["keyword(8)", "keyword(3)"]
    assert selected("by_budget:40") == ["weather"]
    assert selected("pinned:read_*, weather") == ["read_order", "read_parcel", "weather"]


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    "name", ["newest", "newest_made", "newest_itself", "plugged_newest:make", "plugged_newest:nested.newest"]
)
def test_a_name_is_an_entry_point_or_an_attribute(name: str) -> None:
    assert selected(name) == ["weather"]


@pytest.mark.usefixtures("plugged")
def test_only_the_named_plug_in_is_imported() -> None:
    selector_from_name("pinned:weather")
    assert "plugged_newest" not in sys.modules
    selector_from_name("newest")
    assert "plugged_newest" in sys.modules and "plugged_broken" not in sys.modules


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "a selector is named by 'keyword:8'"),
        ("keyword:many", "'keyword:8' is written with a whole number, not 'many'"),
        ("hybrid", "takes arguments that a text cannot express: make it in a module of your own"),
        ("newset", r"there is no selector 'newset'; did you mean 'newest'.* A selector is named by"),
        ("plugged_newest.py:Newest", "there is no module 'plugged_newest.py'; a selector is named by"),
        ("broken", r"the plug-in 'broken' \(plugged_broken:Newest\) cannot be imported: OSError: no disk"),
        ("plugged_newest:number", "'plugged_newest:number' is 7, and no selector: it has no async select"),
        ("plugged_newest:Needs", "is called without arguments, and raised TypeError"),
        ("plugged_newest:", "has no attribute ''"),
        ("plugged_needs:x", "'plugged_needs:x' cannot be imported: ModuleNotFoundError: No module named 'not_inst"),
        ("not_there.inner:x", "there is no module 'not_there.inner'"),
        (".relative:x", "cannot be imported"),
    ],
)
def test_a_text_that_names_no_selector_is_an_error(text: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        selector_from_name(text)


def test_a_name_of_two_packages_is_an_error_that_names_both(plugged: Path) -> None:
    distribution(plugged, "another", "[ferrule.selectors]\nnewest = another_module:Newest\n")
    with pytest.raises(DefinitionError, match=r"several packages offer a selector 'newest': .*of another"):
        selector_from_name("newest")


def test_a_plug_in_cannot_take_a_built_in_name(plugged: Path) -> None:
    distribution(plugged, "thief", "[ferrule.selectors]\npinned = plugged_broken:Newest\n")
    assert selected("pinned:weather") == ["weather"]


async def test_broken_plug_ins_are_logged_and_the_others_found(plugged: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = discover_selectors()
    assert [*found] == ["newest", "newest_made", "newest_itself"]
    for selector in found.values():
        assert names(await selector.select("", SHOP)) == names(SHOP)[-1:]
    assert "'broken' (plugged_broken:Newest) cannot be imported: OSError: no disk" in caplog.text
    assert "'number' is 7, and no selector" in caplog.text and "'absent'" in caplog.text


def test_the_first_plug_in_keeps_its_name(plugged: Path, caplog: pytest.LogCaptureFixture) -> None:
    points = "broken = plugged_newest:newest\nkeyword = plugged_newest:newest\nlast = plugged_newest:Newest\n"
    distribution(plugged, "a_thief", f"[axio.selector]\n{points}")
    assert "last" in discover_selectors() and selected("last") == names(SHOP)[-1:]
    assert not {"broken", "keyword"} & discover_selectors().keys()
    assert "'broken' (plugged_newest:newest of a_thief) is left out: its name is taken" in caplog.text
    assert "'keyword' (plugged_newest:newest of a_thief) is left out: its name is taken" in caplog.text
