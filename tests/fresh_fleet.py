"""A published copy of the fleet job with a measurement of its own, and both simulators."""

from __future__ import annotations

import shutil
import socket
import time
import uuid
from collections.abc import Container
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Literal

from demos.fleet.recount import Fields, Key, Recounted, recount, stored
from demos.fleet.simulators import simulator
from fresh_job import wait_for
from streamops.clients.influx import Points
from streamops.model.records import DriverStatus
from streamops.recount.recounting import recount_job
from streamops.recount.report import Report
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs
from streamops.store.joblogs import Reader
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, libraries

LIBRARY = REPOSITORY / "spark_jobs" / "fleet_types"
TRIGGER_S = 3  # between two commits


class Fleet:
    """A published copy of the job with a measurement of its own, and both simulators."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        mark = uuid.uuid4().hex[:8]
        self.name, self.measurement = f"fleet-{mark}", f"pings_{mark}"
        self.settings, self.store = settings, ObjectStore(settings)
        self.alpha = directory / "alpha"
        self.ledgers = {fleet: directory / f"{fleet}.jsonl" for fleet in ("alpha", "beta")}
        self.port = _free_port()
        self.alpha.mkdir()
        for version in ("v1", "v2"):
            libraries.publish(self.store, LIBRARY / version)
        code, source = directory / "job", REPOSITORY / "spark_jobs" / "fleet_ingest"
        code.mkdir()
        for path in source.glob("*.py"):
            (code / path.name).write_text(path.read_text())
        for version in ("v1", "v2"):
            text = (source / f"{version}.yaml").read_text().replace("job: fleet-ingest", f"job: {self.name}")
            text = text.replace("trigger: 10 seconds", f"trigger: {TRIGGER_S} seconds")
            (code / f"{version}.yaml").write_text(
                text.replace("measurement: pings", f"measurement: {self.measurement}")
            )
            artifacts.publish(self.store, code, version, library="fleet_types/v1")

    @property
    def addresses(self) -> dict[str, str]:
        return {"alpha": str(self.alpha), "beta": f"http://127.0.0.1:{self.port}/pings"}

    def move(self) -> None:
        """Have both simulators, which do not run now, write and serve elsewhere from now on."""
        there = self.alpha.with_name("alpha-elsewhere")
        shutil.copytree(self.alpha, there)
        self.alpha, self.port = there, _free_port()

    def simulator(self, name: Literal["alpha", "beta"], vehicles: int = 10) -> AbstractContextManager[None]:
        """A simulator at work; without vehicles, beta only serves what it has given out before."""
        place = ["--directory", str(self.alpha)] if name == "alpha" else ["--port", str(self.port)]
        ledger = str(self.ledgers[name])
        return simulator(name, *place, "--ledger", ledger, "--vehicles", str(vehicles), "--interval", "2")

    def status(self) -> DriverStatus | None:
        record = jobs.record(self.store, self.name)
        return jobs.status(self.store, self.name, record.launch) if record and record.launch else None

    def faults(self) -> dict[str, int]:
        found = self.status()
        return found.stages["vehicles"].source_faults if found and found.stages else {}

    def points(self) -> dict[Key, Fields]:
        """All points."""
        with closing(Points(self.settings)) as points:
            return stored(points, self.measurement, 0, int(time.time() * 1000) + 60_000)

    def recount(self, plain: Container[Key] | None = None) -> Recounted:
        with closing(Points(self.settings)) as points:
            return recount(points, self.measurement, self.ledgers, plain)

    def recounted(self, plain: Container[Key] | None = None) -> Recounted:
        """What is there once every ping of the ledgers can have been read; ``plain`` as ``recount`` takes it."""
        with self.simulator("beta", vehicles=0):
            wait_for(lambda: self.recount(plain).missing == 0, 270, "every ping as a point")
            return self.recount(plain)

    def report(self) -> Report:
        """What the recount of StreamOps says, once beta answers, who gives out nothing new."""
        found: list[Report] = []

        def compared() -> bool:
            found.append(recount_job(self.settings, self.store, self.name))
            return bool(found[-1].measurements)

        with self.simulator("beta", vehicles=0):
            wait_for(compared, 270, "what beta has given out")
        return found[-1]

    def saved(self) -> int:
        found = self.recount()
        return found.pings - found.missing

    def messages(self, logger: str, launch: str = "") -> list[str]:
        lines = Reader(self.store, self.name).more()
        return [line.text for line in lines if line.logger == logger and (not launch or line.launch == launch)]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
