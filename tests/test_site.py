"""The site of `make docs` loads nothing from other hosts and has a page for each module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
from mkdocs_hooks import ROOT, public_modules, public_names, reference_page

from browser import browser as start_browser
from needed import needed

pytestmark = pytest.mark.slow
LOADS = {"script", "link", "img", "iframe", "source", "audio", "video", "object", "embed", "use", "image"}
NO_FETCH = {"canonical", "next", "prev"}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does. With `--quiet`, mkdocs does not count its warnings."""
    [made] = re.findall(r"\$\(BIN\)/(mkdocs build .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", *made.split(), "--config-file", root / "mkdocs.yml", "-d", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, where it leads, and the places that it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADS and given.get("rel") not in NO_FETCH:
            self.loaded += [given[name] for name in ("src", "href", "data", "srcset", "xlink:href") if name in given]
        self.loaded += re.findall(r"url\(([^)]*)\)", given.get("style", ""))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


def foreign(addresses: Iterator[str] | list[str]) -> list[str]:
    return [address for address in addresses if re.match(r"['\"]?\s*(?:[a-z][a-z0-9+.-]*:)?//", address, re.IGNORECASE)]


@pytest.mark.large
def test_no_page_and_no_style_loads_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 40 and all(page.loaded for page in pages.values())
    assert {str(file): found for file, page in pages.items() if (found := foreign(page.loaded))} == {}
    texts = [file.read_text(encoding="utf-8") for file in [*site.rglob("*.css"), *pages]]
    loaded = [address for text in texts for address in re.findall(r"(?:url\(|@import\s+)([^);]*)", text)]
    assert any("data:" in address for address in loaded) and foreign(loaded) == []
    # The theme's script asks unpkg.com for what draws diagrams, and GitHub and GitLab for the number of stars.
    assert not [text for text in texts if 'class="mermaid"' in text or 'data-md-component="source"' in text]
    assert foreign(["https://a.example/x.js", "//a.example/x", "a/x"]) == ["https://a.example/x.js", "//a.example/x"]


@pytest.mark.large
def test_every_link_leads_to_an_existing_place(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for file, page in pages.items():
        for link in page.links:
            path, _, place = unquote(link).partition("#")
            if ":" in path or file.name == "404.html":
                continue
            target = (file.parent / path).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.large
@pytest.mark.parametrize("module", public_modules())
def test_a_public_module_has_a_page_with_each_of_its_names(site: Path, module: str) -> None:
    text = (site / reference_page(module)).with_suffix(".html").read_text(encoding="utf-8")
    missing = [name for name in public_names(module) if not re.search(rf'id="ferrule\.[\w.]*\b{name}"', text)]
    assert missing == [name for name in ("Field",) if module == "ferrule"]


@pytest.mark.large
def test_the_index_for_models_names_every_page(site: Path, pages: dict[Path, Page]) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# Ferrule\n\n> .+\n\n## ", text)
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert "Models and frameworks: Providers" in sections and len({*sections}) == len(sections)
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", ">"))]
    named = [re.fullmatch(r"- \[[^\]]+\]\(([^)]+)\): \S.*", line) for line in lines]
    files = [site / match[1] for match in named if match]
    assert len(files) == len(lines) and all(file.is_file() for file in files)
    assert {file.with_suffix("") for file in files} == {file.with_suffix("") for file in pages} - {site / "404"}
    assert [line for line in lines if not line.endswith(".")] == []


SMALL = "docs_dir: docs\nnav: [index.md]\nhooks: []\nplugins: []\n"
"""The settings of the site, for other pages and without what is made from the source."""


def test_a_broken_link_or_orphan_page_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{SMALL}", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    index, alone = tmp_path / "docs" / "index.md", tmp_path / "docs" / "alone.md"
    index.write_text("# A heading\n\n[here](#a-heading)\n", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 0, done.stderr

    alone.write_text("# In no navigation\n\n[a](nowhere.md), [b](index.md#no-such-heading)\n", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert [said for said in ("alone.md", "'nowhere.md'", "#no-such-heading'") if said not in done.stderr] == []


SHOWN = ("index", "start/first-tool", "guards", "options", "reference/ferrule")
SCREENSHOTS = ROOT / "build" / "screenshots"
AXE = """
axe.run(document).then(found => window.faults = found.violations.map(
    rule => [rule.impact, rule.id, rule.nodes.map(node => node.html.slice(0, 200) + node.failureSummary)]));
"""


@contextmanager
def serving(site: Path) -> Iterator[str]:
    """The address of the site, on a server for its search and its settings."""
    handler = partial(QuietHandler, directory=os.fspath(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *given: object) -> None: ...


@pytest.mark.large
@pytest.mark.parametrize("page", SHOWN)
def test_no_page_has_a_serious_fault_of_accessibility(page: str, site: Path, tmp_path: Path) -> None:
    """The page is also left as pictures in build/screenshots, to look at."""
    axe = Path(needed("axe")["axe"]).read_text(encoding="utf-8")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    faults = {}
    with serving(site) as address, start_browser(tmp_path) as browser:
        # The theme stores the scheme that a reader has chosen.
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")
        for width, (number, scheme) in product((390, 1280), enumerate(("default", "slate"))):
            size = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.devtools("Emulation.setDeviceMetricsOverride", **size)
            browser.do("url", url=f"{address}/{page}.html")
            press = f"document.getElementById('__palette_{number}').click()"
            browser.wait(f"{press}; return document.body.dataset.mdColorScheme == '{scheme}'")
            name = f"{page.replace('/', '-')}-{width}-{scheme}"
            (SCREENSHOTS / f"{name}.png").write_bytes(browser.picture())
            browser.script(axe + AXE)
            found = browser.wait("return window.faults")
            if serious := [fault for fault in found if fault[0] in ("serious", "critical")]:
                faults[name] = serious
            if browser.script("return document.documentElement.scrollWidth") > width:
                faults[f"{name} scrolls sideways"] = []
    assert faults == {}
