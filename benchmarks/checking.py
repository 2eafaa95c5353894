"""What ``check`` and ``publish`` take while a job runs, and what the job notices of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.session import Session
from demos.freshness import spread
from demos.upgrade import JOB

UNDISTURBED_S = 60.0
LOOK_S = 0.2
STREAMOPS = Path(sys.executable).with_name("streamops")


def run(session: Session, times: int) -> dict[str, Any]:
    """Check and publish at least this many times, one after the other, beside v1. Seconds; batches in milliseconds."""
    session.to_v1()
    with batches(session) as undisturbed:
        time.sleep(UNDISTURBED_S)  # the interval of the measurement
    spreads, seconds = {"undisturbed": batch_spread(undisturbed)}, {}
    source = session.demo.options.directory
    with tempfile.TemporaryDirectory() as scratch:
        kinds: dict[str, Callable[[int], list[str]]] = {
            "check JOB VERSION": lambda number: ["check", JOB, "v2"],
            "check DIR --against JOB": lambda number: ["check", str(source), "v2", "--against", JOB],
            "publish DIR": lambda number: ["publish", str(_copy(source, Path(scratch), number))],
        }
        for name, arguments in kinds.items():
            took = []
            with batches(session) as beside:
                begun = time.monotonic()
                while len(took) < times or time.monotonic() - begun < UNDISTURBED_S:
                    took.append(_timed(arguments(len(took))))
            seconds[name] = {"times": len(took), "median": median(took), "worst": max(took)}
            spreads[f"beside {name}"] = batch_spread(beside)
    return {"seconds": seconds, "batch_ms": spreads}


def batch_spread(durations: Mapping[int, int]) -> dict[str, Any]:
    """How long batches took, in milliseconds."""
    found = spread(durations.values())
    return vars(found) if found else {}


@contextmanager
def batches(session: Session) -> Iterator[dict[int, int]]:
    """Batch -> milliseconds of ``avg_1s``, as its driver reports them meanwhile."""
    found: dict[int, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            status = session.status()
            if status and (stage := status.stages.get("avg_1s")) and stage.batch_ms:
                found[stage.batch_id] = stage.batch_ms

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _copy(source: Path, scratch: Path, number: int) -> Path:
    """The job under a version of its own, so that there is something to publish."""
    version = f"bench-{int(time.time())}-{number}"
    target = Path(shutil.copytree(source, scratch / version))
    text = (target / "v2.yaml").read_text(encoding="utf-8")
    for path in target.glob("*.yaml"):
        path.unlink()
    (target / f"{version}.yaml").write_text(re.sub(r"version: v2", f"version: {version}", text), encoding="utf-8")
    return target


def _timed(arguments: list[str]) -> float:
    begun = time.monotonic()
    done = subprocess.run([STREAMOPS, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"streamops {' '.join(arguments)} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return round(time.monotonic() - begun, 2)
