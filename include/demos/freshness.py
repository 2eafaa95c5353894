"""What a user of a dashboard feels: when the newest point of each measurement can first be read."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

POLL_S = 0.05
BACK_MS = 300_000  # how far back the first look goes, and one after a long silence

Newest = Callable[[int], dict[str, int]]  # since when, epoch ms -> measurement -> time of its newest point, epoch ms


@dataclass(frozen=True)
class Seen:
    """The moment at which a point could first be read; both times in epoch ms."""

    measurement: str
    window_end_ms: int
    seen_ms: int


@dataclass(frozen=True)
class Spread:
    """Lateness in seconds."""

    count: int
    p50: float
    p99: float
    worst: float


def spread(values: Iterable[float]) -> Spread | None:
    """Median, 99th percentile (nearest rank) and maximum; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(len(ordered), rank(0.50), rank(0.99), ordered[-1])


def latenesses(seen: Sequence[Seen], step_ms: int = 1000) -> list[tuple[int, float]]:
    """Window end and lateness in seconds of every window, those included that appeared together with a newer one.

    The first of ``seen`` only marks the beginning: when its point appeared is not known.
    """
    return [
        (end, (point.seen_ms - end) / 1000)
        for before, point in pairwise(seen)
        for end in range(before.window_end_ms + step_ms, point.window_end_ms + 1, step_ms)
    ]


def longest_pause(seen: Sequence[Seen], from_ms: int, to_ms: int) -> float | None:
    """The longest time between two moments at which something new could be read, in seconds.

    Pauses count when they touch the span from ``from_ms`` to ``to_ms``. None with fewer than two moments.
    """
    moments = sorted({point.seen_ms for point in seen})
    pauses = [(after - before) / 1000 for before, after in pairwise(moments) if after >= from_ms and before <= to_ms]
    return max(pauses) if pauses else None


class Watcher:
    """Looks at the newest points in a thread of its own, every 50 ms, until it is stopped.

    It asks only for what is newer than what it saw: over minutes, the question itself would make results late.
    """

    def __init__(self, newest: Newest, clock: Callable[[], float] = time.time) -> None:
        self._newest = newest
        self._clock = clock
        self._last: dict[str, int] = {}
        self._seen: list[Seen] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="freshness", daemon=True)
        self.misses = 0  # looks that failed

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def seen(self, measurement: str | None = None) -> list[Seen]:
        """What was seen so far, in order."""
        with self._lock:
            return [point for point in self._seen if measurement in (None, point.measurement)]

    def look(self) -> None:
        """One look; a server that does not answer is counted, since it may be restarted on purpose."""
        try:
            newest = self._newest(self._since())
        except Exception:  # watching must never end what is watched
            self.misses += 1
            return
        now = int(self._clock() * 1000)
        with self._lock:
            for measurement, window_end in newest.items():
                if window_end > self._last.get(measurement, 0):
                    self._last[measurement] = window_end
                    self._seen.append(Seen(measurement, window_end, now))

    def _since(self) -> int:
        """From where the next look reads: what each measurement showed last, unless one has been silent for long."""
        with self._lock:
            return max(min(self._last.values(), default=0), int(self._clock() * 1000) - BACK_MS)

    def _watch(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            self.look()
            self._stop.wait(max(0.02, POLL_S - (time.monotonic() - begun)))
