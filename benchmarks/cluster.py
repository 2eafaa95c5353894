"""The cluster under a job: a killed worker, an outage, a node more and a node less."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.session import Session
from demos.fleet.story import JOB as FLEET_JOB
from demos.fleet.story import REFERENCE_S, FleetStory
from demos.freshness import longest_pause
from demos.upgrade import JOB, RATE, RUNBOOKS, until
from stack import lifecycle
from streamops.cluster.membership import present
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import host_of
from streamops.model.records import DriverStatus, State
from streamops.operations import runbooks
from streamops.operations.facts import JobsCaughtUp
from streamops.operations.follow import request
from streamops.operations.operation import Operation
from streamops.store import documents, keys
from streamops.versions import artifacts

OUTAGE_S = 60.0
QUIET_S = 40.0
BACK_S = 240.0
STEADY_S = 20.0  # what warming up took from the job is made good by then
APART_S = 900.0  # the master chooses workers by chance, and each try takes a minute or two
WARM = ("prepare", "rest", "warm_up")  # phases of a second driver before it stands by
CLUSTER_RUNBOOKS = (*RUNBOOKS, "shutdown_cluster", "restart_cluster", "scale_cluster")


def scale(session: Session) -> dict[str, Any]:
    """The longest time without a new point while a node joins, and while one leaves. Seconds."""
    nodes = _ready(session, session.to_v2)
    quiet = _pause(session, lambda: time.sleep(QUIET_S))  # the interval of the measurement
    grown = _pause(session, lambda: _scaled(session, 3))
    session.caught_up()
    shrunk = _pause(session, lambda: _scaled(session, 2, without=_free_node(session, nodes)))
    session.caught_up()
    return {"quiet_pause_s": quiet, "scale_out_pause_s": grown, "scale_in_pause_s": shrunk}


def kills(session: Session, times: int) -> dict[str, Any]:
    """The driver's worker killed, with nothing that stands by. Seconds."""
    return _summed(_kills(session, _ready(session, session.to_v2), times))


def live_kills(session: Session, times: int) -> dict[str, Any]:
    """The same with v3, all of whose stages are in real time. Seconds."""
    return _summed(_kills(session, _ready(session, session.to_v3), times))


def fleet_kills(session: Session, times: int) -> dict[str, Any]:
    """The node killed that runs the fleet's job, one of three, as the reference lab does it. Seconds."""
    _ready(session, session.to_v1)
    _run(session, "cancel_job", job=JOB)  # the fleet is alone there
    lifecycle.generator_stop()
    lifecycle.fleet_start()
    story = FleetStory(session.demo.settings, session.demo.say, session.demo.progress, kills=times)
    found = story.kill_nodes()
    _run(session, "delete_job", job=FLEET_JOB)
    lifecycle.fleet_stop()
    _run(session, "scale_cluster", size=2)
    lifecycle.generator_start()
    return {"kills": found["runs"], "median_s": found["median_s"], "reference_s": REFERENCE_S}


def second_driver(session: Session, times: int) -> dict[str, Any]:
    """The same with v1 and a second driver on another worker. Seconds.

    Not with v2: two cores, which all servers share as well, are too few for it and for a second driver's executors.
    """
    nodes = _ready(session, session.to_v1)
    with_second_driver(session)
    found = _kills(session, nodes, times, ready=lambda: _second_is_apart(session, nodes))
    session.to_v1()
    return _summed(found)


def _ready(session: Session, bring: Callable[[], None]) -> SupervisedNodes:
    """The version running on two nodes."""
    nodes = SupervisedNodes(session.demo.settings)
    session.runbooks.wait_ready(CLUSTER_RUNBOOKS)
    bring()
    if len(_members(nodes)) != 2:
        _run(session, "scale_cluster", size=2)
    return nodes


def _summed(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kills": found, "median_s": median(item["seconds"] for item in found)}


def _kills(
    session: Session, nodes: SupervisedNodes, times: int, ready: Callable[[], bool] = lambda: True
) -> list[dict[str, Any]]:
    found = []
    for number in range(times):
        until(ready, APART_S, "no second driver is warm on another worker; is there room for one?")
        session.caught_up()
        found.append(kill(session, nodes))
        print(f"killed {number + 1} of {times}: first new point after {found[-1]['seconds']:.1f} s", flush=True)
        session.caught_up()
        until(lambda: len(_members(nodes)) == 2, 90, "the killed worker does not come back; see 'make status'")
    return found


def with_second_driver(session: Session) -> None:
    """Upgrade to v1 as it is, but with ``standby_driver: true``."""
    version = f"v1-pair-{int(time.time())}"  # published with the code of today
    text = (session.demo.options.directory / "v1.yaml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(shutil.copytree(session.demo.options.directory, Path(scratch) / JOB))
        changed = text.replace("version: v1", f"version: {version}") + "standby_driver: true\n"
        (directory / f"{version}.yaml").write_text(changed, encoding="utf-8")
        artifacts.publish(session.demo.store, directory, version)
    session.upgrade(version)
    session.caught_up()


def _second_is_apart(session: Session, nodes: SupervisedNodes) -> bool:
    """Whether the second driver has stood by for a while, on another node than the first."""
    launch, first = session.demo.record().launch, session.status()
    found = documents.read(session.demo.store, keys.second_driver(JOB, launch), DriverStatus) if launch else None
    if found is None or first is None or found.value.state is not State.STANDBY:
        return False
    warm = found.value.started + timedelta(milliseconds=sum(found.value.phases_ms[name] for name in WARM))
    if (found.value.updated - warm).total_seconds() < STEADY_S:
        return False
    master = nodes.master()
    hosts = {master.worker_of(item.driver) for item in (found.value, first)}
    return None not in hosts and len(hosts) == 2


def kill(session: Session, nodes: SupervisedNodes) -> dict[str, Any]:
    """Kill -9 of the worker that hosts the driver; until the first newer point, with what happened in between."""
    before = session.status()
    node = host_of(nodes.inventory, nodes.master(), before.driver) if before else None
    if before is None or node is None:
        raise SystemExit("the master holds no driver of the job")
    begun = time.time()
    nodes.signal(node, "KILL")

    def other() -> bool:
        found = session.status()
        return found is not None and found.holder != before.holder

    until(other, BACK_S, "no new driver appears")
    until(lambda: _newest(session) > begun, BACK_S, "no new point of avg_1s appears")
    seconds = time.time() - begun
    found = session.status()
    assert found is not None
    return {"seconds": round(seconds, 1), "node": node, "phases": _phases(found, begun, seconds)}


def _phases(found: DriverStatus, begun: float, seconds: float) -> dict[str, float]:
    """Where the time went, as the new driver tells it."""
    started = (found.started - datetime.fromtimestamp(begun, UTC)).total_seconds()
    took = {name: ms / 1000 for name, ms in found.phases_ms.items()}
    if "second" in took:  # it stood by, and was there all the time
        took_over = started + sum(took[name] for name in (*WARM, "second"))
        loaded = took["restore"] + took["repartition"]
        return {
            "until the second driver took over": round(took_over, 1),
            "until it had copied the newest state": round(loaded, 1),
            "until its queries were started": round(took["start"], 1),
            "until the first new point": round(seconds - took_over - loaded - took["start"], 1),
        }
    boot = took.get("boot", 0.0)
    return {
        "until a driver process was started again": round(max(0.0, started - boot), 1),
        "until its Spark context and code were there": round(boot, 1),
        "until the first new point": round(seconds - started, 1),
    }


def outage(session: Session) -> dict[str, Any]:
    """A shutdown, a minute of nothing, a restart: how long, and how fast each version catches up."""
    _ready(session, session.to_v2)
    found = {"v2": _outage(session)}
    session.to_v1()
    return {"v1": _outage(session), **found}


def _outage(session: Session) -> dict[str, Any]:
    _run(session, "shutdown_cluster")
    time.sleep(OUTAGE_S)  # the outage
    begun = time.monotonic()
    done = _run(session, "restart_cluster")
    seconds = time.monotonic() - begun
    told = done.reported("caught_up", JobsCaughtUp).jobs[JOB]  # other jobs may run as well: the map of the fleet
    return {
        "seconds": round(seconds, 1),
        "events": told.events,
        "started_and_caught_up_s": told.seconds,
        "catch_up_s": told.processing_s,
        "times_the_rate": round(told.events / told.processing_s / RATE, 2),
    }


def _scaled(session: Session, size: int, without: str | None = None) -> None:
    _run(session, "scale_cluster", size=size, nodes=(without,) if without else None)


def _free_node(session: Session, nodes: SupervisedNodes) -> str | None:
    """A member that hosts no driver, so that only executors have to leave."""
    status, master = session.status(), nodes.master()
    host = host_of(nodes.inventory, master, status.driver) if status else None
    return next((name for name in reversed(_members(nodes)) if name != host), None)


def _members(nodes: SupervisedNodes) -> tuple[str, ...]:
    return present(nodes.inventory, nodes.master())


def _newest(session: Session) -> float:
    """End of the newest window of avg_1s that could be read, in seconds since the epoch."""
    seen = session.watcher.seen("avg_1s")
    return seen[-1].window_end_ms / 1000 if seen else 0.0


def _pause(session: Session, act: Any) -> float | None:
    """The longest time without a new point while something is done, and until a newer point can be read."""
    begun = time.time()
    act()
    ended = time.time()
    until(lambda: _newest(session) > ended, BACK_S, "no new point of avg_1s appears")
    return longest_pause(session.watcher.seen("avg_1s"), int(begun * 1000), int(ended * 1000))


def _run(session: Session, runbook: str, **values: Any) -> Operation:
    if "healthy_timeout_s" in runbooks.find(runbook).request.model_fields:
        values["healthy_timeout_s"] = 300
    asked = request(runbook, **values)
    return session.runbooks.run(asked, session.demo.progress())
