"""Large results are kept whole, for their own principal and session alone, and a model reads them in pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Journal, Media, Runner, Text, ToolContext, ToolError, tool
from ferrule.errors import DefinitionError
from ferrule.middleware import limit_output, redact
from ferrule.stores import Artifacts, Memory, Postgres, ReachableError, StoreError
from ferrule.testing import ManualClock
from ferrule.tools.artifacts import read_artifact
from ferrule.values.content import count_characters
from waits import BOUND

ADA, EVE = ToolContext(principal="ada", session="s1"), ToolContext(principal="eve", session="s1")
ROWS = [{"order": number, "euros": number % 90} for number in range(1_000)]
WHOLE = Text("day,euros\n" + "".join(f"{day},{day % 7}\n" for day in range(500)))
Make = Callable[..., Artifacts]


@pytest.fixture(params=["memory", "folder", "journal", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What makes artifacts in the same place each time."""
    place: Any = Memory()
    if request.param == "folder":
        place = tmp_path / "kept"
    if request.param == "journal":
        place = Journal.open(tmp_path / "calls.db")
    if request.param == "postgres":
        place = Postgres(request.getfixturevalue("postgres_url")("artifacts"))
    return lambda **options: Artifacts(place, **options)


def give(value: Any) -> Any:
    @tool(name="give", read_only=True)
    def handler() -> Any:
        """Give it."""
        if isinstance(value, Exception):
            raise value
        return value

    return handler


def desk(value: Any, artifacts: Artifacts, characters: int = 1_000, page: int = 700, **options: Any) -> Runner:
    around = [limit_output(characters, artifacts=artifacts), *options.pop("inner", ())]
    return Runner([give(value), read_artifact(artifacts, page=page)], around=around, **options)


async def read_all(runner: Runner, id: str, context: ToolContext = ADA, **arguments: Any) -> list[str]:
    """Read page after page, as the last line of each says. Return the lines, without that one."""
    lines: list[str] = []
    start: str | None = "0"
    while start is not None:
        result = await runner.run("read_artifact", {"id": id, "start": int(start), **arguments}, context)
        assert result.success, result.error
        *page, last = result.text.split("\n")
        assert len("\n".join(page)) <= 700
        lines += page
        found = re.search(r"go on with start=(\d+)\]$", last)
        start = found and found[1]
    return lines


async def test_a_model_reads_a_large_result_in_pages(make: Make) -> None:
    runner = desk(ROWS, make())
    result = await runner.run("give", {}, ADA)
    about = result.metadata["artifact"]
    assert (result.output, count_characters(result.content) <= 1_000) == (ROWS, True)
    assert result.text.startswith('[{"order": 0, "euros": 0}') and '"order": 999' in result.text
    size = f"{len(json.dumps(ROWS)):,} characters"
    assert f"artifact {about['id']}: JSON, 1,000 rows, {size}, columns order, euros" in result.text
    assert [json.loads(line) for line in await read_all(runner, about["id"])] == ROWS
    matches = await read_all(runner, about["id"], grep=r'"euros": 89\b', rows=7)
    assert [int(line.partition(":")[0]) for line in matches] == [row["order"] for row in ROWS if row["euros"] == 89]
    elsewhere = desk(None, make())  # another object in the same place
    read = await elsewhere.run("read_artifact", {"id": about["id"], "start": 999}, ADA)
    assert read.text == '{"order": 999, "euros": 9}\n[rows 999 to 999 of 1,000]'
    past = await runner.run("read_artifact", {"id": about["id"], "start": 1000}, ADA)
    assert past.error == "It has 1,000 rows, so start is at most 999."


async def test_each_page_of_csv_has_its_header() -> None:
    runner = desk(WHOLE.text, Artifacts())
    about = (await runner.run("give", {}, ADA)).metadata["artifact"]
    assert about["shape"].startswith("CSV, 500 rows,") and about["shape"].endswith("columns day, euros")
    page = await runner.run("read_artifact", {"id": about["id"], "start": 7, "rows": 2}, ADA)
    assert page.text == "day,euros\n7,0\n8,1\n[rows 7 to 8 of 500; go on with start=9]"


@given(st.text(st.sampled_from('ab,"\n\r{[é😀'), max_size=300), st.integers(1, 501))
async def test_pages_of_characters_are_the_text(part: str, length: int) -> None:
    text = part * 5 + "x" * 1_100
    runner, read = desk(text, Artifacts()), ""
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    while len(read) < len(text):
        page = await runner.run("read_artifact", {"id": id, "start": len(read), "length": length + 99}, ADA)
        read += page.text.rpartition("\n")[0]
    assert read == text


async def test_a_line_over_a_page_says_how_to_read_its_characters() -> None:
    long = "0123456789" * 200
    runner = desk(f"first\n{long}\nlast\n", Artifacts())
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    page = await runner.run("read_artifact", {"id": id, "start": 1}, ADA)
    *_, how, last = page.text.split("\n")
    found = re.fullmatch(r"\[cut: read its characters with length=(\d+), start=(\d+)\]", how)
    assert found and last == "[lines 1 to 1 of 3; go on with start=2]"
    part = await runner.run("read_artifact", {"id": id, "length": int(found[1]), "start": int(found[2])}, ADA)
    assert part.text.startswith(long[: int(found[1])])


async def test_a_page_fits_into_the_limit_of_the_runner() -> None:
    runner = desk(ROWS, Artifacts(), page=14_500)
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    assert [json.loads(line) for line in await read_all(runner, id)] == ROWS
    assert len(await read_all(runner, id, grep="order")) == len(ROWS)
    part = await runner.run("read_artifact", {"id": id, "start": 0, "length": 5_000}, ADA)
    assert "start=700]" in part.text and "[cut" not in part.text


async def test_nobody_else_reads_an_artifact(make: Make) -> None:
    runner = desk(ROWS, make())
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    others = [EVE, ToolContext(), ToolContext(principal="ada", session="s2"), ToolContext(session="s1")]
    answers = {(await runner.run("read_artifact", {"id": id}, other)).error for other in others}
    assert answers == {f"There is no artifact '{id}' in this session. It may have expired."}
    assert make(across_sessions=True).get(id, others[2]) is not None
    assert make(across_sessions=True).get(id, EVE) is None
    for wrong in ("", "../" + id, id.upper(), id + "\n", id[:-1], "/etc/passwd", id + "/../" + id, "\ud800"):
        assert make().get(wrong, ADA) is None
    assert make().get(id, ADA) is not None


async def test_an_artifact_expires_between_two_pages(make: Make) -> None:
    clock = ManualClock()
    runner = desk(ROWS, make(keep=60), clock=clock)
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    await clock.advance(59)
    assert (await runner.run("read_artifact", {"id": id, "rows": 1}, ADA)).success
    await clock.advance(1)
    assert "expired" in str((await runner.run("read_artifact", {"id": id, "start": 1}, ADA)).error)
    await runner.run("give", {}, ADA)  # removes it
    assert make().get(id, ADA) is None


def test_expired_artifacts_leave_nothing_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    picture = Media("image", b"png", "image/png")
    kept = [Artifacts(folder, keep=1e-6).add([WHOLE, picture], ADA) for _ in range(3)][-1]
    assert kept is not None
    assert sorted(os.listdir(folder)) == [f"{kept.id}{end}" for end in ("-1.csv", "-2.png", ".json")]
    assert (folder / f"{kept.id}-1.csv").read_text() == WHOLE.text  # for a person to open
    assert all((folder / name).stat().st_mode & 0o077 == 0 for name in os.listdir(folder))


sizes = st.lists(st.tuples(st.sampled_from(["ada", "eve", None]), st.integers(1, 40)), max_size=30)


@given(sizes, st.integers(1, 6), st.integers(20, 100))
def test_a_full_place_takes_from_the_principal_with_the_most(
    added: list[tuple[str | None, int]], count: int, size: int
) -> None:
    artifacts, kept = Artifacts(count=count, size=size), dict[str, tuple[str | None, int]]()
    for principal, characters in added:
        principals = {one for one, _ in kept.values()} | {principal}
        before = {one: [size for name, size in kept.values() if name == one] for one in principals}
        new = artifacts.add([Text("x" * characters)], ToolContext(principal=principal))
        if new is not None:
            kept[new.id] = (principal, characters)
        there = {id for id, (name, _) in kept.items() if artifacts.get(id, ToolContext(principal=name))}
        lost = {kept[id][0] for id in kept.keys() - there}
        kept = {id: kept[id] for id in there}
        assert len(kept) <= count and sum(size for _, size in kept.values()) <= size
        for name in lost - {principal}:  # nobody loses an equal share to somebody else
            share = len(principals)
            assert sum(before[name]) > size / share or len(before[name]) > count / share


def test_parallel_readers_find_a_whole_artifact_or_none(make: Make) -> None:
    artifacts = make(count=5)
    blocks = [WHOLE, Media("image", b"\x89PNG" * 100, "image/png")]

    def work(number: int) -> list[bool]:
        context, found = ToolContext(principal=f"p{number % 3}"), []
        for _ in range(6):
            kept = artifacts.add(blocks, context)
            read = kept and artifacts.get(kept.id, context)
            found.append(read is None or list(read.content) == blocks)
        return found

    with ThreadPoolExecutor(8) as threads:
        assert all(all(found) for found in threads.map(work, range(8)))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["'kept'", "Journal.open('calls.db')"])
def test_every_announced_artifact_survives_a_kill(place: str, tmp_path: Path) -> None:
    made = f"Artifacts({place}" + (", working_directory=None)" if "kept" in place else ")")
    program = f"""
from ferrule import Journal, Text, ToolContext
from ferrule.stores import Artifacts
artifacts = {made}
while True:
    print(artifacts.add([Text("x" * 50_000)], ToolContext(principal="ada")).id, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        ids = [next(lines).strip() for _ in range(5)]
        process.send_signal(signal.SIGKILL)  # while it adds the next one
        ids += [line.strip() for line in lines if line.endswith("\n")]
    process.wait(BOUND)
    there = tmp_path / "kept" if "kept" in place else Journal.open(tmp_path / "calls.db")
    for id in ids:
        kept = Artifacts(there).get(id, ToolContext(principal="ada"))
        assert kept is not None and kept.text == "x" * 50_000
    assert Artifacts(there).add([Text("y")], ToolContext(principal="eve")) is not None


def test_an_artifact_without_its_content_is_missing_and_goes_when_it_expires(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    artifacts = Artifacts(folder, keep=1e-6)
    lost = artifacts.add([WHOLE], ADA)
    assert lost is not None
    os.unlink(folder / f"{lost.id}-1.csv")  # as though the program had died before it wrote this
    assert Artifacts(folder).get(lost.id, ADA) is None
    artifacts.add([WHOLE], ADA)
    assert not (folder / f"{lost.id}.json").exists()


def test_an_artifact_that_is_removed_while_it_is_added_leaves_nothing() -> None:
    class Shared(Memory):
        """Another program removes each artifact once its record is there."""

        def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
            if key.startswith("artifact-content/") and new is not None:
                for other, record in self.items("artifact/").items():
                    super().compare_and_set(other, record, None)
            return super().compare_and_set(key, old, new)

    store = Shared()
    added = Artifacts(store).add([WHOLE], ADA)
    assert added is not None and store.items() == {}
    assert Artifacts(store).get(added.id, ADA) is None


def test_a_folder_in_reach_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(ReachableError):
        Artifacts("kept")
    with pytest.raises(ReachableError):
        Artifacts(tmp_path / "notes/kept", apart_from=[tmp_path / "notes"])
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StoreError, match="chmod"):
        Artifacts(tmp_path / "open").add([WHOLE], ADA)
    kept = Artifacts(tmp_path / "kept").add([WHOLE], ADA)
    assert kept is not None
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "kept" / f"{kept.id}-1.csv").unlink()
    (tmp_path / "kept" / f"{kept.id}-1.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match="link"):
        Artifacts(tmp_path / "kept").get(kept.id, ADA)


async def test_what_inner_middleware_removed_is_not_kept() -> None:
    artifacts = Artifacts()
    runner = desk("key sk-proj-" + "a1B2" * 12 + "\n" + "x\n" * 2_000, artifacts, inner=[redact()])
    kept = artifacts.get((await runner.run("give", {}, ADA)).metadata["artifact"]["id"], ADA)
    assert kept is not None and kept.text.startswith("key ***") and "a1B2" not in kept.text
    with pytest.raises(DefinitionError, match="belongs in `around`"):
        Runner([give(1)], inside=[limit_output(1_000, artifacts=artifacts)])


async def test_an_error_is_cut_and_not_kept() -> None:
    result = await desk(ToolError("x" * 5_000), Artifacts()).run("give", {}, ADA)
    assert result.status == "failed" and "artifact" not in result.metadata and len(result.text) <= 1_000


async def test_media_over_the_limit_are_kept_for_the_program() -> None:
    artifacts, picture = Artifacts(), Media("image", b"x" * 4_000_000, "image/png")
    runner = desk([Text("a chart"), picture], artifacts)
    result = await runner.run("give", {}, ADA)
    about = result.metadata["artifact"]
    assert about["shape"] == "text, 1 line, 7 characters; image/png, 4,000,000 bytes"
    kept = artifacts.get(about["id"], ADA)
    assert kept is not None and kept.content == (Text("a chart"), picture)
    result = await desk(picture, artifacts).run("give", {}, ADA)
    assert result.text.endswith("image/png, 4,000,000 bytes. Only the program can open it.]")
    alone = result.metadata["artifact"]["id"]
    read = await runner.run("read_artifact", {"id": alone}, ADA)
    assert read.error == "Only the program can open it: image/png, 4,000,000 bytes."


async def test_a_result_that_cannot_be_kept_is_cut_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for artifacts in (Artifacts(tmp_path / "file"), Artifacts(size=100)):
        result = await desk(ROWS, artifacts).run("give", {}, ADA)
        assert result.success and len(result.text) <= 1_000 and "artifact" not in result.metadata


async def test_a_search_stops_within_its_time_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.tools.artifacts._SEARCH_SECONDS", 0.0)
    rows = [f"{number} " + "ab" * 150 for number in range(400)] + ["x" * 100_000]
    runner = desk(rows, Artifacts())
    id = (await runner.run("give", {}, ADA)).metadata["artifact"]["id"]
    large = "(?:[a-z]{1,40}Q){1,9}|^.(?:7|17|399) "  # it has so many states that the time is looked at
    pages = [await runner.run("read_artifact", {"id": id, "grep": large}, ADA)]
    assert "there was no more time" in pages[0].text
    assert [line.partition(":")[0] for line in await read_all(runner, id, grep=large)] == ["7", "17", "399"]
    last = await runner.run("read_artifact", {"id": id, "grep": large, "start": 400}, ADA)
    assert re.search(r"items over [\d,]+ characters, not searched: 1", last.text)
    for wrong in ("(a", "(?=a)b", r"(a)\1", "a{1000}{1000}", "x" * 1_001):
        refused = await runner.run("read_artifact", {"id": id, "grep": wrong}, ADA)
        assert refused.status in ("failed", "invalid") and len(str(refused.error)) < 400


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": "1"}, {"count": 1.5}, {"count": True}, {"size": -1}])
def test_invalid_options_are_refused(options: Any) -> None:
    with pytest.raises(DefinitionError, match=f"{next(iter(options))}"):
        Artifacts(**options)
    with pytest.raises(DefinitionError, match="must be a folder, a journal"):
        Artifacts(Memory)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="at least 1,000"):
        limit_output(999, artifacts=Artifacts())
    with pytest.raises(DefinitionError, match=r"ferrule\.stores\.Artifacts"):
        limit_output(1_000, artifacts=Memory())  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="page"):
        read_artifact(Artifacts(), page=10)
