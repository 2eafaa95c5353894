"""Fleet beta: ``python -m demos.fleet.beta --port 8000`` serves pings at ``GET /pings?since=SEQUENCE&limit=200``.

The answer is a JSON array in the order of ``sequence``, which grows by one. Its ledger is the service's memory too:
after a restart the numbers continue.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from demos.fleet.vehicles import Ledger, drives, read_ledger, sleep_until

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


def drive(
    pings: Pings,
    stopped: threading.Event,
    *,
    vehicles: int = 30,
    interval_s: float = 3.0,
    seed: int = 1,
    speedup: float = 1.0,
) -> None:
    """Add pings until stopped."""
    due = time.monotonic()
    for vehicles_due in drives("beta", seed, vehicles, interval_s, speedup):
        for vehicle in vehicles_due:
            pings.add(vehicle.ping(time.time()).as_json(sequence=len(pings) + 1))
        due += interval_s / 10
        sleep_until(due, stopped)
        if stopped.is_set():
            return


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--vehicles", type=int, default=30)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between two pings of a vehicle")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speedup", type=float, default=1.0, help="drive faster than plausible, to see it on a map")
    args = parser.parse_args()
    pings, stopped = Pings(args.ledger), threading.Event()
    server = ThreadingHTTPServer((args.host, args.port), handler(pings))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    drive(pings, stopped, vehicles=args.vehicles, interval_s=args.interval, seed=args.seed, speedup=args.speedup)
    server.shutdown()
    print(f"beta has {len(pings)} pings", flush=True)


if __name__ == "__main__":
    main()
