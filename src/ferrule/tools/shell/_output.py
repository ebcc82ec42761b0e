"""The output of a line, bounded while it is read: its beginning, its end, and the number of bytes between them."""

from __future__ import annotations

from ferrule.security.characters import remove_hidden


class Output:
    """The bytes that a line has written so far."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add bytes. Only the first and the last half of the limit are stored."""
        self.size += len(data)
        fresh = max(0, self._half - len(self._head))
        self._head += data[:fresh]
        self._tail += data[fresh:]
        del self._tail[: -self._half]

    @property
    def omitted(self) -> int:
        """The number of bytes that are left out."""
        return self.size - len(self._head) - len(self._tail)

    @property
    def text(self) -> str:
        """The text without control sequences, terminal codes and invisible characters."""
        if not self.omitted:
            return clean_output(bytes(self._head + self._tail))
        return (
            f"{clean_output(bytes(self._head))}\n[… {self.omitted} bytes left out …]\n{clean_output(bytes(self._tail))}"
        )

    def end(self, most: int) -> str:
        """Return the last characters, for people who watch."""
        return clean_output(bytes((self._tail or self._head)[-most:]))


def clean_output(data: bytes) -> str:
    """Return the bytes of a program as text that does nothing to a terminal or to a reader."""
    text = remove_hidden(data.decode("utf-8", "replace"))[0]
    if text.isascii():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else " " if one.isspace() else "\ufffd" for one in text)
