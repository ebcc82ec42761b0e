"""A chat service over HTTP: each person has a token, rights and limits, and answers are streamed.

Start it, with the SDK of the model (`pip install "ferrule[anthropic,examples]"`), and ask:

    export ANTHROPIC_API_KEY=…
    TOKENS='{"ada": "a-long-random-token"}' python examples/chat_service.py
    curl -N localhost:8000/conversations/first -H "Authorization: Bearer a-long-random-token" \\
        -H "Content-Type: application/json" -d '{"text": "Which notes do I have?"}'

The answer is a stream of server-sent events: `text`, `call`, `result`, and at the end `done` or `error`:

    event: call
    data: {"id":"toolu_01A","name":"list_notes"}

    event: text
    data: {"text":"You have two notes."}

When the client closes the connection, the run and its calls are cancelled.

What to change first:
- `Door.admit`: ask your identity provider who a token belongs to.
- `Notes` and the tools below it: your database. `Runner(deps=…)` passes it to the tools as `context.deps`.
- `own_notes`: what a principal may do. Guards judge every call, so a tool does not check again.
- `Limits`: each process counts its own. With several processes, send one person's requests to the same one.
- `Service.histories`: conversations stay in memory, without an end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Path, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrule import Decision, DefinitionError, Event, Runner, ToolCall, ToolContext, ToolError, deny, models, tool
from ferrule.approval import printable
from ferrule.loop import Finished, LoopEvent, ModelText, Run, run
from ferrule.middleware import budget, rate

LOG = logging.getLogger("chat_service")
LONGEST_BODY = 256 * 1024  # bytes; the longest question is shorter, even if each character is an escape
TOO_LONG = HTTPException(413, f"a question has at most {LONGEST_BODY} bytes")
TEAM = "team"  # everybody may read the notes of this owner, and nobody may write them


class Notes:
    """The notes of each owner by name, in place of your database."""

    def __init__(self) -> None:
        self.by_owner: dict[str, dict[str, str]] = defaultdict(dict)

    async def names(self, owner: str) -> list[str]:
        return sorted(self.by_owner[owner])

    async def read(self, owner: str, name: str) -> str:
        return self.by_owner[owner][name]

    async def write(self, owner: str, name: str, text: str) -> None:
        self.by_owner[owner][name] = text


@tool(read_only=True)
async def list_notes(context: ToolContext[Notes], owner: str | None = None) -> list[str]:
    """List the names of notes.

    Args:
        owner: Leave it out for the person's own notes; "team" has notes for everybody.
    """
    return await context.deps.names(owner or context.principal)


@tool(read_only=True)
async def read_note(name: str, context: ToolContext[Notes], owner: str | None = None) -> str:
    """Read a note."""
    try:
        return await context.deps.read(owner or context.principal, name)
    except KeyError:
        raise ToolError(f"there is no note {name!r}; list_notes shows the names") from None


@tool
async def write_note(name: str, text: str, context: ToolContext[Notes], owner: str | None = None) -> str:
    """Write a note. It replaces a note with the same name."""
    await context.deps.write(owner or context.principal, name, text)
    return f"wrote {name}"


def own_notes(call: ToolCall, context: ToolContext[Notes]) -> Decision | None:
    """Allow everybody to use their own notes and to read those of the team."""
    owner = call.arguments["owner"] or context.principal
    if owner == context.principal or (owner == TEAM and context.tool.read_only):
        return None
    return deny(f"{context.principal} has no right to that; leave the owner out, or read the notes of {TEAM!r}")


@dataclass(frozen=True)
class Limits:
    """The limits of one principal."""

    calls_at_once: int = 4
    calls_per_minute: int = 60
    calls_in_total: int = 10_000  # as long as the process lives
    turns_per_answer: int = 10
    seconds_per_call: float = 30


@dataclass
class Service:
    """The state that all requests share."""

    model: models.Model
    runner: Runner
    limits: Limits
    histories: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    answering: set[str] = field(default_factory=set)


class Events(asyncio.Queue[LoopEvent | Exception]):
    """The events of a run that the client has not received yet."""


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def get_service(request: Request) -> Service:
    return request.app.state.service


Shared = Annotated[Service, Depends(get_service)]


class Door:
    """Check the token and the length of a request before FastAPI reads its body."""

    def __init__(self, app: ASGIApp, people: Mapping[str, str]) -> None:
        self.app = app
        self.people = people

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        left = LONGEST_BODY

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise TOO_LONG
            return message

        try:
            scope.setdefault("state", {})["principal"] = self.admit(Headers(scope=scope))
        except HTTPException as refused:
            answer = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive_limited, send)

    def admit(self, headers: Headers) -> str:
        """Return the principal of the token. Comparing hashes leaks nothing about a token by its time."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        principal = self.people.get(hash_token(token))
        if scheme.lower() != "bearer" or principal is None:
            raise HTTPException(401, "the token is unknown", headers={"WWW-Authenticate": "Bearer"})
        length = headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > LONGEST_BODY:
            raise TOO_LONG
        return principal


def get_principal(request: Request) -> str:
    """Return the principal that the door has admitted."""
    return request.state.principal


Principal = Annotated[str, Depends(get_principal)]
Conversation = Annotated[str, Path(max_length=100)]


class Question(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


async def run_answer(
    question: Question, conversation: Conversation, principal: Principal, service: Shared
) -> AsyncIterator[Events]:
    """Yield the events of the run that answers. The run stops when the client disconnects."""
    if principal in service.answering:
        raise HTTPException(429, "your last question has no answer yet; wait for it, or close its connection")
    service.answering.add(principal)
    try:
        history = service.histories.get((principal, conversation), [])
        messages = [*history, *service.model.user(question.text)]
        context = ToolContext(principal=principal, session=conversation)
        turns = service.limits.turns_per_answer
        model_run = run(service.model, messages, service.runner, context=context, max_turns=turns)
        events = Events()
        # A separate task, because FastAPI cancels the stream again and again, even while stopped calls clean up. The
        # run ends in order, and its history has the outcome of each call.
        follower = asyncio.create_task(follow(model_run, events))
        try:
            yield events
        finally:
            model_run.cancel(now=True)
            await follower
            service.histories[principal, conversation] = model_run.messages
    finally:
        service.answering.discard(principal)


async def follow(model_run: Run, events: Events) -> None:
    """Put the events of a run into a queue, and the error that ended it."""
    try:
        async for event in model_run:
            events.put_nowait(event)
    except Exception as error:
        events.put_nowait(error)


def to_server_event(event: LoopEvent | Exception) -> ServerSentEvent | None:
    """Return an event for the client, without arguments and results, which may be long."""
    match event:
        case ModelText(text=text):
            return ServerSentEvent(event="text", data={"text": text})
        case Event(kind="tool:pre", call=call):
            return ServerSentEvent(event="call", data={"id": call.id, "name": call.name})
        case Event(kind="tool:post" | "tool:error", call=call, data=data):
            return ServerSentEvent(event="result", data={"id": call.id, "status": data["result"].status})
        case Finished(result=result):
            return ServerSentEvent(event="done", data={"status": result.status, "reason": result.reason})
        case Exception() as error:  # the response has started, so an error has to be an event
            LOG.error("the model did not answer", exc_info=error)
            retry_after = getattr(error, "retry_after", None)  # of models.RateLimited and models.Overloaded
            data = {"reason": "the model did not answer", "retry_after": retry_after}
            return ServerSentEvent(event="error", data=data)
        case _:
            return None


async def answer(events: Annotated[Events, Depends(run_answer)]) -> AsyncIterator[ServerSentEvent]:
    """Answer a question, event by event."""
    event: LoopEvent | Exception | None = None
    while not isinstance(event, Finished | Exception):
        event = await events.get()
        if (line := to_server_event(event)) is not None:
            yield line


def create_app(model: models.Model, notes: Notes, people: Mapping[str, str], limits: Limits | None = None) -> FastAPI:
    """Return the service. `people` has the principal of each token, by `hash_token(token)`."""
    limits = limits or Limits()
    runner = Runner(
        [list_notes, read_note, write_note],
        guards=[own_notes],
        inside=[
            budget(calls=limits.calls_in_total, by="principal"),
            rate(limits.calls_per_minute, seconds=60, by="principal"),
        ],
        per_principal=limits.calls_at_once,
        timeout=limits.seconds_per_call,
        deps=notes,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with runner:  # when the server stops, it waits for running calls, then cancels them
            yield

    app = FastAPI(title="Chat service", lifespan=lifespan, dependencies=[Depends(HTTPBearer())])  # for the API page
    app.add_middleware(Door, people=people)
    app.state.service = Service(model, runner, limits)
    app.post("/conversations/{conversation}", response_class=EventSourceResponse)(answer)
    return app


def main() -> None:
    try:
        people = {hash_token(token): principal for principal, token in json.loads(os.environ["TOKENS"]).items()}
    except (KeyError, ValueError, AttributeError):
        raise SystemExit(
            'TOKENS names the people and their tokens: TOKENS=\'{"ada": "a-long-random-token"}\''
        ) from None
    try:
        model = models.Anthropic("claude-sonnet-5-5")
    except DefinitionError as error:  # the SDK or its key is missing
        raise SystemExit(printable(str(error))) from None
    uvicorn.run(create_app(model, Notes(), people))


if __name__ == "__main__":
    main()
