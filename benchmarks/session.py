"""A running stack with the demo's job, brought to the version that a measurement needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.memory import supervisor_pid
from demos import gap
from demos.freshness import Watcher, latenesses, longest_pause
from demos.upgrade import JOB, MEASUREMENTS, RATE, RUNBOOKS, SYMBOLS, TOPIC, Demo, Options, until
from stack import lifecycle
from stack.layout import Layout
from streamops.cli import console
from streamops.cli.advice import LIVE_LATE_S
from streamops.cli.progress import Progress
from streamops.cli.story import pace
from streamops.clients.airflow import Airflow
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.model.records import LIVE, DriverStatus
from streamops.operations.follow import Runbooks
from streamops.operations.operation import Operation
from streamops.store import documents, keys
from streamops.versions import artifacts

CAUGHT_UP_S = 5.0  # a lag of this many seconds of traffic is one or two batches


@dataclass
class Session:
    """Everything that measurements use."""

    demo: Demo
    runbooks: Runbooks
    ledger: Ledger
    watcher: Watcher
    supervisor: int  # process id

    def upgrade(self, version: str, **values: Any) -> tuple[Operation, gap.Place, gap.Place]:
        """Upgrade the job; where it wrote before and where it writes now."""
        before = self.place()
        name = self.demo.free_name("Bench-")
        asked = {"version": version, "snapshot": name, "probation_s": 0, **values}
        operation = self.demo.run(self.runbooks, "upgrade_job", **asked)
        return operation, before, self.place()

    def bring(self, version: str) -> dict[str, Any]:
        """Have a version running and caught up, from v1 on one after the other; what the last upgrade was like."""
        if version == "v2":
            self.to_v1()
        elif self.demo.record().version != "v2":
            self.to_v2()
        begun_ms = int(time.time() * 1000)
        operation, _, _ = self.upgrade(version)
        self.caught_up()
        stop = int(operation.steps["request_stop"].started.timestamp() * 1000)
        seen = self.watcher.seen("avg_1s")
        late = [late for end, late in latenesses(seen) if end >= begun_ms]
        return {
            "upgrade": {
                "seconds": round((operation.updated - operation.created).total_seconds(), 1),
                "longest_pause_s": longest_pause(seen, stop, stop + 60_000),
                "worst_lateness_s": max(late, default=None),
            }
        }

    def to_v2(self) -> None:
        """Have v2 running and caught up."""
        if not self._runs("v2"):
            self.demo.bring_v1(self.runbooks)
            self.upgrade("v2")
        self.caught_up()

    def to_v3(self) -> None:
        """Have v3 running and caught up."""
        if not self._runs("v3"):
            self.bring("v3")
        self.caught_up()

    def _runs(self, version: str) -> bool:
        record = self.demo.record()
        return record.version == version and record.desired == "running"

    def to_v1(self) -> None:
        """Have v1 running and caught up."""
        self.demo.bring_v1(self.runbooks)
        self.caught_up()

    def place(self) -> gap.Place:
        """Where the job's checkpoints are written now."""
        found = gap.place(self.demo.store, JOB, self.demo.record().deployment)
        if found is None:
            raise SystemExit(f"{JOB} has no checkpoint yet")
        return found

    def stages(self) -> tuple[str, ...]:
        """Stages of the running version."""
        version = self.demo.record().version or ""
        return tuple(artifacts.load_manifest(self.demo.store, JOB, version).definition.stages)

    def status(self) -> DriverStatus | None:
        """What the driver says."""
        launch = self.demo.record().launch
        found = documents.read(self.demo.store, keys.status(JOB, launch), DriverStatus) if launch else None
        return found.value if found else None

    def lags(self) -> dict[str, int]:
        """Rows that each stage that reads trades is behind the topic's end."""
        end, status = self.end(), self.status()
        stages = status.stages.items() if status else ()
        return {name: end - sum(of.offsets["trades"].values()) for name, of in stages if "trades" in of.offsets}

    def end(self) -> int:
        """How many trades were ever written to the topic."""
        return sum(self.ledger.end_offsets(TOPIC).values())

    def caught_up(self, deadline_s: float = 300) -> None:
        """Wait until no stage is more than a batch or two behind."""

        def near() -> bool:
            status, lags = self.status(), self.lags()
            if status is None or not lags:
                return False
            limits = {name: LIVE_LATE_S if status.stages[name].phase == LIVE else CAUGHT_UP_S for name in lags}
            return all(lags[name] < limit * RATE for name, limit in limits.items())

        until(near, deadline_s, f"{JOB} does not catch up; read 'streamops jobs show {JOB}'")


@contextmanager
def session() -> Iterator[Session]:
    """Start the stack if needed, with trades at the demo's rate and all versions published."""
    settings = lifecycle.up(say=console.say)
    pace(RATE)
    demo = Demo(settings, Options(), console.say, lambda: Progress(console.out, live=False).show, pace)
    with (
        closing(Dashboard(settings)) as dashboard,
        closing(Ledger(settings)) as ledger,
        Airflow(settings) as airflow,
        Watcher(partial(dashboard.newest, MEASUREMENTS, SYMBOLS[0])) as watcher,
    ):
        runbooks = Runbooks(airflow, demo.store)
        demo.wait_for_trades()
        demo.publish()
        runbooks.wait_ready(RUNBOOKS)
        yield Session(demo, runbooks, ledger, watcher, supervisor_pid(Layout.find().home))
