"""The three live stages of v3 upgraded by each strategy in turn, under load: what someone at the chart feels."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from benchmarks.session import Session
from benchmarks.sustained import MEASUREMENTS, SETTLE_S
from demos.freshness import latenesses, longest_pause, spread
from streamops.model.errors import StreamOpsError

STRATEGIES = ("stop_and_restart", "gapless")
QUIET_S = 60.0  # before each upgrade, for comparison


def run(session: Session, times: int) -> dict[str, Any]:
    """Upgrade v3 to itself, so that all that differs is how. Each runbook recounts its own results."""
    session.to_v3()
    runs: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for number in range(times):
        for strategy in STRATEGIES:
            time.sleep(SETTLE_S + QUIET_S)  # traffic between two measurements
            began = int(time.time() * 1000)
            try:
                operation, _, _ = session.upgrade("v3", strategy=strategy, logging={"root": "INFO"})
            except StreamOpsError as error:  # of a version that did not get level in time; the old one runs on
                refused.append({"strategy": strategy, "reason": str(error)})
                print(f"{number + 1} of {times}: {strategy} failed: {error}", flush=True)
                session.caught_up()
                continue
            session.caught_up()
            done = int(operation.updated.timestamp() * 1000)
            before = _felt(session, began - int(QUIET_S * 1000), began)
            runs.append(
                {
                    "strategy": strategy,
                    "seconds": round((operation.updated - operation.created).total_seconds(), 1),
                    "undisturbed": before,
                    "upgrade": _felt(session, began, done),
                }
            )
            told = {name: item["pause_s"] for name, item in runs[-1]["upgrade"].items()}
            print(f"{number + 1} of {times}: {strategy} {runs[-1]['seconds']} s, pauses {told}", flush=True)
    return {"runs": runs, "failed": refused, "summary": summary(runs)}


def _felt(session: Session, from_ms: int, to_ms: int) -> dict[str, dict[str, Any]]:
    """By measurement, in seconds: the longest time without a new point, and how late points of a span were."""
    found = {}
    for name in MEASUREMENTS:
        seen = session.watcher.seen(name)
        late = spread(late for end, late in latenesses(seen) if from_ms <= end <= to_ms)
        found[name] = {"pause_s": longest_pause(seen, from_ms, to_ms), **(vars(late) if late else {})}
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Strategy -> measurement -> medians of its runs, during the upgrade and undisturbed."""
    return {
        strategy: {
            name: {
                f"{when}_{key}": median(item[when][name][key] for item in runs if item["strategy"] == strategy)
                for when in ("undisturbed", "upgrade")
                for key in ("pause_s", "p99", "worst")
            }
            for name in MEASUREMENTS
        }
        for strategy in STRATEGIES
        if any(item["strategy"] == strategy for item in runs)
    }
