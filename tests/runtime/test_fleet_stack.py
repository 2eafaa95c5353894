"""The fleet job on the real servers: both sources, an update while pings keep coming, a killed driver, tasks on two
members, a recount."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from fresh_fleet import TRIGGER_S, Fleet
from fresh_job import wait_for
from streamops.cli.logs import Executors
from streamops.model.records import DriverStatus
from streamops.recount.recounting import recount_job
from streamops.settings import Settings
from streamops.store.joblogs import Reader
from support import Operator, pythons

WAIT_S = 300  # finds what hangs
POLLED = "Highest sequence number is: "
BAD_LINES = 'no ping at all\n1HGCM82633A004352,41.0\n1HGCM82633A004352,north,-90.0,1700000000.0,""\n'


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_ping_is_missed_by_an_update_a_killed_driver_or_faults_of_the_sources(
    stack: Settings, tmp_path: Path
) -> None:
    fleet, operator = Fleet(stack, tmp_path), Operator(stack)
    try:
        _story(fleet, operator)
    finally:
        operator.run("cancel_job", fleet.name)


def _story(fleet: Fleet, operator: Operator) -> None:
    with fleet.simulator("alpha"):
        with fleet.simulator("beta"):
            operator.run("deploy_job", fleet.name, version="v1", addresses=fleet.addresses, library="fleet_types/v1")
            wait_for(lambda: fleet.saved() > 30, WAIT_S, "pings of both fleets as points")
            wait_for(
                lambda: any(POLLED in text for text in fleet.messages("source.beta")),
                WAIT_S,
                "the log of a poll that brought pings",
            )
            # Case 1: a logging step is added; what comes meanwhile is read afterwards. Polls are logged no more.
            quiet = {"version": "v2", "snapshot": "my-snapshot", "standby": False, "logging": {"source.beta": "INFO"}}
            update = operator.run("upgrade_job", fleet.name, **quiet)
            counted = update.facts("recount")  # by the runbook, from the files and the service themselves
            assert counted["clean"], counted["reason"]
            assert {item["field"] for item in counted["measurements"]} >= {"latitude", "longitude", "fleet"}
            wait_for(lambda: fleet.messages("sink.vehicles", update.id), WAIT_S, "a logged ping")
            assert fleet.messages("sink.vehicles", update.id)[0].startswith("SAVING PING: ")
        # Beta is away, alpha continues, and a file of bad lines is of no consequence.
        (fleet.alpha / "bad.csv").write_text(BAD_LINES)
        wait_for(lambda: fleet.faults().get("beta.unreachable", 0) > 0, WAIT_S, "the counted fault of beta")
        wait_for(lambda: _malformed(fleet) >= 3, WAIT_S, "the counted bad lines")
        before = fleet.saved()
        wait_for(lambda: fleet.saved() > before, WAIT_S, "pings of alpha while beta is away")
        with fleet.simulator("beta"):  # again, with its memory
            status = fleet.status()
            assert status is not None
            (driver,) = pythons(fleet.name)
            os.kill(driver.pid, signal.SIGKILL)
            wait_for(lambda: _other(fleet, status), WAIT_S, "a new driver")
            before = fleet.saved()
            wait_for(lambda: fleet.saved() > before + 20, WAIT_S, "pings after the driver was killed")
            told = fleet.messages("source.beta", update.id)
            assert any("asked again" in text for text in told), told  # warnings are still told
            assert not [text for text in told if POLLED in text]
            loud = {
                "source.alpha": "DEBUG",
                "source.beta": "DEBUG",
                "org.apache.spark.sql.execution.streaming": "DEBUG",
            }
            operator.run("set_log_levels", fleet.name, logging=loud)
            wait_for(
                lambda: {"source.beta", "MicroBatchExecution"} <= _debugging(fleet, update.id),
                WAIT_S,
                "what both say now",
            )
            wait_for(lambda: len(_readers(fleet)) == 2, WAIT_S, "files of alpha read on two members")
            commits, began = _commits(fleet), time.monotonic()
            wait_for(lambda: _commits(fleet) >= commits + 6, WAIT_S, "six commits")
            # The sixth may have been the next to come, and each a little sooner or later than its time.
            assert time.monotonic() - began > 4 * TRIGGER_S
    found = fleet.recounted()
    assert found.clean, found
    report = fleet.report()
    assert report.clean, report
    assert {item.by for item in report.measurements} == {"functions"}
    assert report.measurements[0].expected > 30
    report = recount_job(fleet.settings, fleet.store, fleet.name)  # while nobody answers for beta
    assert "cannot be asked from here" in report.left_out["vehicles"]
    # Both sources move: the files with what was read of them to another directory, the service to another address.
    fleet.move()
    again = {"version": "v2", "snapshot": "moved", "standby": False, "addresses": fleet.addresses}
    moved = operator.run("upgrade_job", fleet.name, **again)
    assert moved.facts("check")["outcomes"] == {"vehicles": "kept with caveat"}
    before = fleet.saved()
    with fleet.simulator("alpha"), fleet.simulator("beta"):
        wait_for(lambda: fleet.saved() > before + 40, WAIT_S, "pings that come from the new places")
    found = fleet.recounted()
    assert found.clean, found


def _debugging(fleet: Fleet, launch: str) -> set[str]:
    """The loggers that have said what they say at DEBUG alone; of Spark's, the class's name."""
    lines = Reader(fleet.store, fleet.name).more()
    return {line.logger for line in lines if line.launch == launch and line.level == "DEBUG"}


def _readers(fleet: Fleet) -> set[str]:
    """The members whose tasks have said that they read files of alpha."""
    lines = Executors(fleet.settings, fleet.store, fleet.name).more()
    return {line.host for line in lines if line.logger == "source.alpha" and line.level == "DEBUG"}


def _commits(fleet: Fleet) -> int:
    status = fleet.status()
    return status.stages["vehicles"].commits if status and status.stages else 0


def _malformed(fleet: Fleet) -> int:
    status = fleet.status()
    return status.stages["vehicles"].malformed_rows if status and status.stages else 0


def _other(fleet: Fleet, before: DriverStatus) -> bool:
    status = fleet.status()
    return status is not None and status.holder != before.holder and any(s.commits for s in status.stages.values())
