"""The notes server: what reads is free, what changes is asked about with a diff, and nothing leaves the folder."""

import asyncio

import notes_server
import pytest

from ferrule import Diff


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setattr(notes_server, "NOTES", tmp_path)
    (tmp_path / "today.md").write_text("buy milk", encoding="utf-8")
    return tmp_path


def run(name, arguments, approve=None):
    runner = notes_server.runner if approve is None else notes_server.runner.replace(approve=approve)
    return asyncio.run(runner.run(name, arguments))


def test_notes_are_listed_and_read_without_a_question(notes):
    assert run("list_notes", {}).output == ["today"]
    assert run("read_note", {"name": "today"}).output == "buy milk"
    assert "list_notes" in run("read_note", {"name": "tomorrow"}).error


def test_a_note_is_written_once_somebody_has_seen_the_difference(notes):
    seen = []

    def approve(call, decision, context):
        seen.append(context.tool.preview(call.arguments))
        return True

    assert run("write_note", {"name": "today", "text": "rest"}).status == "denied"
    assert (notes / "today.md").read_text(encoding="utf-8") == "buy milk"
    assert run("write_note", {"name": "today", "text": "rest"}, approve).success
    assert seen == [Diff("buy milk", "rest", "today")]
    assert (notes / "today.md").read_text(encoding="utf-8") == "rest"


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../b"])
def test_nothing_outside_of_the_folder_is_read_or_written(notes, name):
    (notes.parent / "outside.md").write_text("secret", encoding="utf-8")
    assert "secret" not in run("read_note", {"name": name}).text
    assert run("write_note", {"name": name, "text": "x"}, lambda call, decision, context: True).status == "failed"
    assert (notes.parent / "outside.md").read_text(encoding="utf-8") == "secret"
