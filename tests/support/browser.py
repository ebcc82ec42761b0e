"""Chromium without a screen, for tests of pages."""

from __future__ import annotations

import base64
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from needed import needed
from waits import BOUND


class Browser:
    """Chromium without a screen, by the WebDriver protocol (https://www.w3.org/TR/webdriver2/), which is plain JSON."""

    ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
    ARGUMENTS = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --window-size=900,1150"
    )

    def __init__(self, binary: str, driver: str, profile: Path) -> None:
        arguments = [*self.ARGUMENTS.split(), f"--user-data-dir={profile}"]
        options = {"binary": binary, "args": arguments}
        self.client = httpx.Client(base_url=driver, timeout=BOUND, trust_env=False)
        asked = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self.session = self.client.post("/session", json=asked).json()["value"]["sessionId"]

    def do(self, command: str, **body: Any) -> Any:
        response = self.client.post(f"/session/{self.session}/{command}", json=body)
        assert response.is_success, response.text
        return response.json()["value"]

    def find(self, selector: str) -> str:
        found: str = self.do("element", using="css selector", value=selector)[self.ELEMENT]
        return found

    def script(self, text: str) -> Any:
        return self.do("execute/sync", script=text, args=[])

    def wait_for(self, text: str) -> Any:
        """Return the value of a script as soon as it is true. While a page is replaced, no script runs: not yet."""
        until = time.monotonic() + BOUND
        while True:
            response = self.client.post(f"/session/{self.session}/execute/sync", json={"script": text, "args": []})
            if response.is_success and (value := response.json()["value"]):
                return value
            assert time.monotonic() < until, f"never true: {text}"

    def send(self, selector: str) -> None:
        """Click a button that sends a form; the end is when the next page is there."""
        self.script("window.sent = true")
        self.do(f"element/{self.find(selector)}/click")
        self.wait_for("return !window.sent && document.readyState == 'complete'")

    def write(self, selector: str, text: str) -> None:
        element = self.find(selector)
        self.do(f"element/{element}/clear")
        self.do(f"element/{element}/value", text=text)

    def text(self) -> str:
        said: str = self.script("return document.body.innerText")
        return said

    def read(self, what: str) -> Any:
        return self.client.get(f"/session/{self.session}/{what}").json()["value"]

    def save_screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.read("screenshot")))

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of Chromium's own protocol (https://chromedevtools.github.io/devtools-protocol/)."""
        return self.do("goog/cdp/execute", cmd=command, params=parameters)

    def close(self) -> None:
        self.client.delete(f"/session/{self.session}")
        self.client.close()


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser whose files are in `profile`; without one, the test is skipped or fails."""
    paths = needed("browser")
    with subprocess.Popen([paths["chromedriver"], "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(found[1] for line in process.stdout if (found := re.search(r"on port (\d+)\.", line)))
            opened = Browser(paths["chromium"], f"http://127.0.0.1:{port}", profile)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            process.terminate()
            process.communicate(timeout=BOUND)
