"""Plug-ins by entry points: only requested ones are loaded, and faults are reported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferrule import DefinitionError, Runner, plugins, sources
from ferrule.cli import main

CODE = '''
import sys
sys.modules.setdefault("plugged_loaded", []).append(__name__)
from ferrule import Runner, Toolset, deny, tool

@tool
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"

@tool(read_only=True)
def look() -> str:
    """Look."""
    return "seen"

class Shop:
    def open(self) -> str:
        """Open."""
        return "open"

several = [pay, look]
runner = Runner([look], guards=[lambda call, context: None])
shop = Shop()

def office_hours(call, context):
    return deny("closed") if call.name == "pay" else None

class Careful:
    def check(self, call, context):
        return None

def loudly(call, context, next):
    return next(call, context)

def nobody(call, decision, context):
    return False

number = 7
'''


@contextmanager
def packages(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **points: Mapping[str, Mapping[str, str]]
) -> Iterator[list[str]]:
    """Packages with a module each, and their entry points by group; what of them was loaded."""
    loaded: list[str] = []
    monkeypatch.setitem(sys.modules, "plugged_loaded", loaded)  # type: ignore[arg-type]
    for package, groups in points.items():
        info = folder / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [
            "\n".join([f"[ferrule.{kind}]", *(f"{name} = {value}" for name, value in some.items())])
            for kind, some in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (folder / f"{package}.py").write_text(CODE)
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("ferrule.security.import_path.IMPORT_PATH", (str(folder),))
    yield loaded


CRM = {
    "tools": {"several": "crm:several", "shop": "crm:shop", "runner": "crm:runner", "gone": "crm:gone"},
    "guards": {"hours": "crm:office_hours", "careful": "crm:Careful", "seven": "crm:number"},
    "middleware": {"loudly": "crm:loudly"},
    "approvers": {"nobody": "crm:nobody"},
    "selectors": {"best": "crm:number"},
}


def test_plug_ins_load_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, crm=CRM) as loaded:
        found = plugins.installed()
        assert [(one.kind, one.name) for one in found] == [
            (kind, name) for kind in plugins.KINDS for name in CRM.get(kind, ())
        ]
        assert (found[0].package, found[0].version, found[0].value) == ("crm", "1.2", "crm:several")
        assert [one.name for one in plugins.installed("middleware")] == ["loudly"]
        for ask in (sources.plugins, plugins.guards, plugins.middleware, plugins.approvers):
            with pytest.raises(DefinitionError, match="name the plug-ins that are to be loaded"):
                ask()
        assert loaded == []
        sources.plugins("shop")
        assert loaded == ["crm"]


def test_a_plug_in_may_offer_tools_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, crm={"tools": {**CRM["tools"], "one": "crm:pay", "all": "crm"}}):
        expected = {
            "several": ["pay", "look"],
            "shop": ["open"],
            "runner": ["look"],
            "one": ["pay"],
            "all": ["pay", "look"],
        }
        for name, names in expected.items():
            assert [tool.name for tool in sources.plugins(name)] == names
        tools = sources.plugins("several", "shop")
        assert [tool.source for tool in tools.report.tools] == ["crm:several of crm 1.2"] * 2 + ["crm:shop of crm 1.2"]


def test_a_broken_plug_in_is_reported_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"gone": "crm:gone", "none": "nothing_of_the_kind:x", "seven": "crm:number", "good": "crm:several"}
    with packages(tmp_path, monkeypatch, crm={"tools": broken}):
        tools = sources.plugins("*")
        assert [tool.name for tool in tools] == ["pay", "look"]
        assert [str(one.item).split("'")[1] for one in tools.report.left_out] == ["gone", "none", "seven"]
        for text in ("has no attribute 'gone'", "No module named 'nothing_of_the_kind'"):
            assert text in caplog.text and text in str(tools.report)
        assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_two_plug_ins_of_one_name_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, aaa={"tools": {"shop": "aaa:shop"}}, bbb={"tools": {"shop": "bbb:several"}}):
        first, second = plugins.installed()
        assert (first.taken_by, second.taken_by) == (None, first.package)
        tools = sources.plugins("*")
        assert len(tools.report.left_out) == 1 and f"its name is taken by {first.package}" in str(tools.report)
        with pytest.raises(DefinitionError, match=r"several packages offer tools 'shop': .* of .*, .* of "):
            sources.plugins("shop")


def test_of_two_tools_with_one_name_the_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, aaa={"tools": {"a": "aaa:pay"}}, bbb={"tools": {"b": "bbb:several"}}):
        tools = sources.plugins("*")
        assert sorted(tool.name for tool in tools) == ["look", "pay"]
        [left_out] = tools.report.left_out
        assert left_out.item.startswith("the tool 'pay' of the plug-in") and "its name is taken by" in left_out.reason


def test_a_runner_takes_guards_middleware_and_approvers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, crm=CRM):
        runner = Runner(
            sources.plugins("several"),
            guards=plugins.guards("hours", "careful"),
            around=plugins.middleware("loudly"),
            approve=plugins.approvers("nobody")[0],
        )
        assert runner.run_sync("pay", {"euros": 5}).error == "Denied: closed. Nothing was run."


@pytest.mark.parametrize(
    ("name", "why"),
    [("seven", "7 is none of the guards"), ("*", "7 is none of the guards"), ("no", "no package offers guards 'no'")],
)
def test_an_unusable_guard_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    with packages(tmp_path, monkeypatch, crm=CRM):
        with pytest.raises(DefinitionError) as raised:
            plugins.guards(name)
        assert why in str(raised.value)


def test_later_additions_to_the_path_offer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path, monkeypatch, crm=CRM):
        monkeypatch.setattr("ferrule.security.import_path.IMPORT_PATH", ())
        assert plugins.installed() == []
    with pytest.raises(DefinitionError, match="'tool' is no kind of plug-in"):
        plugins.installed("tool")


def listed(capsys: pytest.CaptureFixture[str], *names: str) -> tuple[int, str]:
    code = main(["plugins", *names])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_command_lists_plug_ins_and_their_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with packages(tmp_path, monkeypatch, crm=CRM, bbb={"tools": {"shop": "bbb:shop"}}) as loaded:
        code, text = listed(capsys)
        assert code == 1 and loaded == []  # a name is taken twice
        for words in ("guards", "hours", "crm 1.2", "crm:office_hours"):
            assert words in text
        code, text = listed(capsys, "hours")
        assert code == 1 and "its name is taken by" in text and "gone'" not in text and loaded == ["crm"]
        code, text = listed(capsys, "*")
        assert code == 1
        for words in ("has no attribute 'gone'", "7 is none of the guards", "7 is none of the selectors"):
            assert words in text
        code, text = listed(capsys, "hous")
        assert code == 2 and "there is no plug-in 'hous'" in text and "hours" in text
    monkeypatch.setattr("ferrule.security.import_path.IMPORT_PATH", ())
    code, text = listed(capsys)
    assert code == 0 and "There are no plug-ins" in text


def test_unreadable_metadata_stops_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with packages(tmp_path, monkeypatch, crm=CRM):
        for name, points in (("bad", b"no section"), ("worse", b"\xff\xfe[")):
            info = tmp_path / f"{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_bytes(points)
        assert len(plugins.guards("hours")) == 1 and "open" in sources.plugins("shop")
        assert "cannot be read" in caplog.text
