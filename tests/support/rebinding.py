"""Open a name with the http tool, while a real name server answers otherwise each second time it is asked.

It runs in a network of its own, whose `resolv.conf` names 127.0.0.1 (see tests/tools/test_http_tool.py), and prints
what happened as JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import threading

from ferrule import Runner
from ferrule.tools import http
from web_servers import make_neighbours, serving

ALLOWED, SECRET = "127.0.0.2", "127.0.0.1"


class NameServer:
    """A name server that gives every name the allowed address first, then the secret one, and so on."""

    def __init__(self) -> None:
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(512)
            end = query.index(b"\0", 12) + 5  # after the name, its type and its class
            answers = b""
            if query[end - 4 : end - 2] == struct.pack(">H", 1):  # an address of IPv4
                address = (ALLOWED, SECRET)[self.asked % 2]
                self.asked += 1
                answers = struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address)
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, 1 if answers else 0, 0, 0)
            self._socket.sendto(head + query[12:end] + answers, client)


def main() -> None:
    names = NameServer()
    found = [socket.gethostbyname("rebind.test") for _ in range(4)]
    allowed, secret = make_neighbours(ALLOWED, SECRET)
    tool = http.tool(["*", ALLOWED], ports=None)
    url = f"http://rebind.test:{allowed.port}/"
    with serving(allowed, secret):
        results = [Runner([tool]).run_sync("http", {"url": url}).status for _ in range(4)]
    counts = {"allowed": allowed.connections, "secret": secret.connections, "asked": names.asked}
    print(json.dumps({"found": found, "results": results, **counts}))


if __name__ == "__main__":
    main()
