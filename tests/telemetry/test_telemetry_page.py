"""docs/telemetry.md: each of its programs, and one with Logfire, runs as a file of its own, and what it sends reaches a
collector."""

from __future__ import annotations

import gzip
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", f"## Spans\n{PAGE}", re.M | re.S)
NAMED = dict(PROGRAMS)


class Collector:
    """The spans and metrics that a program sent over OTLP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[str] = []

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/v1/traces"):
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        elif path.endswith("/v1/metrics"):
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [one.name for scope in measured.scope_metrics for one in scope.metrics]

    def attributes(self, name: str) -> dict[str, Any]:
        (span,) = [span for span in self.spans if span.name == name]
        return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector on this machine, and its address."""
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *given: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def output_of(program: str, folder: Path, **environment: str) -> str:
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    given = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, str(file)], cwd=folder, env=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_first_program_shows_both_spans(tmp_path: Path) -> None:
    said = output_of(NAMED["Spans"], tmp_path)
    assert "execute_tool refund {" in said and "'ferrule.decision': 'allow'" in said
    assert "execute_tool unknown {" in said and "refnd" not in said


def test_spans_and_metrics_reach_a_collector(tmp_path: Path) -> None:
    with collecting() as (collector, address):
        said = output_of(NAMED["A collector"], tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert '{"paid": 80}' in said
    found = collector.attributes("execute_tool find_order")
    assert (found["gen_ai.agent.name"], found["ferrule.status"]) == ("support", "ok")
    assert {"ferrule.calls", "gen_ai.execute_tool.duration", "ferrule.call.queued"} <= {*collector.metrics}


WITH_LOGFIRE = """
import logfire

from ferrule import Runner, tool
from ferrule.middleware import trace

logfire.configure(service_name="support-desk", send_to_logfire="if-token-present")


@tool(read_only=True)
async def find_order(order: str) -> dict[str, int]:
    '''Find an order.'''
    return {"paid": 80}


tracing = trace(content=True)
runner = Runner([find_order], around=[tracing], observers=[tracing.observe])
with logfire.span("answer a customer"):
    print(runner.run_sync("find_order", {"order": "4711"}).text)
"""


def test_with_logfire_the_span_is_a_child_of_the_programs(tmp_path: Path) -> None:
    with collecting() as (collector, address):
        output_of(WITH_LOGFIRE, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address, LOGFIRE_CONSOLE="false")
    (above,) = [span for span in collector.spans if span.name == "answer a customer"]
    (ours,) = [span for span in collector.spans if span.name == "execute_tool find_order"]
    assert ours.parent_span_id == above.span_id and ours.trace_id == above.trace_id
    found = collector.attributes("execute_tool find_order")
    assert (found["gen_ai.tool.call.arguments"], found["gen_ai.tool.call.result"]) == (
        '{"order": "4711"}',
        '{"paid": 80}',
    )


def test_a_log_line_names_its_call(tmp_path: Path) -> None:
    said = output_of(NAMED["The log"], tmp_path)
    assert re.search(r"^WARNING fails call_\w+ of ada: tool 'fails' raised$", said, re.M)
