"""Workers of DBOS in processes of their own, started with the command that a user has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 60


def environment(url: str, **limits: Any) -> dict[str, str]:
    """What a worker, or a program that sends to it, is started with."""
    path = os.pathsep.join([str(HERE), os.path.abspath(os.environ["PYTHONPATH"])])
    return {**os.environ, "PYTHONPATH": path, "DBOS_SYSTEM_DATABASE_URL": url, "FAR_LIMITS": json.dumps(limits)}


@contextmanager
def worker(url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker that takes calls, as `start` begins it; it is told to stop at the end, where it still runs."""
    started = start(url, **options)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
        try:
            started.wait(SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        assert started.stderr is not None
        started.stderr.close()


def start(
    url: str, *, how: str = "started_worker.py", place: str = "far_worker:WORKER", folder: Path = HERE, **limits: Any
) -> subprocess.Popen[str]:
    """A worker that takes calls."""
    started = subprocess.Popen(
        [sys.executable, str(HERE / how), "worker", place],
        cwd=folder,
        env=environment(url, **limits),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    said = []
    for line in started.stderr:
        said.append(line)
        if line.startswith("ferrule: taking calls"):
            return started
    raise AssertionError(f"no worker: {''.join(said)}")


@contextmanager
def cluster(resources: dict[str, float] | None = None, **variables: str) -> Iterator[None]:
    """A cluster of Ray whose actors find the handlers."""
    import ray

    variables["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    ray.init(num_cpus=2, resources=resources, runtime_env={"env_vars": variables}, **quiet)
    yield
    ray.shutdown()
