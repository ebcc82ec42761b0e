"""A chat service over HTTP: each person has a token, rights and limits of their own, and answers are streamed.

Start it, with the SDK of the model (`pip install "ferrule[anthropic,examples]"`), and ask:

    export ANTHROPIC_API_KEY=…
    TOKENS='{"ada": "a-long-random-token"}' python examples/chat_service.py
    curl -N localhost:8000/conversations/first -H "Authorization: Bearer a-long-random-token" \\
        -H "Content-Type: application/json" -d '{"text": "Which notes do I have?"}'

The answer is a stream of server-sent events: `text`, `call`, `result`, and at the end `done` or `error`. When the
client closes the connection, the run is cancelled, with whatever it is calling.

What to change first:
- `Door.admit`: who a token belongs to. Ask your own identity provider there.
- `Notes` and the tools below it: your database. It stands in `Runner(deps=…)`; the tools find it in `context.deps`.
- `own_notes`: what a principal may do. Guards are asked before every call, so a tool need not ask again.
- `Limits`. They are counted in this process; with several, keep one person's requests in one of them.
- `Service.histories`: conversations are kept in memory, and never forgotten.
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
LONGEST_BODY = 256 * 1024  # bytes; the longest question has less, with each of its characters as an escape
TOO_LONG = HTTPException(413, f"a question has at most {LONGEST_BODY} bytes")
TEAM = "team"  # everybody reads the notes of this owner, and nobody writes them


class Notes:
    """Stands in for your database: the notes of each owner, by name."""

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
        owner: Left out, the person's own notes; "team", those for everybody.
    """
    return await context.deps.names(owner or context.principal)


@tool(read_only=True)
async def read_note(name: str, context: ToolContext[Notes], owner: str | None = None) -> str:
    """Read a note."""
    try:
        return await context.deps.read(owner or context.principal, name)
    except KeyError:
        raise ToolError(f"there is no note {name!r}; list_notes says which there are") from None


@tool
async def write_note(name: str, text: str, context: ToolContext[Notes], owner: str | None = None) -> str:
    """Write a note, over one that has the same name."""
    await context.deps.write(owner or context.principal, name, text)
    return f"wrote {name}"


def own_notes(call: ToolCall, context: ToolContext[Notes]) -> Decision | None:
    """Everybody has their own notes, and reads those of the team. Each call here says whose notes it is about."""
    owner = call.arguments["owner"] or context.principal
    if owner == context.principal or (owner == TEAM and context.tool.read_only):
        return None
    return deny(f"{context.principal} has no right to that; leave the owner out, or read those of {TEAM!r}")


@dataclass(frozen=True)
class Limits:
    """What one principal may use."""

    calls_at_once: int = 4
    calls_in_a_minute: int = 60
    calls_altogether: int = 10_000  # as long as the process lives
    turns_of_an_answer: int = 10
    seconds_of_a_call: float = 30


@dataclass
class Service:
    """What the requests share."""

    model: models.Model
    runner: Runner
    limits: Limits
    histories: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    answering: set[str] = field(default_factory=set)


class Events(asyncio.Queue[LoopEvent | Exception]):
    """What has happened in a run, until the client is told."""


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def service_of(request: Request) -> Service:
    return request.app.state.service


Shared = Annotated[Service, Depends(service_of)]


class Door:
    """Who asks, and how long a question may be, before anything of it is read: FastAPI reads a body first of all."""

    def __init__(self, app: ASGIApp, people: Mapping[str, str]) -> None:
        self.app = app
        self.people = people

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        left = LONGEST_BODY

        async def bounded() -> Message:
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
            await self.app(scope, bounded, send)

    def admit(self, headers: Headers) -> str:
        """Whose token it is. Digests are compared, so how long it takes says nothing of a token."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        principal = self.people.get(digest(token))
        if scheme.lower() != "bearer" or principal is None:
            raise HTTPException(401, "this token belongs to nobody", headers={"WWW-Authenticate": "Bearer"})
        length = headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > LONGEST_BODY:
            raise TOO_LONG
        return principal


def principal_of(request: Request) -> str:
    """Whom the door let in."""
    return request.state.principal


Principal = Annotated[str, Depends(principal_of)]
Conversation = Annotated[str, Path(max_length=100)]


class Question(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


async def answering(
    question: Question, conversation: Conversation, principal: Principal, service: Shared
) -> AsyncIterator[Events]:
    """The events of the run that answers. It ends with the request: when the client has gone, it is stopped."""
    if principal in service.answering:
        raise HTTPException(429, "your last question is being answered; wait for its end, or close its connection")
    service.answering.add(principal)
    try:
        history = service.histories.get((principal, conversation), [])
        messages = [*history, *service.model.user(question.text)]
        context = ToolContext(principal=principal, session=conversation)
        turns = service.limits.turns_of_an_answer
        going = run(service.model, messages, service.runner, context=context, max_turns=turns)
        events = Events()
        # In a task of its own: FastAPI cancels what it streams again and again, also while calls that are stopped
        # still clean up. So the run comes to its end, and its history says what became of each call.
        following = asyncio.create_task(follow(going, events))
        try:
            yield events
        finally:
            going.cancel(now=True)
            await following
            service.histories[principal, conversation] = going.messages
    finally:
        service.answering.discard(principal)


async def follow(going: Run, events: Events) -> None:
    """Put the events of a run into a queue, and the error that ended it."""
    try:
        async for event in going:
            events.put_nowait(event)
    except Exception as error:
        events.put_nowait(error)


def told(event: LoopEvent | Exception) -> ServerSentEvent | None:
    """What of a run's events the client hears: no arguments and no results, which may be long."""
    match event:
        case ModelText(text=text):
            return ServerSentEvent(event="text", data={"text": text})
        case Event(kind="tool:pre", call=call):
            return ServerSentEvent(event="call", data={"id": call.id, "name": call.name})
        case Event(kind="tool:post" | "tool:error", call=call, data=data):
            return ServerSentEvent(event="result", data={"id": call.id, "status": data["result"].status})
        case Finished(result=result):
            return ServerSentEvent(event="done", data={"status": result.status, "reason": result.reason})
        case Exception() as error:  # the head of the response has been sent: an error can only be an event
            LOG.error("the model did not answer", exc_info=error)
            retry_after = getattr(error, "retry_after", None)  # of models.RateLimited and models.Overloaded
            data = {"reason": "the model did not answer", "retry_after": retry_after}
            return ServerSentEvent(event="error", data=data)
        case _:
            return None


async def answer(events: Annotated[Events, Depends(answering)]) -> AsyncIterator[ServerSentEvent]:
    """Answer a question, event by event."""
    event: LoopEvent | Exception | None = None
    while not isinstance(event, Finished | Exception):
        event = await events.get()
        if (line := told(event)) is not None:
            yield line


def create_app(model: models.Model, notes: Notes, people: Mapping[str, str], limits: Limits | None = None) -> FastAPI:
    """The service. `people` has the principal of each token's `digest`."""
    limits = limits or Limits()
    runner = Runner(
        [list_notes, read_note, write_note],
        guards=[own_notes],
        inside=[
            budget(calls=limits.calls_altogether, by="principal"),
            rate(limits.calls_in_a_minute, seconds=60, by="principal"),
        ],
        per_principal=limits.calls_at_once,
        timeout=limits.seconds_of_a_call,
        deps=notes,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with runner:  # when the server stops, what runs is waited for, and then cancelled
            yield

    app = FastAPI(title="Chat service", lifespan=lifespan, dependencies=[Depends(HTTPBearer())])  # the page says so
    app.add_middleware(Door, people=people)
    app.state.service = Service(model, runner, limits)
    app.post("/conversations/{conversation}", response_class=EventSourceResponse)(answer)
    return app


def main() -> None:
    try:
        people = {digest(token): principal for principal, token in json.loads(os.environ["TOKENS"]).items()}
    except (KeyError, ValueError, AttributeError):
        raise SystemExit('TOKENS says who may ask: TOKENS=\'{"ada": "a-long-random-token"}\'') from None
    try:
        model = models.Anthropic("claude-sonnet-5-5")
    except DefinitionError as error:  # the SDK or its key is missing
        raise SystemExit(printable(str(error))) from None
    uvicorn.run(create_app(model, Notes(), people))


if __name__ == "__main__":
    main()
