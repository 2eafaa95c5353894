"""Vehicles that drive between cities of the central United States; the same seed gives the same drives."""

from __future__ import annotations

import json
import math
import random
import signal
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

# Latitude and longitude in degrees.
CITIES = {
    "Chicago": (41.88, -87.63), "St. Louis": (38.63, -90.20), "Kansas City": (39.10, -94.58),
    "Omaha": (41.26, -95.93), "Des Moines": (41.59, -93.62), "Minneapolis": (44.98, -93.27),
    "Milwaukee": (43.04, -87.91), "Indianapolis": (39.77, -86.16), "Memphis": (35.15, -90.05),
    "Nashville": (36.16, -86.78), "Little Rock": (34.75, -92.29), "Tulsa": (36.15, -95.99),
    "Oklahoma City": (35.47, -97.52), "Wichita": (37.69, -97.34), "Dallas": (32.78, -96.80),
    "Denver": (39.74, -104.99), "Sioux Falls": (43.55, -96.73), "Springfield": (39.78, -89.65),
}  # fmt: skip
SPEED_KMH = (75.0, 110.0)
_EARTH_KM = 6371.0
_VIN = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"  # without I, O and Q, as the standard has it
_CODES = ("P0301", "P0420", "P0171", "P0128", "P0455", "C1234", "B0028")
# Times are whole eighths of a second: exact as a number of seconds, in any language.
_PARTS = 8


@dataclass(frozen=True)
class Ping:
    """Where a vehicle was; ``time`` in seconds since the epoch, degrees with five decimals (one metre)."""

    vin: str
    latitude: float
    longitude: float
    time: float
    obd_codes: tuple[str, ...] = ()

    def as_json(self, **more: object) -> str:
        """One line of a ledger."""
        return json.dumps({**asdict(self), **more})


class Vehicle:
    """One vehicle on its way from city to city."""

    def __init__(self, fleet: str, number: int, seed: int) -> None:
        self._random = random.Random(f"{fleet}/{seed}/{number}")
        self.vin = "1" + "".join(self._random.choice(_VIN) for _ in range(16))
        self._start = self._random.choice(list(CITIES))
        self._depart()
        self._gone_km = self._random.random() * self._length_km

    def advance(self, seconds: float) -> None:
        """Drive on."""
        self._gone_km += self._kmh * seconds / 3600
        while self._gone_km >= self._length_km:
            self._gone_km -= self._length_km
            self._start = self._goal
            self._depart()

    def ping(self, now: float) -> Ping:
        """Where it is."""
        begin, end = CITIES[self._start], CITIES[self._goal]
        share = self._gone_km / self._length_km
        codes = (self._random.choice(_CODES),) if self._random.random() < 0.05 else ()
        latitude, longitude = (round(a + (b - a) * share, 5) for a, b in zip(begin, end, strict=True))
        return Ping(self.vin, latitude, longitude, int(now * _PARTS) / _PARTS, codes)

    def _depart(self) -> None:
        self._goal = self._random.choice([city for city in CITIES if city != self._start])
        self._length_km = distance_km(CITIES[self._start], CITIES[self._goal])
        self._kmh = self._random.uniform(*SPEED_KMH)


def distance_km(begin: tuple[float, float], end: tuple[float, float]) -> float:
    """Along the great circle."""
    (lat1, lon1), (lat2, lon2) = (tuple(map(math.radians, place)) for place in (begin, end))
    half = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * _EARTH_KM * math.asin(math.sqrt(half))


@dataclass(frozen=True)
class Fleet:
    """Vehicles that each ping once in ``interval_s``; with ``speedup`` they drive faster than plausible."""

    name: str
    vehicles: int = 30
    interval_s: float = 3.0
    seed: int = 1
    speedup: float = 1.0

    def rounds(self) -> Iterator[list[Vehicle]]:
        """Endless rounds: those vehicles that ping next, advanced.

        A round is a tenth of the interval, so that pings are spread over it. Times do not matter for the positions: a
        fleet that is started again with the same seed drives the same way from the beginning.
        """
        vehicles = [Vehicle(self.name, number, self.seed) for number in range(self.vehicles)]
        for part in cycle(range(10)):
            due = vehicles[part::10]
            for vehicle in due:
                vehicle.advance(self.interval_s * self.speedup)
            yield due

    def pings(self, stopped: threading.Event) -> Iterator[Ping]:
        """Each ping when it is due, until stopped."""
        due = time.monotonic()
        for vehicles in self.rounds():
            for vehicle in vehicles:
                yield vehicle.ping(time.time())
            due += self.interval_s / 10
            if stopped.wait(max(0.0, due - time.monotonic())):
                return


def started(name: str, parser: ArgumentParser) -> tuple[Namespace, Fleet, threading.Event]:
    """A simulator's arguments, its fleet, and what is set when the process is to end."""
    parser.add_argument("--ledger", type=Path, required=True, help="a file outside what the job reads")
    parser.add_argument("--vehicles", type=int, default=30)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between two pings of a vehicle")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speedup", type=float, default=1.0, help="drive faster than plausible, to see it on a map")
    args = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return args, Fleet(name, args.vehicles, args.interval, args.seed, args.speedup), stopped


class Ledger:
    """A file with every ping that was given out, one JSON object a line: what a recount compares with."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def add(self, line: str) -> None:
        """Write one ping; it is in the file when this returns."""
        self._file.write(f"{line}\n")
        self._file.flush()


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a ledger."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
