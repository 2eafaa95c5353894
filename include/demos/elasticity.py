"""The cluster's demo: shut down, look at no new data, start, catch up; add a member, kill one, let one go."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from demos.freshness import Watcher, latenesses, longest_pause
from demos.upgrade import HEALTHY_S, JOB, MEASUREMENTS, SYMBOLS, TOPIC, Demo, report_head, until
from streamops.clients.airflow import Airflow
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.cluster.membership import present
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import host_of
from streamops.model.errors import UnhealthyError
from streamops.operations.facts import ClusterChecked, JobsCaughtUp, Waited
from streamops.operations.follow import Runbooks, request
from streamops.operations.operation import Operation
from streamops.recount.recounting import recount_job
from streamops.store.jobs import status

RUNBOOKS = ("deploy_job", "start_job", "shutdown_cluster", "restart_cluster", "scale_cluster")
NAME = "elasticity"
QUIET_S = 20.0  # of the cluster's absence, and of undisturbed running
DOWN = "the cluster is down"


@dataclass
class Elasticity:
    """The story on a running stack; what it needs of a job and its traffic is the demo's.

    Args:
        traffic_s: how long trades flow between two events.
        quiet_s: how long the cluster is away.
    """

    demo: Demo
    traffic_s: float = 30.0
    quiet_s: float = QUIET_S
    events: list[dict[str, Any]] = field(default_factory=list)

    def tell(self) -> dict[str, Any]:
        """Run the whole story and return the report.

        Raises:
            StreamOpsError: a part of it failed; what runs is left as it is.
        """
        demo = self.demo
        self._nodes = SupervisedNodes(demo.settings)
        with (
            closing(Dashboard(demo.settings)) as dashboard,
            Airflow(demo.settings) as airflow,
            Watcher(partial(dashboard.newest, MEASUREMENTS, SYMBOLS[0])) as watcher,
        ):
            self._watcher, self._runbooks = watcher, Runbooks(airflow, demo.store)
            demo.wait_for_trades()
            demo.publish()
            with demo.story.part("Wait until Airflow has read the runbooks"):
                self._runbooks.wait_ready(RUNBOOKS)
            demo.bring_running(self._runbooks)
            self._at_size(2)
            rate = demo.traffic(demo.record().version or "", self.traffic_s, watcher)
            began = time.time() - self.traffic_s
            quiet = longest_pause(watcher.seen("avg_1s"), _ms(time.time() - self.quiet_s), _ms(time.time()))
            restart = self._down_and_up()
            self._scale(3, "a member joins")
            demo.traffic(demo.record().version or "", self.traffic_s, watcher)
            self._kill()
            self._scale(2, "a member leaves")
            demo.traffic(demo.record().version or "", self.traffic_s, watcher)
            with demo.story.part("Recount: compute everything again from the topic, and compare"):
                recount = recount_job(demo.settings, demo.store, JOB)
            seen = watcher.seen("avg_1s")
            first, last = _ms(began), max(point.window_end_ms for point in seen)
            return {
                **report_head(first, last, rate, demo.story.parts),
                "version": demo.record().version,
                "down": DOWN,
                "events": self.events,
                "quiet_pause_s": quiet,
                "restart": restart,
                "recount": recount.model_dump(mode="json"),
                "series": {
                    "avg_1s": {name: dashboard.series("avg_1s", first, last + 1, name) for name in SYMBOLS},
                    "lateness": [(at, late) for at, late in latenesses(seen) if at >= first],
                },
            }

    def _members(self) -> list[str]:
        return list(present(self._nodes.inventory, self._nodes.master()))

    def _run(self, runbook: str, **values: Any) -> Operation:
        asked = request(runbook, healthy_timeout_s=HEALTHY_S, **values)
        return self.demo.story.run(self._runbooks, self.demo.progress, asked)

    def _at_size(self, size: int) -> None:
        """An earlier story may have left another size."""
        if len(self._members()) != size:
            with self.demo.story.part(f"Bring the cluster to {size} members (runbook scale_cluster)"):
                self._run("scale_cluster", size=size)

    def _event(self, name: str, begun: float, ended: float, told: str) -> None:
        pause = longest_pause(self._watcher.seen("avg_1s"), _ms(begun), _ms(ended))
        self.events.append(
            {
                "name": name,
                "from_ms": _ms(begun),
                "to_ms": _ms(ended),
                "pause_s": pause,
                "members": self._members(),
                "told": told,
            }
        )
        self.demo.say(f"  {name}: {told}; longest time without a new point {pause or 0:.1f} s")

    def _newer_than(self, moment: float) -> None:
        """Wait for a point of a window that ended after this moment."""
        until(
            lambda: any(point.window_end_ms > _ms(moment) for point in self._watcher.seen("avg_1s")[-1:]),
            HEALTHY_S,
            f"No new point of avg_1s appears; read 'streamops jobs show {JOB}'.",
        )

    def _down_and_up(self) -> dict[str, Any]:
        demo, begun = self.demo, time.time()
        with demo.story.part("Shut the cluster down (runbook shutdown_cluster)"):
            self._run("shutdown_cluster")
        quiet = f"{self.quiet_s:.0f} s without a cluster: trades arrive, no new point appears"
        with closing(Ledger(demo.settings)) as ledger, demo.story.part(quiet):
            points, arrived = len(self._watcher.seen("avg_1s")), sum(ledger.end_offsets(TOPIC).values())
            time.sleep(self.quiet_s)  # the absence is the point
            unread = sum(ledger.end_offsets(TOPIC).values()) - arrived
            fresh = len(self._watcher.seen("avg_1s")) - points
            demo.say(f"  {unread:,} trades arrived; {fresh} new points")
            if fresh:
                raise UnhealthyError("Points appeared although the cluster is down; who writes them?")
        with demo.story.part("Start it again; the job comes back by itself (runbook restart_cluster)"):
            done = self._run("restart_cluster")
        told = done.reported("caught_up", JobsCaughtUp).jobs[JOB]
        self._newer_than(time.time())
        ended = time.time()
        self._event(DOWN, begun, ended, f"{told.events:,} trades caught up with in {told.seconds} s")
        return {"unread": unread, "events": told.events, "seconds": told.seconds}

    def _scale(self, size: int, name: str) -> None:
        begun = time.time()
        with self.demo.story.part(f"{name.capitalize()} (runbook scale_cluster, size {size})"):
            done = self._run("scale_cluster", size=size)
        ended = time.time()
        self._newer_than(ended)
        grew = done.reported("check", ClusterChecked).start
        why = done.reported("in_use", Waited).why if grew else ""
        self._event(name, begun, ended, why or "the job continued")

    def _kill(self) -> None:
        demo, launch = self.demo, self.demo.record().launch
        found = status(demo.store, JOB, launch) if launch else None
        node = host_of(self._nodes.inventory, self._nodes.master(), found.driver) if found else None
        if node is None:
            raise UnhealthyError(f"No one knows where the driver of {JOB} runs; read 'streamops jobs show {JOB}'.")
        with demo.story.part(f"Kill the worker on {node}, which hosts the driver, with kill -9"):
            begun = time.time()
            self._nodes.signal(node, "KILL")
            self._newer_than(begun)
            ended = time.time()
            until(lambda: len(self._members()) == 3, 60, "The killed worker does not come back; see 'make status'.")
            self._event("a member is killed", begun, ended, f"{node} hosted the driver")


def _ms(moment: float) -> int:
    return round(moment * 1000)


def summary(report: dict[str, Any]) -> list[str]:
    """The lines that end the demo."""
    lines = [f"rate       {report['rate']['reached']:,.0f} trades/s (asked for {report['rate']['asked']:,})"]
    for item in report["events"]:
        took = (item["to_ms"] - item["from_ms"]) / 1000
        lines.append(f"{took:6.1f} s   {item['name']}: {item['told']}")
        lines.append(f"  felt     {item['pause_s'] or 0:.1f} s without a new avg_1s point")
    quiet = report["quiet_pause_s"] or 0
    lines.append(f"  felt     {quiet:.1f} s while nothing happened")
    recount = report["recount"]
    lines.append(f"recount    {'CLEAN' if recount['clean'] else 'NOT CLEAN'}: {recount['reason']}")
    return lines
