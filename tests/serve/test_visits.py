"""A person is sent to an address: by a served tool, by a server upstream, and never to a wrong one."""

from __future__ import annotations

from typing import Any

import httpx2
import mcp_types as wire
import pytest
from connected import ENVELOPE, MODERN, Person, both_eras, call, text
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from test_over_http import listening, request

from cast import Person as Approver
from ferrule import DefinitionError, Runner, ToolContext, mcp, serve, tool
from waits import BOUND

URL = "https://pay.example.com/orders/42"


@tool
async def order(context: ToolContext) -> Any:
    return "ordered" if context.answer is not None else serve.ask_to_visit(URL, "Pay 12 € for the tea.")


class Visitor(Person):
    """A person who agrees to visit an address, and declines everything else."""

    async def __call__(self, context: Any, params: Any) -> wire.ElicitResult:
        self.asked.append(params)
        return wire.ElicitResult(action="accept" if params.mode == "url" else "decline")


@both_eras
async def test_a_client_sends_its_person_to_the_address(era: str) -> None:
    person = Visitor()
    assert text(await call(Runner([order]), era, "order", {}, person)) == "ordered"
    [asked] = person.asked
    assert isinstance(asked, wire.ElicitRequestURLParams) and asked.url == URL
    assert "Pay 12 € for the tea." in asked.message and "pay.example.com" in asked.message
    assert era == MODERN or asked.elicitation_id


@pytest.mark.parametrize("declared", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
async def test_a_client_that_cannot_show_an_address_reads_what_it_has_to_declare(declared: Any) -> None:
    headers, body = request("tools/call", {"name": "order"})
    body["params"]["_meta"] = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": declared}
    async with listening(serve.mcp(Runner([order]))) as url:
        async with httpx2.AsyncClient(timeout=BOUND) as http:
            error = (await http.post(f"{url}/mcp", headers=headers, json=body)).json()["error"]
    assert error["code"] == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}


def server_with(url: str, way: str) -> mcp.Memory:
    """A server that sends a person to an address: by its result, while its tool runs, or by an error."""

    async def list_tools(context: Any, params: Any) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[wire.Tool(name="buy", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: wire.CallToolRequestParams) -> Any:
        visit = wire.ElicitRequestURLParams(message="Pay", url=url, elicitation_id="1")
        if way == "result" and params.input_responses is None:
            request = wire.ElicitRequest(params=wire.ElicitRequestURLParams(message="Pay", url=url))
            return wire.InputRequiredResult(input_requests={"pay": request})
        if way == "running":
            answer = await context.session.elicit_url("Pay", url, "1")
            if answer.action != "accept":
                return wire.CallToolResult(content=[wire.TextContent(text=answer.action)], is_error=True)
        if way == "error" and not tried:
            tried.append(url)
            data = {"elicitations": [visit.model_dump(by_alias=True, exclude_none=True)]}
            raise MCPError(wire.URL_ELICITATION_REQUIRED, "pay first", data)
        return wire.CallToolResult(content=[wire.TextContent(text="bought")])

    tried: list[str] = []
    server: Server[Any] = Server("shop", on_list_tools=list_tools, on_call_tool=call_tool)
    return mcp.Memory(server, mode="auto" if way == "result" else "legacy")


async def buy(url: str, way: str) -> tuple[Any, list[str]]:
    person = Approver()
    async with mcp.connect(server_with(url, way)) as toolset:
        return await Runner(toolset, approve=person).run("buy"), [one.reason for one in person.decisions]


WAYS = pytest.mark.parametrize("way", ["result", "running", "error"])


@WAYS
@pytest.mark.parametrize(("url", "host"), [(URL, "pay.example.com"), ("http://127.0.0.1:8000/pay", "127.0.0.1")])
async def test_an_approver_reads_the_address_and_its_host(url: str, host: str, way: str) -> None:
    result, [reason] = await buy(url, way)
    assert result.text == "bought" and f"It wants you to go to {host}: {url}\n" in reason


WRONG = [
    "http://pay.example.com/",
    "https://pay.example.com@evil.example/",
    "https://pay.example.com\\@evil.example/",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "https://p\u0430y.example.com/",
    "https://pay.example.com/\u202egnp.exe",
    f"https://pay.example.com/{'a' * 5_000}",
]


@WAYS
@pytest.mark.parametrize("url", WRONG)
async def test_nobody_is_sent_to_a_wrong_address(url: str, way: str) -> None:
    result, reasons = await buy(url, way)
    assert result.status == "failed" and reasons == [] and url not in str(result.error)


@pytest.mark.parametrize("url", WRONG)
def test_a_served_tool_sends_nobody_to_a_wrong_address(url: str) -> None:
    with pytest.raises(DefinitionError, match="ask_to_visit"):
        serve.ask_to_visit(url, "Pay.")


@both_eras
async def test_a_gateway_passes_the_address_on(era: str) -> None:
    person = Visitor()
    async with mcp.connect(server_with(URL, "result"), name="shop") as toolset:
        assert text(await call(Runner(toolset), era, "shop__buy", {}, person)) == "bought"
    [asked] = person.asked
    assert isinstance(asked, wire.ElicitRequestURLParams) and asked.url == URL
