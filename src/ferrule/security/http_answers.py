"""Read the answer of a server within bounds: its bytes, its text, its media, and no credential that it repeats."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import ToolError
from ferrule.security.redaction import redact_value
from ferrule.security.redactor import make_redactor
from ferrule.values.content import Media
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    import httpx2  # who writes requests, and sends none, needs only the names of types

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})
IDEMPOTENT_METHODS: Final = SAFE_METHODS | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2, and for QUERY its draft."""
SHORTEST_CREDENTIAL: Final = 8
"""The fewest characters of a credential to look for in answers. Shorter ones would cut ordinary words."""
_LONGEST_SPELLING: Final = 6
"""Most characters of an answer for one character of a credential."""
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
_RAW_DEFLATE: Final = -15
_PLAIN: Final = frozenset({"", "identity"})
_LATER: Final = frozenset({408, 425, 429})
_PERHAPS_LATER: Final = frozenset({409, 421, 423})
_LONGEST_SECONDS: Final = 6
_CHARSET: Final = re.compile(
    r"utf-?(?:8|16|32)(?:-?[lb]e)?|(?:us-)?ascii|latin-?1|iso-?8859-(?:[1-9]|1[0134569])|windows-125[0-8]|cp125[0-8]"
)


class AnswerError(ToolError):
    """An answer that is an error.

    Args:
        metadata: Facts about the answer, such as its status, for the metadata of the result.
    """

    def __init__(self, message: str, metadata: dict[str, Any], **more: Any) -> None:
        super().__init__(message, **more)
        self.metadata = metadata


def add_answer_metadata(result: ToolResult, context: ToolContext) -> ToolResult | None:
    """Add the facts of an `AnswerError` to the metadata of its result, as an `after` hook."""
    error = result.exception
    return result.replace(metadata={**error.metadata, **result.metadata}) if isinstance(error, AnswerError) else None


def _encoding_of(response: httpx2.Response) -> str:
    return str(response.headers.get("content-encoding", "")).strip().lower()


def is_bounded_encoding(response: httpx2.Response) -> bool:
    """Return whether `read_body` can unpack the body: it is plain, or packed once with gzip or deflate.

    Brotli, zstd or two methods in a row can turn a kilobyte into any size.
    """
    encoding = _encoding_of(response)
    return encoding in _PLAIN or encoding in _WINDOW_BITS


async def read_body(response: httpx2.Response, most: int) -> tuple[bytes, bool]:
    """Return the beginning of the body, and whether that is the whole of it.

    Args:
        most: Most bytes to receive, and most bytes to unpack.

    Raises:
        httpx2.DecodingError: The body is not what its `Content-Encoding` says.
        httpx2.TransportError: As any transport.
    """
    if response.is_stream_consumed:  # a transport for tests gives a whole answer
        return response.content[:most], len(response.content) <= most
    unpack = _Unpacker(_encoding_of(response))
    found, received = bytearray(), 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        found += unpack(chunk, most + 1 - len(found))
        if len(found) > most or received > most:
            return bytes(found[:most]), False
        if unpack.has_ended:  # what follows would be kept in memory, and never read
            break
    return bytes(found), True


class _Unpacker:
    """Unpacks a body chunk by chunk, with a bound for each."""

    def __init__(self, encoding: str) -> None:
        self._bits = _WINDOW_BITS.get(encoding)
        self._unpack = None if self._bits is None else zlib.decompressobj(self._bits)
        self._is_first = True

    def __call__(self, chunk: bytes, most: int) -> bytes:
        """Return at most `most` bytes, or a plain chunk as it is. It loses the rest of the chunk.

        Raises:
            httpx2.DecodingError: The chunk is not packed in this way.
        """
        if self._unpack is None:
            return chunk
        try:
            unpacked = self._unpack.decompress(chunk, most)
        except zlib.error as error:
            if not self._is_first or self._bits != _WINDOW_BITS["deflate"]:
                import httpx2

                raise httpx2.DecodingError(f"the body cannot be unpacked: {error}") from error
            # Many servers send deflate without its envelope: https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1.2
            self._bits, self._unpack = _RAW_DEFLATE, zlib.decompressobj(_RAW_DEFLATE)
            return self(chunk, most)
        self._is_first = False
        return unpacked

    @property
    def has_ended(self) -> bool:
        return self._unpack is not None and self._unpack.eof


def decode_body(response: httpx2.Response, body: bytes) -> str:
    """Return the body as text. Any other codec than these is read as UTF-8: some take minutes for a megabyte."""
    named = (response.charset_encoding or "").lower().replace("_", "-")
    try:
        return body.decode(named if _CHARSET.fullmatch(named) else "utf-8", "replace")
    except LookupError:  # such as ISO-8859-12, which does not exist
        return body.decode("utf-8", "replace")


def media_type(response: httpx2.Response) -> str:
    """Return the type of the body in lower case and without parameters, such as `text/html`; empty if it has none."""
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def is_json_type(media: str) -> bool:
    """Return whether bodies of this type, perhaps with parameters, are JSON."""
    kind = media.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def is_text_type(media: str) -> bool:
    """Return whether bodies of this type, other than JSON, are texts."""
    endings = ("+xml", "/xml", "/yaml", "/javascript", "/x-ndjson", "/graphql")
    return media.startswith("text/") or media.endswith(endings)


def to_media(media: str, body: bytes) -> Media:
    """Return a body that is no text as a block."""
    kind: Any = media.partition("/")[0] if media.startswith(("image/", "audio/")) else "file"
    try:
        return Media(kind, body, media)
    except TypeError:  # no valid type
        return Media("file", body, "application/octet-stream")


def may_succeed_later(status: int) -> bool | None:
    """Return whether a request may have another outcome if it is sent again; `None` if the status does not say."""
    if status in _PERHAPS_LATER:
        return None
    return status >= 500 or status in _LATER


def read_retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of `Retry-After`, or `None` without a number of these."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() and len(seconds) <= _LONGEST_SECONDS else None


def redact_credentials(value: Any, credentials: list[str], is_whole: bool = True) -> Any:
    """Return the value without the credentials of the request, in its texts, keys and bytes.

    Some servers send back their input. If a text is cut off, a possible beginning of a credential is removed from its
    end.
    """
    value = redact_value(value, make_redactor(credentials))
    return value if is_whole or not credentials else value[: -_LONGEST_SPELLING * max(map(len, credentials))]
