"""10,000 trades a second: v2, all in batches, and v3, whose results per second are in real time, in one run."""

from __future__ import annotations

import time
from statistics import mean
from typing import Any

from benchmarks.processor import shares, used
from benchmarks.session import Session
from demos.freshness import latenesses, spread

SAMPLE_S = 2.0
SETTLE_S = 30.0  # after a start, code is compiled for a while
VERSIONS = ("v2", "v3")
MEASUREMENTS = ("avg_1s", "avg_1m", "vol_1s")


def run(session: Session, seconds: float) -> dict[str, Any]:
    """Measure each version for this long, and how late points are during the upgrade between them."""
    found: dict[str, Any] = {}
    for version in VERSIONS:
        upgrade = session.bring(version)
        time.sleep(SETTLE_S)
        found[version] = {**_watched(session, seconds), **upgrade}
    return {"versions": found}


def _watched(session: Session, seconds: float) -> dict[str, Any]:
    """Lags in rows, lateness in seconds, processor in cores."""
    begun, first, before = time.monotonic(), session.end(), used(session.supervisor)
    skipped = {name: len(session.watcher.seen(name)) for name in MEASUREMENTS}
    samples: list[tuple[float, dict[str, int]]] = []
    while (now := time.monotonic() - begun) < seconds:
        samples.append((now, session.lags()))
        time.sleep(SAMPLE_S)  # the interval of the measurement
    elapsed, last = time.monotonic() - begun, session.end()
    late = {name: latenesses(session.watcher.seen(name)[skipped[name] :]) for name in MEASUREMENTS}
    return {
        "seconds": round(elapsed, 1),
        "rate": round((last - first) / elapsed, 1),
        "cores": shares(before, used(session.supervisor), elapsed),
        "lag": {
            stage: _lag(points)
            for stage in session.stages()
            if (points := [(at, lags[stage]) for at, lags in samples if stage in lags])
        },
        "lateness": {
            name: vars(found) for name, values in late.items() if (found := spread(value for _, value in values))
        },
    }


def _lag(points: list[tuple[float, int]]) -> dict[str, float]:
    quarter = max(1, len(points) // 4)
    lags = [lag for _, lag in points]
    return {
        "slope_rows_per_s": round(slope(points), 2),
        "mean": round(mean(lags)),
        "first_quarter": round(mean(lags[:quarter])),
        "last_quarter": round(mean(lags[-quarter:])),
        "worst": max(lags),
    }


def slope(points: list[tuple[float, int]]) -> float:
    """Least squares: by how many rows a second the lag grows."""
    across, up = mean(at for at, _ in points), mean(value for _, value in points)
    spread_x = sum((at - across) ** 2 for at, _ in points)
    return sum((at - across) * (value - up) for at, value in points) / spread_x if spread_x else 0.0
