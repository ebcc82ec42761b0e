"""The data desk: a scripted model queries 5 MB, pages through the rows, searches them and draws a chart."""

from __future__ import annotations

import json
import re
from typing import Any

from data_desk import ROWS, ask

from ferrule.models import Scripted

Messages = list[dict[str, Any]]


def last(messages: Messages) -> str:
    return json.dumps(messages[-1]["content"])


async def test_a_model_pages_through_a_query_of_five_megabytes(tmp_path):
    found: dict[str, Any] = {}

    def read(**arguments: Any) -> Any:
        def step(messages: Messages) -> Any:
            found.setdefault("id", re.search(r"whole result is artifact ([0-9a-f]{32})", last(messages)))
            found[str(arguments)] = last(messages)
            return [("read_artifact", {"id": found["id"][1], **arguments})]

        return step

    def answer(messages: Messages) -> str:
        found["chart"] = messages[-1]["content"]
        return "May was best."

    steps = [
        [("query", {"sql": "SELECT * FROM orders"})],
        read(start=20_000, rows=3),
        read(grep="customer 996\\b", rows=2),
        lambda messages: (found.update(grep=last(messages)), [("chart", {"sql": MONTHS})])[1],
        answer,
    ]
    shown: list[str] = []
    folder = tmp_path / "kept"
    assert await ask(Scripted(steps), "Which month was best?", folder, shown.append) == "May was best."

    cut = found[str({"start": 20_000, "rows": 3})]
    assert len(cut) < 20_000 and f"JSON, {ROWS:,} rows" in cut
    assert "columns id, month, customer, euros, note" in cut
    page = found[str({"grep": "customer 996\\b", "rows": 2})]
    assert "rows 20000 to 20002 of 41,203; go on with start=20003" in page
    assert "996: {" in found["grep"] and "1993: {" in found["grep"]
    assert "image/png" in str(found["chart"])
    assert shown[-1].startswith("The whole result: ") and shown[-1].endswith("-1.json")
    whole = (folder / shown[-1].rpartition("/")[2]).read_text()
    assert len(whole) > 5_000_000 and len(json.loads(whole)) == ROWS


MONTHS = "SELECT month, sum(euros) FROM orders GROUP BY month"
