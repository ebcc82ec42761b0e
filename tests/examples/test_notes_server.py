"""The notes server: what reads is free, what changes is asked about with a diff, and nothing leaves the folder."""

import notes_server
import pytest

from ferrule import Diff


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setattr(notes_server, "NOTES", tmp_path)
    (tmp_path / "today.md").write_text("buy milk", encoding="utf-8")
    return tmp_path


async def run(name, arguments, approve=None):
    runner = notes_server.runner if approve is None else notes_server.runner.replace(approve=approve)
    return await runner.run(name, arguments)


async def test_notes_are_listed_and_read_without_a_question(notes):
    assert (await run("list_notes", {})).output == ["today"]
    assert (await run("read_note", {"name": "today"})).output == "buy milk"
    assert "list_notes" in (await run("read_note", {"name": "tomorrow"})).error


async def test_a_note_is_written_once_a_person_saw_the_difference(notes):
    seen = []

    def approve(call, decision, context):
        seen.append(context.tool.preview(call.arguments))
        return True

    assert (await run("write_note", {"name": "today", "text": "rest"})).status == "denied"
    assert (notes / "today.md").read_text(encoding="utf-8") == "buy milk"
    assert (await run("write_note", {"name": "today", "text": "rest"}, approve)).success
    assert seen == [Diff("buy milk", "rest", "today")]
    assert (notes / "today.md").read_text(encoding="utf-8") == "rest"


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../b"])
async def test_files_outside_the_folder_stay_closed(notes, name):
    (notes.parent / "outside.md").write_text("secret", encoding="utf-8")
    assert "secret" not in (await run("read_note", {"name": name})).text
    written = await run("write_note", {"name": name, "text": "x"}, lambda call, decision, context: True)
    assert written.status == "failed"
    assert (notes.parent / "outside.md").read_text(encoding="utf-8") == "secret"
