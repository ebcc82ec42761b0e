"""Ask a person in a chat or by mail: a gateway gets the question by HTTP, and sends the answer to an endpoint.

Both messages are signed as Standard Webhooks are: `webhook-signature` has `v1,` and the base64 of an HMAC-SHA256 over
the id, the timestamp and the body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from ferrule.approval.live import LiveQuestion
from ferrule.approval.request import Answer, Asked, run_blocking
from ferrule.approval.web import AlreadyAnswered, AnswerRefused, NotWaiting, OwnCall, WaitingCall, Web, web
from ferrule.errors import DefinitionError
from ferrule.security.redaction import redact_value
from ferrule.security.redactor import make_redactor
from ferrule.stores.store import KEY_BYTES
from ferrule.values.call import ToolCall
from ferrule.values.call_key import hash_parts
from ferrule.values.content import clean_text, to_jsonable
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, allow, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import SECRET_STARS, is_same_json, loads_finite

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("ferrule")
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers: TypeAlias = Mapping[str, str]

QUESTION, ANSWER = "approval.question", "approval.answer"
_TOLERANCE: Final = 300.0
"""The seconds that the clocks of the two sides may differ."""
_POST_SECONDS: Final = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_MOST_BODY: Final = 1_000_000
_MOST_NAME: Final = 200
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_STATUSES: Final[Mapping[type[AnswerRefused], int]] = {NotWaiting: 410, OwnCall: 403}
"""The HTTP statuses of answers that do not count; 409 for any other."""


class Reply(NamedTuple):
    """The reply to an answer: the HTTP status, and a text. See docs/guides/webhook-approvals.md."""

    status: int
    text: str


class _NotPosted(Exception):
    """The gateway refuses the question."""


class _Misfit(Exception):
    """The body is no answer that can be used."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def webhook(
    url: str,
    secret: bytes | Iterable[bytes],
    *,
    answer_url: str | None = None,
    queue: Web | None = None,
    expires: float = 900.0,
) -> Webhook:
    """Make an approver that posts each question to a gateway, and waits for the signed answer.

    See docs/guides/webhook-approvals.md. `pip install "ferrule[http]"` installs the client.

        hook = approval.webhook("https://gateway.example.com/ask", secret)
        runner = Runner(tools, approve=hook)
        application.mount("/approvals", hook.endpoint)

    Args:
        url: The address of the gateway: https, or http on this machine. Redirects are not followed.
        secret: Signs both messages: at least 32 bytes. If you give several, the first one signs, and each may verify.
        answer_url: The address of your endpoint, for the gateway.
        queue: The queue of the questions, which a page may answer, too; by default one in memory.
        expires: The seconds after which the call is denied.

    Raises:
        DefinitionError: An argument is wrong, or a package is missing.
    """
    secrets = [secret] if isinstance(secret, bytes) else list(secret)
    keys: list[Any] = secrets
    if not keys or not all(isinstance(one, bytes) and len(one) >= KEY_BYTES for one in keys):
        raise DefinitionError(f"webhook(secret) must be at least {KEY_BYTES} bytes: secrets.token_bytes({KEY_BYTES})")
    if not 0 < expires < float("inf"):
        raise DefinitionError(f"webhook(expires) must be a number of seconds above 0, not {expires!r}")
    _check_url(url)
    try:
        import httpx2  # noqa: F401
    except ImportError:
        raise DefinitionError('webhook needs httpx2: pip install "ferrule[http]"') from None
    return Webhook(url, secrets, answer_url, web() if queue is None else queue, expires)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except (ValueError, TypeError, AttributeError):
        host, port, parts = "", None, urlsplit("")
    is_local = host in ("localhost", "127.0.0.1", "::1")
    if port == 0 or not host or (parts.scheme != "https" and not (parts.scheme == "http" and is_local)):
        raise DefinitionError(f"webhook(url) is an https address, or http on this machine, not {url!r}")


class Webhook:
    """The approver made by `webhook`, with the endpoint for the answers. See docs/guides/webhook-approvals.md."""

    def __init__(self, url: str, secrets: list[bytes], answer_url: str | None, queue: Web, expires: float) -> None:
        self.queue = queue
        self._url = url
        self._secrets = secrets
        self._answer_url = answer_url
        self._expires = expires
        self._channel = hash_parts("webhook", url)

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, request: Asked) -> Answer:
        """Post the question, and return the first answer to it. Deny if there is none in time."""
        redactor = make_redactor(request.context.secrets)
        shown = redact_value(to_jsonable(thaw(request.arguments)), redactor)
        expires_at = time.time() + self._expires
        live, waiting = await self.queue.ask(request, channel=self._channel, shown=shown, expires_at=expires_at)
        posting: asyncio.Task[None] | None = None
        try:
            if waiting.request.problem is not None:
                return request.deny(waiting.request.problem)
            posting = asyncio.ensure_future(self._post(waiting.id, self._make_body(waiting, shown, redactor)))
            posting.add_done_callback(lambda task: live.wake())
            denial = await self._wait(request, live, posting)
        finally:
            if posting is not None:
                posting.cancel()
            decision = await self.queue.end(waiting.id)
        return Answer(denial if decision is None else decision)

    async def _wait(self, request: Asked, live: LiveQuestion, posting: asyncio.Task[None]) -> Decision:
        """Wait for the answer. Return a denial if there is none in time."""
        clock = request.context.clock
        now = time.time if clock is None else clock.now
        deadline = now() + self._expires
        while await live.read_answer() is None and now() < deadline:
            if posting.done() and isinstance(error := posting.exception(), _NotPosted):
                log.error("a question about %r was not asked: %s", request.call.name, error)
                return deny("the question could not be asked")
            if posting.done():
                posting.result()
            await live.wait()
        return deny("nobody answered in time")

    # -- the question --------------------------------------------------------------------------------------------------

    def _make_body(self, waiting: WaitingCall, shown: Any, redactor: Callable[[str], str]) -> bytes:
        asked = waiting.request
        texts = {
            "text": asked.text,
            "tool": asked.call.name,
            "reason": asked.decision.reason,
            "rule": asked.decision.rule,
            "schema": thaw(asked.decision.schema),
            "principal": asked.context.principal,
            "session": asked.context.session,
        }
        facts = {"type": QUESTION, "id": waiting.id, "digest": waiting.digest, "into": asked.decision.into}
        times = {"expires_at": waiting.expires_at, "answer_url": self._answer_url, "arguments": shown}
        return json.dumps({**redact_value(texts, redactor), **facts, **times}).encode()

    async def _post(self, id: str, body: bytes) -> None:
        """Post the question until the gateway takes it, with growing pauses.

        Raises:
            _NotPosted: The gateway refuses it.
        """
        import httpx2

        from ferrule.security.http import without_http_logs

        pause = _FIRST_PAUSE
        with without_http_logs():
            async with httpx2.AsyncClient(timeout=_POST_SECONDS, follow_redirects=False, trust_env=False) as client:
                while not await self._post_once(client, id, body):
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)

    async def _post_once(self, client: httpx2.AsyncClient, id: str, body: bytes) -> bool:
        """Post the question. Return False if that may work later."""
        import httpx2

        headers = {"content-type": "application/json", **sign_message(self._secrets[0], id, body)}
        try:
            async with client.stream("POST", self._url, content=body, headers=headers) as response:
                status = response.status_code
        except httpx2.TransportError as error:
            log.warning("the gateway of a question is tried again: %s", type(error).__name__)
            return False
        if status < 300:
            return True
        if status >= 500 or status in _TRY_AGAIN:
            log.warning("the gateway of a question is tried again: it answers %s", status)
            return False
        raise _NotPosted(f"its gateway answers {status}")

    # -- the answer ----------------------------------------------------------------------------------------------------

    async def endpoint(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Take one answer, as an ASGI app."""
        if scope["type"] != "http":
            return
        reply = Reply(405, "An answer comes by POST.")
        if scope["method"] == "POST":
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            body = await _read_body(receive)
            reply = Reply(413, "An answer is too long.") if body is None else await self.receive(headers, body)
        data = json.dumps({"status": reply.text}).encode()
        lines = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": reply.status, "headers": lines})
        await send({"type": "http.response.body", "body": data})

    async def receive(self, headers: Headers, body: bytes) -> Reply:
        """Take one answer, for a server without ASGI. Return its HTTP status and a text.

        Args:
            headers: The headers of the request, with names in lower case.
            body: The body as it was sent.
        """
        message = verify_message(self._secrets, headers, body)
        if message is None:
            return Reply(401, "The signature or the timestamp is wrong.")
        try:
            return await self._take(message, _read_answer(body))
        except _Misfit as error:
            return Reply(error.status, str(error))
        except AnswerRefused as error:
            return Reply(_STATUSES.get(type(error), 409), f"{str(error)[:1].upper()}{str(error)[1:]}.")
        except Exception:
            log.exception("an answer could not be taken")
            return Reply(503, "The answer could not be taken. Send it again.")

    async def _take(self, message: str, answer: _GivenAnswer) -> Reply:
        found = await self.queue.find_live(answer.id, self._channel)
        if isinstance(found, WaitingCall):
            waiting = found
            given = await run_blocking(lambda: _make_decision(waiting, answer))
            try:
                await self.queue.answer(answer.id, answer.digest, given, by=answer.by, message=message)
                return Reply(200, "accepted")
            except AlreadyAnswered:
                found = await self.queue.find_live(answer.id, self._channel)
        if found == message:  # the gateway sends it again
            return Reply(200, "accepted")
        if found is None:
            raise NotWaiting("no call waits for this answer: it is unknown, has ended or has expired")
        raise AlreadyAnswered("this answer has no effect: somebody else has answered before")


class _GivenAnswer(NamedTuple):
    id: str
    digest: str
    is_yes: bool
    by: str
    reason: str
    arguments: dict[str, Any] | None


def _read_answer(body: bytes) -> _GivenAnswer:
    """Return the answer in a body.

    Raises:
        _Misfit: It is none.
    """
    try:
        found: Any = loads_finite(body.decode())
    except (ValueError, RecursionError):
        raise _Misfit("The body is no JSON.") from None
    if not isinstance(found, dict) or found.get("type") != ANSWER:
        raise _Misfit(f'An answer is an object with "type": "{ANSWER}".')
    texts = {name: found.get(name) for name in ("id", "digest", "answer", "by")}
    for name, value in texts.items():
        if not isinstance(value, str) or not value.strip() or len(value) > _MOST_NAME:
            raise _Misfit(f'"{name}" is a text of at most {_MOST_NAME} characters.')
    if found["answer"] not in ("approve", "deny"):
        raise _Misfit('"answer" is "approve" or "deny".')
    reason, arguments = found.get("reason") or "", found.get("arguments")
    if not isinstance(reason, str) or not (arguments is None or isinstance(arguments, dict)):
        raise _Misfit('"reason" is a text, and "arguments" an object.')
    by = clean_text(found["by"]).strip()
    return _GivenAnswer(found["id"], found["digest"], found["answer"] == "approve", by, clean_text(reason), arguments)


def _make_decision(waiting: WaitingCall, answer: _GivenAnswer) -> Decision:
    """Return the decision of an answer.

    Changed arguments are validated. An unchanged one keeps its value, even if the gateway saw stars.

    Raises:
        _Misfit: The arguments do not fit.
    """
    asked = waiting.request
    if not answer.is_yes:
        return deny(answer.reason.strip() or "the person who was asked said no")
    if asked.decision.schema is not None:
        try:
            asked.check_answer(answer.arguments)
        except ValueError as error:
            raise _Misfit(str(error), 422) from None
        return allow(answer.arguments)
    if answer.arguments is None:
        return allow()
    shown, into = thaw(waiting.record["live"])["shown"], asked.decision.into
    changed = {
        name: value
        for name, value in answer.arguments.items()
        if name == into or name not in shown or not is_same_json(shown[name], value)
    }
    if any(SECRET_STARS in json.dumps(value, ensure_ascii=False) for value in changed.values()):
        raise _Misfit("A value with hidden parts can only be kept or replaced as a whole.", 422)
    merged = {**thaw(asked.call.arguments), **changed}
    if into is not None or not changed:
        return allow(merged) if into is not None else allow()
    try:
        return asked.with_arguments(merged).approve().decision
    except ValueError as error:
        raise _Misfit(f"The arguments do not fit: {error}", 422) from None


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None if it is too long."""
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] == "http.disconnect":
            return bytes(body)
        body += part.get("body", b"")
        if len(body) > _MOST_BODY:
            return None
        if not part.get("more_body"):
            return bytes(body)


# -- signatures --------------------------------------------------------------------------------------------------------


def sign_message(secret: bytes, id: str, body: bytes, *, at: float | None = None) -> dict[str, str]:
    """Return the headers that sign a message, as Standard Webhooks do. See docs/guides/webhook-approvals.md.

    Args:
        at: Seconds since the epoch; by default now.
    """
    stamp = str(int(time.time() if at is None else at))
    return {
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{_make_signature(secret, id, stamp, body)}",
    }


def verify_message(secrets: Iterable[bytes], headers: Headers, body: bytes) -> str | None:
    """Return the id of a message that one of the secrets has signed in the last five minutes, or None.

    See docs/guides/webhook-approvals.md.
    """
    id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    is_number = stamp.isascii() and stamp.isdecimal() and len(stamp) < 12
    if not id or not is_number or abs(time.time() - int(stamp)) > _TOLERANCE:
        return None
    from hmac import compare_digest  # loads OpenSSL

    given = [one.removeprefix("v1,").encode() for one in headers.get("webhook-signature", "").split(" ")[:10]]
    expected = [_make_signature(secret, id, stamp, body).encode() for secret in secrets]
    return id if any(compare_digest(one, two) for one in given for two in expected) else None


def _make_signature(secret: bytes, id: str, stamp: str, body: bytes) -> str:
    from base64 import b64encode
    from hmac import digest  # loads OpenSSL

    return b64encode(digest(secret, f"{id}.{stamp}.".encode() + body, "sha256")).decode()
