"""Fleet alpha: ``python -m demos.fleet.alpha --directory DIR`` appends pings to one CSV file per vehicle.

A line is ``vin,latitude,longitude,epoch seconds,"codes"``: the codes of the on-board diagnosis with spaces between
them, ``""`` without any. Every line that was written is in the ledger too.
"""

from __future__ import annotations

import threading
from argparse import ArgumentParser
from pathlib import Path

from demos.fleet.vehicles import Fleet, Ledger, Ping, started


def line(ping: Ping) -> str:
    """As it is in the file, without its end."""
    return f'{ping.vin},{ping.latitude},{ping.longitude},{ping.time},"{" ".join(ping.obd_codes)}"'


def run(directory: Path, ledger: Path, stopped: threading.Event, fleet: Fleet) -> int:
    """Write until stopped; returns how many pings were written."""
    directory.mkdir(parents=True, exist_ok=True)
    written, book = 0, Ledger(ledger)
    for ping in fleet.pings(stopped):
        with (directory / f"{ping.vin}.csv").open("a", encoding="utf-8") as file:
            file.write(f"{line(ping)}\n")
        book.add(ping.as_json())
        written += 1
    return written


def main() -> None:
    """Entry point."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    args, fleet, stopped = started("alpha", parser)
    print(f"alpha wrote {run(args.directory, args.ledger, stopped, fleet)} pings", flush=True)


if __name__ == "__main__":
    main()
