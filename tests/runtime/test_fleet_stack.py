"""The fleet job on the real servers: both sources, an update while pings keep coming, a killed driver, a recount."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fresh_job import wait_for
from stack.fleet.recount import Recounted, recount
from streamops import artifacts, jobs
from streamops.adapters.influx import Points
from streamops.adapters.object_store import ObjectStore
from streamops.joblogs import Reader
from streamops.records import DriverStatus
from streamops.settings import REPOSITORY, Settings
from support import Operator, pythons

BAD_LINES = "no ping at all\n1HGCM82633A004352,41.0\n1HGCM82633A004352,north,-90.0,1700000000.0\n"


class Fleet:
    """A published copy of the job with a measurement of its own, and both simulators."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        mark = uuid.uuid4().hex[:8]
        self.name, self.measurement = f"fleet-{mark}", f"pings_{mark}"
        self.settings, self.store = settings, ObjectStore(settings)
        self.alpha, self.ledgers = directory / "alpha", (directory / "alpha.jsonl", directory / "beta.jsonl")
        self.port = _free_port()
        self.alpha.mkdir()
        code, source = directory / "job", REPOSITORY / "spark_jobs" / "fleet_ingest"
        code.mkdir()
        for path in source.glob("*.py"):
            (code / path.name).write_text(path.read_text())
        for version in ("v1", "v2"):
            text = (source / f"{version}.yaml").read_text().replace("job: fleet-ingest", f"job: {self.name}")
            text = text.replace("trigger: 10 seconds", "trigger: 3 seconds")
            (code / f"{version}.yaml").write_text(
                text.replace("measurement: pings", f"measurement: {self.measurement}")
            )
            artifacts.publish(self.store, code, version, check=version == "v1")

    @property
    def addresses(self) -> dict[str, str]:
        return {"alpha": str(self.alpha), "beta": f"http://127.0.0.1:{self.port}/pings"}

    @contextmanager
    def simulator(self, name: str) -> Iterator[None]:
        place = ["--directory", str(self.alpha)] if name == "alpha" else ["--port", str(self.port)]
        command = [sys.executable, "-m", f"stack.fleet.{name}", *place]
        command += ["--ledger", str(self.ledgers[name == "beta"]), "--vehicles", "10", "--interval", "2"]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "include")}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

    def status(self) -> DriverStatus | None:
        record = jobs.record(self.store, self.name)
        return jobs.status(self.store, self.name, record.launch) if record and record.launch else None

    def faults(self) -> dict[str, int]:
        found = self.status()
        return found.stages["vehicles"].source_faults if found and found.stages else {}

    def recount(self) -> Recounted:
        points = Points(self.settings)
        try:
            return recount(points, self.measurement, self.ledgers)
        finally:
            points.close()

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


@pytest.mark.stack
@pytest.mark.more
@pytest.mark.timeout(1200)
def test_no_ping_is_missed_by_an_update_a_killed_driver_or_faults_of_the_sources(
    stack: Settings, tmp_path: Path
) -> None:
    fleet, operator = Fleet(stack, tmp_path), Operator(stack)
    with fleet.simulator("alpha"):
        with fleet.simulator("beta"):
            operator.run("deploy_job", fleet.name, version="v1", addresses=fleet.addresses)
            wait_for(lambda: fleet.saved() > 30, 90, "pings of both fleets as points")
            wait_for(
                lambda: any("Highest sequence number is: " in text for text in fleet.messages("source.beta")),
                60,
                "the log of a poll that brought pings",
            )
            # Case 1: a logging step is added; what comes meanwhile is read afterwards.
            update = operator.run("upgrade_job", fleet.name, version="v2", snapshot="my-snapshot", standby=False)
            wait_for(lambda: fleet.messages("sink.vehicles", update.id), 90, "a logged ping")
            assert fleet.messages("sink.vehicles", update.id)[0].startswith("SAVING PING: ")
        # Beta is away, alpha goes on, and a file of bad lines is of no consequence.
        (fleet.alpha / "bad.csv").write_text(BAD_LINES)
        wait_for(lambda: fleet.faults().get("beta.unreachable", 0) > 0, 60, "the counted fault of beta")
        wait_for(lambda: _malformed(fleet) >= 3, 60, "the counted bad lines")
        before = fleet.saved()
        wait_for(lambda: fleet.saved() > before, 60, "pings of alpha while beta is away")
        with fleet.simulator("beta"):  # again, with its memory
            status = fleet.status()
            assert status is not None
            (driver,) = pythons(fleet.name)
            os.kill(driver.pid, signal.SIGKILL)
            wait_for(lambda: _other(fleet, status), 180, "a new driver")
            before = fleet.saved()
            wait_for(lambda: fleet.saved() > before + 20, 120, "pings after the driver was killed")
    wait_for(lambda: fleet.recount().missing == 0, 90, "every ping as a point")
    found = fleet.recount()
    assert found.clean, found
    operator.run("cancel_job", fleet.name)


def _malformed(fleet: Fleet) -> int:
    status = fleet.status()
    return status.stages["vehicles"].malformed_rows if status and status.stages else 0


def _other(fleet: Fleet, before: DriverStatus) -> bool:
    status = fleet.status()
    return status is not None and status.holder != before.holder and any(s.commits for s in status.stages.values())
