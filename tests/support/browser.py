"""Chromium without a screen, by the WebDriver protocol (https://www.w3.org/TR/webdriver2/), which is plain JSON."""

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
    """One window of a browser with a profile of its own."""

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

    def script(self, text: str, *args: Any) -> Any:
        return self.do("execute/sync", script=text, args=list(args))

    def act(self, selector: str, *actions: tuple[str, dict[str, Any]]) -> None:
        """Do something to an element. A page may replace it meanwhile: then all is done to the new one."""
        until = time.monotonic() + BOUND
        while True:
            element = f"/session/{self.session}/element/{self.find(selector)}"
            done = (self.client.post(f"{element}/{action}", json=body) for action, body in actions)
            failed = next((response for response in done if not response.is_success), None)
            if failed is None:
                return
            is_replaced = failed.json()["value"]["error"] == "stale element reference"
            assert is_replaced and time.monotonic() < until, failed.text

    def click(self, selector: str) -> None:
        self.act(selector, ("click", {}))

    def send(self, selector: str) -> None:
        """Click a button that sends a form; the end is when the next page is there."""
        self.script("window.sent = true")
        self.click(selector)
        self.wait("return !window.sent && document.readyState == 'complete'", f"{selector} led to no page")

    def wait(self, condition: str, problem: str = "") -> Any:
        """Return what a script gives once that is true. A script that the next page comes in between of is an error,
        and means: not yet."""
        until = time.monotonic() + BOUND
        body = {"script": condition, "args": []}
        while True:
            found = self.client.post(f"/session/{self.session}/execute/sync", json=body).json()["value"]
            if found and not (isinstance(found, dict) and "error" in found):
                return found
            assert time.monotonic() < until, problem or f"{condition} did not come true: {self.text()[:2000]}"
            time.sleep(0.01)

    def write(self, selector: str, text: str) -> None:
        self.act(selector, ("clear", {}), ("value", {"text": text}))

    def text(self) -> str:
        said: str = self.script("return document.body.innerText")
        return said

    def read(self, what: str) -> Any:
        return self.client.get(f"/session/{self.session}/{what}").json()["value"]

    def devtools(self, command: str, **params: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self.do("goog/cdp/execute", cmd=command, params=params)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the page, in CSS pixels, and its colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def picture(self) -> bytes:
        """Return a PNG of what is visible."""
        return base64.b64decode(self.read("screenshot"))

    def close(self) -> None:
        self.client.delete(f"/session/{self.session}")
        self.client.close()


@contextmanager
def driver(port: int = 0) -> Iterator[tuple[str, str]]:
    """The path of Chromium and the address of its driver, which ends with the block."""
    paths = needed("browser")
    with subprocess.Popen([paths["chromedriver"], f"--port={port}"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(found[1] for line in process.stdout if (found := re.search(r"on port (\d+)\.", line)))
            yield paths["chromium"], f"http://127.0.0.1:{found}"
        finally:
            process.terminate()
            process.communicate(timeout=BOUND)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    with driver() as (binary, address):
        opened = Browser(binary, address, profile)
        try:
            yield opened
        finally:
            opened.close()
