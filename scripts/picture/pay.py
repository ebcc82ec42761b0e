import asyncio

from office import pay

from ferrule import Journal, Runner, ToolCall

runner = Runner([pay], journal=Journal.open("calls.db"))
call = ToolCall("call_1", "pay", {"invoice": "I-8", "euros": 90})
result = asyncio.run(runner.run(call, session="october"))
print(f"{result.status}: {result.text}")
