"""Files that a call uploads by their paths, and the preview of a call that uploads one.

A path is read only if a `within` guard has let this very call have it.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferrule import ToolContext, ToolError
from ferrule.openapi.arguments import Argument, Signature
from ferrule.openapi.operations import Operation
from ferrule.openapi.servers import Server
from ferrule.security.paths import ALLOWED_PATHS, open_exactly

MOST_UPLOADED: Final = 50_000_000
"""Most bytes of all files that one call uploads by their paths."""
_BASE64_PADDING: Final = "="


async def read_uploads(signature: Signature, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, bytes]:
    """Return the content of the files that the arguments name by path.

    Raises:
        ToolError: No `within` guard has allowed a path, or a file cannot be read or is too large.
    """
    found: dict[str, bytes] = {}
    left = MOST_UPLOADED
    for argument, file in _list_files(signature, arguments):
        path = file.get("path")
        if path is None or path in found:
            continue
        if context.running_call is None or path not in ALLOWED_PATHS.get(context.running_call, ()):
            raise _unread_error(argument, "this program lets no upload read files; give its text or data")
        try:
            found[path] = await asyncio.to_thread(_read_upload, path, left)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise _unread_error(argument, f"the file {os.path.basename(path)!r:.200} cannot be read: {why}") from None
        left -= len(found[path])
    return found


def _unread_error(argument: Argument, why: str) -> ToolError:
    return ToolError(f"{argument.name!r}: {why}.", executed=False, retryable=False)


def _read_upload(path: str, most: int) -> bytes:
    with os.fdopen(open_exactly(path), "rb") as file:
        content = file.read(most + 1) or b""  # some files of /proc give None
    if len(content) > most:
        raise ValueError(f"all files of a call have {MOST_UPLOADED:,} bytes at most")
    return content


def _list_files(signature: Signature, arguments: Mapping[str, Any]) -> Iterator[tuple[Argument, Mapping[str, Any]]]:
    """Yield the files that a call uploads, with their arguments."""
    for argument in signature.arguments:
        value = arguments.get(argument.name) if argument.is_file else None
        for file in value if isinstance(value, list | tuple) else [value]:
            if isinstance(file, Mapping):
                yield argument, file
            elif isinstance(file, str):  # a body of bytes
                yield argument, {"data": file}


def choose_name_and_type(file: Mapping[str, Any], declared: str | None) -> tuple[str, str]:
    """Return the name and the type of a file to send.

    Args:
        declared: The document's type for it, if there is exactly one.
    """
    path = file.get("path")
    name = file.get("name") or ("file" if path is None else os.path.basename(path))
    guessed = None if path is None else mimetypes.guess_type(name)[0]
    fallback = "application/octet-stream" if file.get("text") is None else "text/plain"
    return name, file.get("mime_type") or declared or guessed or fallback


def preview_upload(operation: Operation, server: Server, signature: Signature, arguments: Mapping[str, Any]) -> str:
    """Return the contents of a call for the person who is asked: for each file its name, its type and its size."""
    lines = [f"{operation} at {server.url}"]
    uploads = {argument.name for argument in signature.arguments if argument.is_file}
    for argument, file in _list_files(signature, arguments):
        name, media = choose_name_and_type(file, find_single_type(argument.encoding.media))
        source = f", from {file['path']!r}" if file.get("path") is not None else ""
        lines.append(f"{argument.name}: {name!r}, {media!r}, {_describe_size(file)}{source}")
    for name, value in arguments.items():
        if name not in uploads:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False, default=dict)}")
    return "\n".join(lines)


def find_single_type(media: str | None) -> str | None:
    """Return the document's type for a part, if there is exactly one."""
    return None if media is None or "," in media or "*" in media else media


def _describe_size(file: Mapping[str, Any]) -> str:
    path, text, data = file.get("path"), file.get("text"), file.get("data")
    if path is not None:
        try:
            size = os.stat(path, follow_symlinks=False).st_size
        except (OSError, ValueError):
            return "a file that is not there now"
    elif isinstance(text, str):
        size = len(text.encode("utf-8", "replace"))
    else:
        size = len(str(data).rstrip(_BASE64_PADDING)) * 3 // 4
    return f"{size:,} bytes"
