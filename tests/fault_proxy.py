"""A way to a server on which things go wrong: slow, 5xx, a lost answer; for objects also a false 200, a wrong hash."""

from __future__ import annotations

import base64
import http.client
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%b</Code><Message>injected</Message></Error>'


@dataclass
class Faults:
    """The share of requests that each fault strikes; ``copies_only`` leaves other requests alone.

    A share of 1 strikes always. A smaller one strikes one request of each ``1 / share``, the seed says which: so a
    fault that is asked for is never left out by chance, and no request is struck twice, so that each one passes on
    its second try.
    """

    seed: int
    slow: float = 0.0
    unavailable: float = 0.0
    lost_answer: float = 0.0
    copy_error: float = 0.0
    wrong_hash: float = 0.0
    copies_only: bool = False
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random, self._lock = random.Random(self.seed), threading.Lock()
        self._struck: set[str] = set()
        self._blocks: dict[str, list[bool]] = {}

    def strikes(self, name: str, request: str) -> bool:
        """Whether ``request`` (its command and path) is struck by the fault ``name`` now."""
        share = getattr(self, name)
        with self._lock:
            hit = share == 1 or (share > 0 and request not in self._struck and self._next(name, share))
            if hit:
                self._struck.add(request)
                self.seen[name] += 1
            return hit

    def _next(self, name: str, share: float) -> bool:
        if not self._blocks.get(name):
            block = [True] + [False] * (round(1 / share) - 1)
            self._random.shuffle(block)
            self._blocks[name] = block
        return self._blocks[name].pop()


class Proxy:
    """Forwards to ``endpoint``, except for what ``faults`` does. The signed Host header passes unchanged."""

    def __init__(self, endpoint: str, faults: Faults) -> None:
        self.faults, self.target = faults, urlsplit(endpoint).netloc
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                faults = proxy.faults
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                copy = self.headers.get("x-amz-copy-source") is not None
                request = f"{self.command} {self.path}"
                if copy or not faults.copies_only:
                    if faults.strikes("slow", request):
                        time.sleep(0.3)  # the fault itself
                    if faults.strikes("unavailable", request):
                        return self.answer(503, {}, _ERROR % b"SlowDown")
                if copy and faults.strikes("copy_error", request):
                    return self.answer(200, {"Content-Type": "application/xml"}, _ERROR % b"InternalError")
                connection = http.client.HTTPConnection(proxy.target, timeout=30)
                try:
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() not in ("expect", "connection"):
                            connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    headers = dict(answer.getheaders())
                    if copy and answer.status == 200 and faults.strikes("wrong_hash", request):
                        name = next(name for name in headers if name.lower() == "x-amz-checksum-sha256")
                        headers[name] = base64.b64encode(b"x" * 32).decode()
                    body = answer.read()
                    if faults.strikes("lost_answer", request):
                        self.close_connection = True
                        return None
                    return self.answer(answer.status, headers, body)
                finally:
                    connection.close()

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                length = headers.get("Content-Length", str(len(body))) if self.command == "HEAD" else str(len(body))
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD" and status != 204:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: requests carry signatures."""

        return Handler
