"""`ferrule inspect`: its options, its link, its key and the browser."""

from __future__ import annotations

import json
import re
import stat
import sys
import webbrowser
from pathlib import Path

import httpx
import pytest
from served import serve

import preloaded
from ferrule.cli import inspect as command
from ferrule.web.server import open_browser
from waits import BOUND

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["desk_tools.py", "--port", "99999"], "--port 99999 is not a port"),
        (["nothing.py"], "there is no file 'nothing.py'"),
        (["--journal", "./page.db", "desk_tools.py"], "where tools may reach it"),
    ],
)
def test_a_wrong_option_is_explained(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "desk_tools.py").write_text("import ferrule\n@ferrule.tool\ndef f() -> int:\n    'F.'\n    return 1\n")
    (tmp_path / "page.db").touch()
    python = [preloaded.sys.executable, "-m", "ferrule", "inspect", "--no-browser", *words]
    done = preloaded.run(python, cwd=tmp_path, timeout=BOUND)
    assert done.returncode == 2 and said in done.stderr


def test_the_browser_gets_the_link_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with open_browser(str(tmp_path / "inspect")) as open_link:
        open_link("http://127.0.0.1:8765/#secret")
        file = Path(opened[0].removeprefix("file://"))
        assert "secret" not in opened[0] and "#secret" in file.read_text(encoding="utf-8")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.exists()


def test_the_key_is_kept_unless_tools_can_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(HERE)
    kept = command.load_key([])
    assert command.load_key([]) == kept and len(kept) >= 32
    assert command.load_key([str(tmp_path)]) not in (kept, command.load_key([str(tmp_path)]))
    assert command.derive_key(kept, "session") != command.derive_key(kept, "resume")


@pytest.mark.slow
def test_tools_from_elsewhere_are_shown_and_a_read_only_page_calls_none(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [str(HERE.parent / "sources" / "stdio_server.py")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": server}}))
    paths = {"/health": {"get": {"operationId": "health", "summary": "Say how it is."}}}
    api = {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths}
    (tmp_path / "api.json").write_text(json.dumps(api))
    words = ["--mcp", str(tmp_path / "mcp.json"), "--openapi", str(tmp_path / "api.json")]
    words += ["--root", str(tmp_path), "--server", "https://a.example", "--read-only"]
    loaded = rf"\d+ tools from {tmp_path}/mcp.json, {tmp_path}/api.json; guards: .*within\(\), .*; journal: {tmp_path}/"
    with serve(tmp_path, *words) as page, httpx.Client(base_url=page.address, trust_env=False, timeout=BOUND) as person:
        assert re.search(loaded, "".join(page.said))
        fields = {"token": page.link.partition("#")[2]}
        sign_in = person.post("/sign-in", data=fields, headers={"origin": page.address}, follow_redirects=True)
        assert "MCP server calc" in sign_in.text and "API GET /health" in sign_in.text
        assert ">ann</bdi>" in sign_in.text and "read-only</span>" in sign_in.text
        shown = person.get("/tool?name=calc__echo").text
        assert "cannot call tools" in shown and 'action="/tool/call"' not in shown
        assert person.post("/tool/call", headers={"origin": page.address}).status_code == 403
