"""``python -m benchmarks``: measure on a running stack, keep the results, fill docs/performance.md."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import checking, cluster, exports, in_a_row, large_state, machine, strategies, sustained, switch, table
from benchmarks.memory import measure, supervisor_pid
from benchmarks.session import Session, session
from stack.layout import Layout


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(KNOWN)}; default: all of them")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the sustained measurement (default: 5)")
    parser.add_argument("--times", type=int, default=5, help="switches of each kind (default: 5)")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds of traffic between switches (default: 20)")
    chosen = parser.parse_args()
    if unknown := set(chosen.what) - set(KNOWN):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(KNOWN)}")
    wanted = [name for name in KNOWN if not chosen.what or name in chosen.what]
    if wanted != ["table"]:
        with session() as running:
            for name in wanted:
                if name != "table":
                    _keep(name, KINDS[name](running, chosen))
    if "table" in wanted:
        print(f"docs/performance.md: {', '.join(table.write()) or 'no results yet'}")


def steady_memory(running: Session, looks: int = 10) -> dict[str, Any]:
    """Medians of some looks while v2 runs. Bytes, PSS."""
    running.to_v2()
    pid = supervisor_pid(Layout.find().home)
    samples = []
    for _ in range(looks):
        samples.append(measure(pid))
        time.sleep(3)  # the interval of the measurement
    parts = sorted({part for sample in samples for part in sample.pss})
    pss = {part: int(median(sample.pss.get(part, 0) for sample in samples)) for part in parts}
    rss = {part: int(median(sample.rss.get(part, 0) for sample in samples)) for part in parts}
    return {"pss": pss, "rss": rss, "total": sum(pss.values()), "processes": samples[-1].processes}


def _keep(name: str, result: dict[str, Any]) -> None:
    print(f"{name}: {machine.save(name, result).name} written", flush=True)


KINDS: dict[str, Callable[[Session, argparse.Namespace], dict[str, Any]]] = {
    "sustained": lambda running, chosen: sustained.run(running, chosen.minutes * 60),
    "memory": lambda running, chosen: steady_memory(running),
    "checks": lambda running, chosen: checking.run(running, chosen.times),
    "exports": lambda running, chosen: exports.run(running, chosen.times),
    "large-state": lambda running, chosen: large_state.run(running),
    "strategies": lambda running, chosen: strategies.run(running, chosen.times),
    "switch": lambda running, chosen: switch.run(running, chosen.times, chosen.settle),
    "in-a-row": lambda running, chosen: in_a_row.run(running, 6 * chosen.times),
    "scale": lambda running, chosen: cluster.scale(running),
    "kills": lambda running, chosen: cluster.kills(running, chosen.times),
    "live-kills": lambda running, chosen: cluster.live_kills(running, chosen.times),
    "outage": lambda running, chosen: cluster.outage(running),
    "fleet-kills": lambda running, chosen: cluster.fleet_kills(running, chosen.times),
    "second-driver": lambda running, chosen: cluster.second_driver(running, chosen.times),
}
KNOWN = (*KINDS, "table")


if __name__ == "__main__":
    main()
