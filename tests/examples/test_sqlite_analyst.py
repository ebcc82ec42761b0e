"""The analyst over a small database: what it answers, what it cannot do, and what it stops."""

from __future__ import annotations

import os
import runpy
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_analyst import analyst

import preloaded
from ferrule import Runner

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples/sqlite_analyst.py"
TOOLS = ROOT / "examples/sqlite_tools.py"
BUSY = """from ferrule.models import RateLimited

def busy(messages):
    raise RateLimited("come back in an hour")

steps = [busy]
"""
ONE_STEP = "SELECT trim(hex(zeroblob(400000)), replace(hex(zeroblob(10000)), '0', 'b') || '0')"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "sales? #1.db"  # as it may not stand in a URI
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE sales (month TEXT, euros INTEGER);"
            "INSERT INTO sales VALUES ('May', 10), ('May', 30), ('June', 25);"
            "CREATE TABLE people (name TEXT, salary INTEGER);"
            "INSERT INTO people VALUES ('ada', 4711);"
            "CREATE VIEW staff AS SELECT name FROM people;"
        )
    return path


def runner(database, **settings) -> Runner:
    """The program's own; with other settings, its tools in this process, where they can be set."""
    if not settings:
        return analyst(database)
    names = runpy.run_path(str(TOOLS))
    names["authorize"].__globals__.update(settings)
    context = {"database": str(database)}
    return Runner([names[name].replace(isolation=None, context=context) for name in ("schema", "query")])


def query(database, sql, **settings):
    return runner(database, **settings).run_sync("query", {"sql": sql})


def run(database, script):
    command = [sys.executable, PROGRAM, database, "Which month was best?", "Why?", "--model", f"scripted:{script}"]
    return preloaded.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, timeout=60)


def test_it_answers_two_questions_in_one_conversation(database, tmp_path):
    script = tmp_path / "steps.py"
    script.write_text("""steps = [
        [("schema", {})],
        [("query", {"sql": "SELECT month, sum(euros) FROM sales GROUP BY month ORDER BY 2 DESC"})],
        lambda messages: "May." if '[["May", 40], ["June", 25]]' in messages[-1]["content"] else "Another.",
        lambda messages: f"After {len(messages)} messages: {messages[-1]['content']}",
    ]""")
    asked = run(database, script)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[-2:] == ["May.", "After 7 messages: Why?"]


def test_a_wrong_file_and_an_api_error_are_one_line(database, tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(BUSY)
    for asked, told in (
        (run(tmp_path / "none.db", script), "none.db' is not a file"),
        (run(script, script), "steps.py' is not a SQLite database"),
        (run(database, script), "The model's API: come back in an hour"),
    ):
        assert asked.returncode != 0 and told in asked.stderr and "Traceback" not in asked.stderr


def listening():
    """In the child: a program that a job in the background starts would not hear of an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for a child")
def test_an_interrupt_ends_an_endless_query(database, tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(f"steps = [[('query', {{'sql': {ENDLESS!r}}})]]")
    command = [sys.executable, "-u", PROGRAM, database, "How many?", "--model", f"scripted:{script}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=listening, **pipes) as asked:
        assert asked.stdout is not None and asked.stdout.readline().startswith("→ query")
        asked.send_signal(signal.SIGINT)
        said, failed = asked.communicate(timeout=60)
    assert (asked.returncode, said.strip()) == (130, "Stopped.") and "Traceback" not in failed


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO sales VALUES ('July', 1)",
        "VACUUM INTO 'copy.db'",
        "ATTACH 'other.db' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT 1; DROP TABLE sales",
    ],
)
def test_everything_but_reading_is_refused(database, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = database.read_bytes()
    result = query(database, sql)
    assert result.status == "failed" and "Only one SELECT" in result.error, result
    assert database.read_bytes() == before and list(tmp_path.iterdir()) == [database]


def test_only_readable_tables_are_read_and_shown(database):
    shown = runner(database).run_sync("schema", {}).output
    assert "CREATE TABLE sales (month TEXT, euros INTEGER)" in shown and len(shown) == 3
    readable = {"READABLE": {"sales", "staff"}}
    assert query(database, "SELECT sum(euros) FROM sales", **readable).output["rows"] == [[65]]
    for sql in (
        "SELECT count(*) FROM PEOPLE",
        "SELECT name FROM staff",  # a view of people
        "WITH staff AS (SELECT * FROM people) SELECT * FROM staff",
        "SELECT sql FROM sqlite_master",
    ):
        assert query(database, sql, **readable).status == "failed", sql
    assert not [sql for sql in runner(database, **readable).run_sync("schema", {}).output if "salary" in sql]


@pytest.mark.large
@pytest.mark.parametrize("sql", [ENDLESS, ONE_STEP], ids=["endless", "one step"])
async def test_a_query_past_its_deadline_leaves_nothing_running(database, sql):

    async with runner(database) as own:
        assert (await own.run("query", {"sql": "SELECT 1"})).output["rows"] == [[1]]
        result = await own.run("query", {"sql": sql}, timeout=1)
        assert result.status == "timeout" and own.left_running == 0
        assert (await own.run("query", {"sql": "SELECT 1"})).output["rows"] == [[1]]


def test_a_query_cannot_take_all_memory(database):
    columns = ", ".join(["printf('%.*c', 999999, 'x')"] * 101)
    assert "too many columns" in query(database, f"SELECT {columns}").error
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000)"
    sorting = query(database, f"{many} SELECT hex(zeroblob(400000)) || i FROM n ORDER BY 1")
    assert "more than 200,000,000 bytes of memory" in sorting.error
    assert query(database, "SELECT sum(euros) FROM sales").output["rows"] == [[65]]


def test_rows_and_values_are_bounded(database):
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) SELECT i FROM n"
    found = query(database, numbers).output
    assert len(found["rows"]) == 200 and found["complete"] is False
    assert "too big" in query(database, "SELECT zeroblob(1000000000)").error
    odd = query(database, "SELECT x'00ff', printf('%.*c', 1000, 'x'), 9e999, NULL, CAST(x'ff' AS TEXT)")
    [row] = odd.output["rows"]
    assert row == ["[2 bytes]", f"{'x' * 300}… [1000 characters]", "inf", None, "\ufffd"]
