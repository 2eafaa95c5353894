"""Fleet alpha: ``python -m demos.fleet.alpha --directory DIR`` appends pings to one CSV file per vehicle.

A line is ``vin,latitude,longitude,epoch seconds``. Every line that was written is in the ledger too.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from pathlib import Path

from demos.fleet.vehicles import Ledger, drives, sleep_until


def run(
    directory: Path,
    ledger: Path,
    stopped: threading.Event,
    *,
    vehicles: int = 30,
    interval_s: float = 3.0,
    seed: int = 1,
    speedup: float = 1.0,
) -> int:
    """Write until stopped; returns how many pings were written."""
    directory.mkdir(parents=True, exist_ok=True)
    written, due, book = 0, time.monotonic(), Ledger(ledger)
    for vehicles_due in drives("alpha", seed, vehicles, interval_s, speedup):
        for vehicle in vehicles_due:
            ping = vehicle.ping(time.time())
            line = f"{ping.vin},{ping.latitude},{ping.longitude},{ping.time}\n"
            with (directory / f"{ping.vin}.csv").open("a", encoding="utf-8") as file:
                file.write(line)
            book.add(ping.as_json())
            written += 1
        due += interval_s / 10
        sleep_until(due, stopped)
        if stopped.is_set():
            return written
    return written


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True, help="outside the directory")
    parser.add_argument("--vehicles", type=int, default=30)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between two pings of a vehicle")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speedup", type=float, default=1.0, help="drive faster than plausible, to see it on a map")
    args = parser.parse_args()
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    written = run(
        args.directory,
        args.ledger,
        stopped,
        vehicles=args.vehicles,
        interval_s=args.interval,
        seed=args.seed,
        speedup=args.speedup,
    )
    print(f"alpha wrote {written} pings", flush=True)


if __name__ == "__main__":
    main()
