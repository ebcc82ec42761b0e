"""What it costs to make tools of an OpenAPI document with 800 operations, and to export them.

Run: python benchmarks/openapi.py [FILE …]

The document is made here: a hundred resources with the operations, parameters and schemas of a usual API, whose schemas
refer to each other. A document of your own is measured as well.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferrule.openapi.toolset import import_operations
from ferrule.providers import anthropic, openai_responses
from ferrule.sources import openapi

RESOURCES, ROUNDS = 100, 5
TEXT = {"type": "string"}


def schema(number: int) -> dict[str, Any]:
    """A resource of twelve properties, two of which are other resources."""
    properties: dict[str, Any] = {
        "id": {"type": "string", "readOnly": True, "pattern": "^[a-z0-9]{8}$"},
        "name": {"type": "string", "maxLength": 200, "description": "What people call it."},
        "state": {"enum": ["new", "open", "done"]},
        "created_at": {"type": "string", "format": "date-time", "readOnly": True},
        "price": {"type": ["number", "null"], "minimum": 0},
        "tags": {"type": "array", "items": TEXT, "maxItems": 20},
        "address": {"type": "object", "properties": {"street": TEXT, "city": TEXT, "zip": {"type": "string"}}},
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "parent": {"$ref": f"#/components/schemas/Thing{number // 2}"},
        "next": {"anyOf": [{"$ref": f"#/components/schemas/Thing{(number + 1) % RESOURCES}"}, {"type": "null"}]},
    }
    return {"type": "object", "properties": properties, "required": ["name"], "description": f"A thing {number}."}


def document() -> dict[str, Any]:
    """The whole of it."""
    identifier = {"in": "path", "name": "id", "required": True, "schema": TEXT}
    page = [
        {"in": "query", "name": "limit", "schema": {"type": "integer", "maximum": 100, "default": 20}},
        {"in": "query", "name": "after", "schema": TEXT, "description": "Where the page begins."},
        {
            "in": "query",
            "name": "filter",
            "style": "deepObject",
            "schema": {"type": "object", "properties": {"q": TEXT}},
        },
    ]
    paths: dict[str, Any] = {}
    for number in range(RESOURCES):
        # In requests a thing refers to others by their ids, as in most APIs; in answers it holds them.
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/New{number}"}}}
        answer = {
            "200": {
                "description": "",
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/Thing{number}"}}},
            }
        }
        body = {"required": True, "content": content}
        about = {"responses": answer, "tags": [f"group {number % 10}"]}

        def operation(name: str, text: str, number: int = number, about: Any = about, **more: Any) -> dict[str, Any]:
            return {"operationId": f"{name}_thing_{number}", "summary": text, **about, **more}

        paths[f"/things{number}"] = {
            "get": operation("list", "List things, newest first.", parameters=page),
            "post": operation("create", "Create a thing.", requestBody=body),
        }
        paths[f"/things{number}/{{id}}"] = {
            "parameters": [identifier],
            "get": operation("get", "Get one thing."),
            "put": operation("replace", "Replace a thing.", requestBody=body),
            "patch": operation("update", "Change some of a thing.", requestBody=body),
            "delete": operation("delete", "Delete a thing for ever."),
        }
        paths[f"/things{number}/{{id}}/close"] = {
            "parameters": [identifier],
            "post": operation("close", "Close a thing."),
            "delete": operation("reopen", "Open a thing again."),
        }
    schemas = {f"Thing{number}": schema(number) for number in range(RESOURCES)}
    for number in range(RESOURCES):
        fields = {
            key: one for key, one in schema(number)["properties"].items() if key not in ("parent", "next", "address")
        }
        more = {"parent_id": TEXT, "address": {"$ref": "#/components/schemas/Address"}}
        schemas[f"New{number}"] = {"type": "object", "properties": {**fields, **more}, "required": ["name"]}
    schemas["Address"] = schema(0)["properties"]["address"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def seconds(work: Callable[[], Any]) -> float:
    """The median of some runs, in process time."""
    found = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def measure(given: Any, server: str = "https://api.example.com") -> None:
    tools = openapi(given, server=server, budget=None)
    report = tools.report
    made = seconds(lambda: openapi(given, server=server, budget=None))
    print(f"  {len(tools)} tools, {len(report.left_out)} left out, {report.tokens:,} tokens")
    print(f"  made     {made * 1000:7.0f} ms (asked for: 1000 ms)")
    for provider in (anthropic, openai_responses):
        new = iter([openapi(given, server=server, budget=None) for _ in range(ROUNDS)])  # nothing of it is kept yet
        spent = seconds(lambda provider=provider, new=new: provider.tools(next(new)))  # type: ignore[misc]
        print(f"  export   {spent * 1000:7.1f} ms by {provider.__name__.rpartition('.')[2]} (asked for: 50 ms)")


if __name__ == "__main__":
    print(f"a mapping, Python {sys.version.split()[0]}")
    measure(document())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "api.json"
        file.write_text(json.dumps(document()))
        print(f"a file of {file.stat().st_size / 1e6:.1f} MB of JSON")
        measure(file)
    for name in sys.argv[1:]:
        print(name)
        spent = seconds(lambda name=name: import_operations(name, calls=False, roots=Path(name).parent))  # type: ignore[misc]
        found = import_operations(name, calls=False, roots=Path(name).parent)
        exported = time.process_time()
        anthropic.tools(found)
        exported = time.process_time() - exported
        print(f"  {len(found)} tools, {len(found.report.left_out)} left out, in {spent * 1000:.0f} ms", end="")
        print(f", exported in {exported * 1000:.0f} ms")
