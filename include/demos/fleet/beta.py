"""Fleet beta: ``python -m demos.fleet.beta --port 8000`` serves pings at ``GET /pings?since=SEQUENCE&limit=200``.

The answer is a JSON array in the order of ``sequence``, which grows by one. Its ledger is the service's memory too:
after a restart the numbers continue.
"""

from __future__ import annotations

import json
import threading
from argparse import ArgumentParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from demos.fleet.vehicles import Fleet, Ledger, read_ledger, started

MOST = 10_000


class Pings:
    """All pings so far; number ``n`` stands at place ``n - 1``."""

    def __init__(self, ledger: Path) -> None:
        self._lines = [json.dumps(entry) for entry in read_ledger(ledger)]
        self._ledger = Ledger(ledger)
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Keep one more."""
        with self._lock:
            self._ledger.add(line)
            self._lines.append(line)

    def __len__(self) -> int:
        return len(self._lines)

    def since(self, sequence: int, limit: int) -> str:
        """A JSON array of at most ``limit`` pings after ``sequence``."""
        with self._lock:
            return f"[{','.join(self._lines[max(0, sequence) :][:limit])}]"


def handler(pings: Pings) -> type[BaseHTTPRequestHandler]:
    """Answers requests for these pings."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            try:
                since, limit = int(query.get("since", ["0"])[0]), int(query.get("limit", ["200"])[0])
            except ValueError:
                return self._send(400, '{"error": "since and limit are whole numbers"}')
            if parts.path != "/pings":
                return self._send(404, '{"error": "there is only /pings"}')
            return self._send(200, pings.since(since, min(max(limit, 0), MOST)))

        def _send(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    return Handler


def drive(pings: Pings, stopped: threading.Event, fleet: Fleet) -> None:
    """Add pings until stopped."""
    for ping in fleet.pings(stopped):
        pings.add(ping.as_json(sequence=len(pings) + 1))


def main() -> None:
    """Entry point."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    args, fleet, stopped = started("beta", parser)
    pings = Pings(args.ledger)
    server = ThreadingHTTPServer((args.host, args.port), handler(pings))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    drive(pings, stopped, fleet)
    server.shutdown()
    print(f"beta has {len(pings)} pings", flush=True)


if __name__ == "__main__":
    main()
