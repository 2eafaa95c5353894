"""10,000 trades a second with v2: does the lag grow, and how late are points?"""

from __future__ import annotations

import time
from statistics import mean
from typing import Any

from benchmarks.session import Session
from demos.freshness import latenesses, spread

SAMPLE_S = 2.0


def run(session: Session, seconds: float) -> dict[str, Any]:
    """Measure for this long. Lags in rows, lateness in seconds."""
    session.to_v2()
    begun, first = time.monotonic(), session.end()
    seen_before = {name: len(session.watcher.seen(name)) for name in ("avg_1s", "avg_1m", "vol_1s")}
    samples: list[tuple[float, dict[str, int]]] = []
    while (now := time.monotonic() - begun) < seconds:
        samples.append((now, session.lags()))
        time.sleep(SAMPLE_S)  # the interval of the measurement
    elapsed, last = time.monotonic() - begun, session.end()
    return {
        "seconds": round(elapsed, 1),
        "rate": round((last - first) / elapsed, 1),
        "lag": {
            stage: _lag([(at, lags[stage]) for at, lags in samples if stage in lags]) for stage in session.stages()
        },
        "lateness": {
            name: vars(found)
            for name, skipped in seen_before.items()
            if (found := spread(late for _, late in latenesses(session.watcher.seen(name)[skipped:])))
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
