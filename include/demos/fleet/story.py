"""The fleet's demo: vehicles on the map, killed nodes, a logging step, a new shared library, a recount."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from demos.fleet.recount import CODES, Fields, Key, Recounted, recount, stored, with_codes
from demos.fleet.simulators import simulator
from demos.upgrade import HEALTHY_S, Story, machine, until
from stack.layout import Layout
from streamops.clients.airflow import Airflow
from streamops.clients.influx import Points
from streamops.clients.positions import Position, Positions
from streamops.cluster.membership import present
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import host_of
from streamops.model import records
from streamops.model.errors import UnhealthyError
from streamops.operations.follow import Runbooks, Show, request
from streamops.operations.operation import Operation
from streamops.settings import REPOSITORY, Settings
from streamops.store import joblogs, jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, libraries

JOB, MEASUREMENT, NAME = "fleet-ingest", "pings", "fleet"
CODE, LIBRARY = REPOSITORY / "spark_jobs" / "fleet_ingest", REPOSITORY / "spark_jobs" / "fleet_types"
RUNBOOKS = ("deploy_job", "delete_job", "upgrade_job", "shutdown_cluster", "restart_cluster", "scale_cluster")
REFERENCE_S = (20, 30)  # what the reference lab says of a killed node
FLEETS = ("alpha", "beta")
VEHICLES = 60  # of both fleets


@dataclass
class FleetStory:
    """The story on a running stack with both simulators at work.

    Args:
        kills: how often the node that hosts the job is killed.
    """

    settings: Settings
    say: Callable[[str], None]
    progress: Callable[[], Show]
    kills: int = 5
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = Layout.find()
        self.store, self.nodes = ObjectStore(self.settings), SupervisedNodes(self.settings)
        self.story = Story(self.say)
        home = self.layout.fleet
        self.ledgers = {fleet: home / f"{fleet}.jsonl" for fleet in FLEETS}
        self.addresses = {"alpha": str(home / "alpha"), "beta": f"{self.layout.url('fleet-beta')}/pings"}

    def tell(self, stop_simulators: Callable[[], None]) -> dict[str, Any]:
        """Run the whole story and return the report.

        Args:
            stop_simulators: called before the recount, which needs ledgers that have an end.

        Raises:
            StreamOpsError: a part of it failed; what runs is left as it is.
        """
        with self._connected():
            self._kill_nodes()
            self._case_1()
            plain = self._case_2()
            with self.story.part("Stop the simulators, and recount both ledgers"):
                stop_simulators()
                port = str(self.layout.port("fleet-beta"))
                # Without vehicles beta gives out nothing new, and what it gave out before can still be read.
                with simulator("beta", "--port", port, "--ledger", str(self.ledgers["beta"]), "--vehicles", "0"):
                    missing = f"Pings stay missing: {self._recount(plain).examples}"
                    until(lambda: self._recount(plain).missing == 0, 120, missing)
                    counted = self._recount(plain)
                self.say(f"  {counted.pings:,} pings: {counted.missing} missing, {counted.wrong} wrong, "
                         f"{counted.unexpected} unexpected")  # fmt: skip
        return self.found | {
            "job": JOB,
            "finished": records.now().isoformat(timespec="seconds"),
            "machine": machine(),
            "story": self.story.parts,
            "reference_s": REFERENCE_S,
            "recount": vars(counted) | {"clean": counted.clean},
        }

    def kill_nodes(self) -> dict[str, Any]:
        """The story up to the killed nodes: how long beta did not continue after each, in seconds, and the median."""
        with self._connected():
            self._kill_nodes()
        return dict(self.found["kills"])

    @contextmanager
    def _connected(self) -> Iterator[None]:
        with closing(Positions(self.settings)) as positions, Airflow(self.settings) as airflow:
            self._runbooks, self._positions = Runbooks(airflow, self.store), positions
            yield

    # --- parts

    def _kill_nodes(self) -> None:
        with self.story.part("Wait until Airflow has read the runbooks"):
            self._runbooks.wait_ready(RUNBOOKS)
        self._deploy()
        self._third_node()
        self._killed()

    def _deploy(self) -> None:
        if jobs.record(self.store, JOB) is not None:
            with self.story.part("An earlier story left the job behind: delete it (runbook delete_job)"):
                self._run("delete_job")  # with its versions
        with closing(Points(self.settings)) as points:  # also those of a job that someone deleted
            points.delete(MEASUREMENT, 0, _now_ms())  # what has codes would keep them when it is written again
        with self.story.part("Publish the shared library and fleet-ingest v1, v2 and v3"):
            libraries.publish(self.store, LIBRARY / "v1")
            for version in ("v1", "v2", "v3"):
                artifacts.publish(self.store, CODE, version)
        if len(self._members()) != 2:
            with self.story.part("Bring the cluster to two nodes (runbook scale_cluster)"):
                self._run("scale_cluster", of_cluster=True, size=2)
        with self.story.part("Deploy v1 on two nodes (runbook deploy_job)"):
            self._run("deploy_job", version="v1", addresses=self.addresses, library="fleet_types/v1")
        with self.story.part("Vehicles move on the map"):
            until(lambda: len(self._latest()) >= VEHICLES, 120, "Not every vehicle has a position; see the job's log.")
            first = {item.vin: (item.latitude, item.longitude) for item in self._latest()}

            def moved() -> int:
                return sum(first.get(item.vin) != (item.latitude, item.longitude) for item in self._latest())

            until(lambda: moved() >= VEHICLES, 120, "Not every vehicle moves; see the job's log.")
            self.say(f"  {moved()} vehicles have moved: {self.settings.airflow_url}/fleet/")
        self.found["vehicles"] = len(first)

    def _third_node(self) -> None:
        with self.story.part("A third node joins (runbook scale_cluster)"):
            self._run("scale_cluster", of_cluster=True, size=3)
        self.found["members"] = self._members()

    def _killed(self) -> None:
        runs: list[dict[str, Any]] = []
        for number in range(1, self.kills + 1):
            with self.story.part(f"Kill the node that runs the job, with kill -9 ({number} of {self.kills})"):
                node = self._host()
                begun = time.time()
                self.nodes.signal(node, "KILL")
                moment = datetime.fromtimestamp(begun, UTC)
                until(lambda moment=moment: self._newest_beta() > moment, HEALTHY_S, "Beta does not continue.")  # type: ignore[misc]
                took = round(time.time() - begun, 1)
                self.say(f"  {node} was killed; beta continued after {took} s")
                runs.append({"node": node, "seconds": took})
                until(lambda: len(self._members()) == 3, 90, "The killed worker does not come back; see 'make status'.")
        self.found["kills"] = {"runs": runs, "median_s": median(item["seconds"] for item in runs)}

    def _case_1(self) -> None:
        with self.story.part("Case 1: cancel and export, add a logging step, continue from the snapshot"):
            name = f"my-snapshot-{int(time.time())}"
            done = self._run("upgrade_job", version="v2", snapshot=name, standby=False)
            stopped = done.steps["await_stop"].finished or done.steps["await_stop"].started
            until(lambda: bool(self._logged(done.id)), 120, "No ping is logged; see the job's log.")
            times = [_time(text) for text in self._logged(done.id)]
            began = done.steps["healthy"].finished or records.now()
            meantime = sum(stopped <= moment <= began for moment in times)
            self.say(f"  {meantime} pings of the meantime were logged at once, the first: {self._logged(done.id)[0]}")
        with self.story.part("and remove the step the same way"):
            removed = self._run("upgrade_job", version="v3", snapshot=f"{name}-2", standby=False)
            if self._logged(removed.id):
                raise UnhealthyError("v3 logs pings, although it has no logging step.")
        self.found["case_1"] = {"snapshot": name, "logged": len(times), "meantime": meantime}

    def _case_2(self) -> dict[Key, Fields]:
        """The points that were written before the ping had codes."""
        before = self._deployment()
        with self.story.part("Case 2: the ping gains obd_codes; shutdown, new shared library, restart"):
            libraries.publish(self.store, LIBRARY / "v2")
            self._run("shutdown_cluster", of_cluster=True, library="fleet_types/v2")
            stopped_ms, plain = _now_ms(), self._stored()
            if any(CODES in fields for fields in plain.values()):
                raise UnhealthyError("Points of the old shared library carry obd_codes already; it must not read them.")
            self._run("restart_cluster", of_cluster=True)

            def codes() -> Counter[str]:
                found = self._stored(stopped_ms - 60_000)
                return with_codes(fields for key, fields in found.items() if key not in plain)

            until(lambda: set(codes()) == set(FLEETS), 120, "Not both fleets have obd_codes; see the job's log.")
            found, after = codes(), self._deployment()
            if after.artifact_sha256 != before.artifact_sha256:
                raise UnhealthyError("The job's artifact changed; it must stay as it was.")
            told = ", ".join(f"{fleet} {found[fleet]}" for fleet in FLEETS)
            self.say(f"  pings with codes: {told}; artifact {after.artifact_sha256[:12]} before and after")
        self.found["case_2"] = {
            "library": [before.library.label if before.library else "", after.library.label if after.library else ""],
            "artifact_sha256": [before.artifact_sha256, after.artifact_sha256],
            "pings_with_codes": {fleet: found[fleet] for fleet in FLEETS},
        }
        return plain

    # --- looks

    def _run(self, runbook: str, *, of_cluster: bool = False, **values: Any) -> Operation:
        if not of_cluster:
            values["job"] = JOB
        if runbook not in ("delete_job", "shutdown_cluster"):
            values["healthy_timeout_s"] = HEALTHY_S
        if runbook == "upgrade_job":
            values["probation_s"] = 0
        return self.story.run(self._runbooks, self.progress, request(runbook, **values))

    def _members(self) -> list[str]:
        return list(present(self.nodes.inventory, self.nodes.master()))

    def _deployment(self) -> records.Deployment:
        record = jobs.record(self.store, JOB)
        return jobs.deployment(self.store, JOB, record.deployment if record else 0)

    def _host(self) -> str:
        record = jobs.record(self.store, JOB)
        status = jobs.status(self.store, JOB, record.launch) if record and record.launch else None
        node = host_of(self.nodes.inventory, self.nodes.master(), status.driver) if status else None
        if node is None:
            raise UnhealthyError(f"No one knows where the driver of {JOB} runs; read 'streamops jobs show {JOB}'.")
        return node

    def _latest(self) -> list[Position]:
        return self._positions.latest(MEASUREMENT, minutes=5)

    def _newest_beta(self) -> datetime:
        times = [item.time for item in self._latest() if item.more.get("fleet") == "beta"]
        return max(times, default=datetime.fromtimestamp(0, UTC))

    def _stored(self, since_ms: int = 0) -> dict[Key, Fields]:
        with closing(Points(self.settings)) as points:
            return stored(points, MEASUREMENT, since_ms, _now_ms() + 60_000)

    def _logged(self, launch: str) -> list[str]:
        lines = joblogs.Reader(self.store, JOB).more()
        return [line.text for line in lines if line.logger == "sink.vehicles" and line.launch == launch]

    def _recount(self, plain: Container[Key]) -> Recounted:
        with closing(Points(self.settings)) as points:
            return recount(points, MEASUREMENT, self.ledgers, plain)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _time(logged: str) -> datetime:
    """When the ping of a logged line was made: its last two words, in UTC."""
    return datetime.fromisoformat(" ".join(logged.rsplit(" ", 2)[1:])).replace(tzinfo=UTC)


def summary(report: dict[str, Any]) -> list[str]:
    """The lines that end the demo."""
    kills, low_high = report["kills"], "{} to {} s".format(*report["reference_s"])
    times = ", ".join(f"{item['seconds']} s" for item in kills["runs"])
    counted = report["recount"]
    codes = ", ".join(f"{fleet} {count}" for fleet, count in report["case_2"]["pings_with_codes"].items())
    return [
        f"vehicles   {report['vehicles']} on the map",
        f"killed     beta continued after {times} (median {kills['median_s']:.1f} s; "
        f"the reference lab says {low_high})",
        f"case 1     {report['case_1']['meantime']} pings of the meantime logged after snapshot "
        f"{report['case_1']['snapshot']}",
        f"case 2     {' -> '.join(report['case_2']['library'])}, "
        f"pings with obd_codes: {codes}; the job's artifact stayed as it was",
        f"recount    {counted['pings']:,} pings: {counted['missing']} missing, {counted['wrong']} wrong, "
        f"{counted['unexpected']} unexpected",
        f"           {'CLEAN' if counted['clean'] else 'NOT CLEAN'}",
    ]
