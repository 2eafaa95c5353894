"""When a snapshot is due, decided from the schedule and the clock alone; and setting another schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fakes.fixtures import made_rig
from fakes.rig import JOB, Rig
from streamops.model import definitions, records, schedules
from streamops.model.definitions import Keep, Snapshots
from streamops.model.errors import DefinitionError, StreamOpsError
from streamops.model.schedules import due
from streamops.operations import housekeeping
from streamops.settings import REPOSITORY, Settings
from streamops.upkeep import scheduled
from streamops.versions.template import write_new

HOURLY, CRON = Snapshots(every="1 hour"), Snapshots(cron="30 2 * * 1-5")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("plan", "last", "moment", "slot", "missed"),
    [
        (HOURLY, "2026-03-16 11:00", "2026-03-16 11:59:59", None, 0),
        (HOURLY, "2026-03-16 11:00", "2026-03-16 12:00", "2026-03-16 12:00", 0),
        (HOURLY, "2026-03-16 11:00", "2026-03-16 12:59", "2026-03-16 12:00", 0),
        (HOURLY, "2026-03-16 11:00", "2026-03-16 15:07", "2026-03-16 15:00", 3),
        (HOURLY, "2026-03-16 16:00", "2026-03-16 15:07", None, 0),  # the clock went back
        (CRON, "2026-03-13 02:30", "2026-03-16 02:29", None, 0),  # Friday, then the weekend
        (CRON, "2026-03-13 02:30", "2026-03-16 02:30", "2026-03-16 02:30", 0),
        (CRON, "2026-03-13 02:30", "2026-03-17 09:00", "2026-03-17 02:30", 1),
        (Snapshots(), None, "2026-03-17 09:00", None, 0),
        (None, None, "2026-03-17 09:00", None, 0),
    ],
)
def test_due(plan: Snapshots | None, last: str | None, moment: str, slot: str | None, missed: int) -> None:
    found = due(plan, at(last) if last else None, LONG_AGO, at(moment))
    if slot is None:
        assert found is None
    else:
        assert (found.slot, found.missed, found.late) == (at(slot), missed, at(moment) - at(slot))


def test_a_job_just_deployed_waits_for_the_first_time_after_that() -> None:
    since = at("2026-03-16 11:20")
    assert due(HOURLY, None, since, at("2026-03-16 11:50")) is None
    assert due(HOURLY, None, since, at("2026-03-16 12:01")).slot == at("2026-03-16 12:00")
    # What was taken before the deployment does not matter.
    assert due(HOURLY, at("2026-03-16 09:00"), since, at("2026-03-16 12:01")).missed == 0


def test_every_time_is_met_once_whoever_looks_when() -> None:
    last, since, moment, taken = None, LONG_AGO, LONG_AGO + timedelta(seconds=1), []
    while moment < LONG_AGO + timedelta(days=2):
        if (found := due(HOURLY, last, since, moment)) is not None:
            taken.append(found.name)
            last = found.slot
        moment += timedelta(seconds=283)
    assert len(taken) == len(set(taken)) == 47
    assert taken[0] == "scheduled-20260101T010000Z"


@pytest.mark.parametrize(
    "text",
    [
        "every: 59 seconds",
        "every: 90",
        "every: 1 hour, cron: '0 * * * *'",
        "cron: '* * *'",
        "cron: 'a b c d e'",
        "each: 1 hour",
    ],
)
def test_a_wrong_schedule_is_refused_with_the_definition(text: str) -> None:
    with pytest.raises(DefinitionError, match="snapshots"):
        definitions.parse(
            "job: j\nversion: v1\ncode: j.py\nsources: {e: {kafka: {topic: e}, schema: 'n long'}}\n"
            f"stages: {{a: {{sinks: [{{influxdb: {{measurement: a}}}}]}}}}\nsnapshots: {{{text}}}\n"
        )


@pytest.mark.parametrize("cron", ["61 * * * *", "0 0 30 2 *", "0 25 * * *"])
def test_a_cron_that_never_comes_is_refused(cron: str) -> None:
    with pytest.raises(DefinitionError, match=r"snapshots\.cron"):
        schedules.require_valid(Snapshots(cron=cron))


@pytest.mark.parametrize("cron", ["0 * * * *", "* * * * *", "*/5 * * * *", "30 2 * * 1-5", "0 3 1 * *", "0 0 29 2 *"])
def test_a_good_cron_passes(cron: str) -> None:
    schedules.require_valid(Snapshots(cron=cron))


def test_shipped_and_new_jobs_have_a_schedule_and_a_rule_for_keeping(tmp_path: Path) -> None:
    write_new(tmp_path / "clicks")
    shipped = [*(REPOSITORY / "spark_jobs").glob("*/v*.yaml"), tmp_path / "clicks" / "v1.yaml"]
    assert len(shipped) > 8
    for path in shipped:
        found = definitions.load(path).snapshots
        assert found is not None, path
        assert found.every or found.cron, path
        assert found.keep is not None, path


@pytest.mark.full
def test_a_schedule_that_is_set_holds_at_once_and_over_the_definition_until_that_is_to_hold_again(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    launch, before = rig.record().launch, records.now()
    assert scheduled.plan_of(rig.store, JOB)[0] is None
    rig.run("schedule_job", every="1 minute", keep={"last": 2})
    plan, since = scheduled.plan_of(rig.store, JOB)
    assert plan == Snapshots(every="1 minute", keep=Keep(last=2))
    assert since > before  # what was due before is not made up for
    assert housekeeping.keep_of(rig.store, JOB) == Keep(last=2)
    found = scheduled.look(rig.store, since + timedelta(minutes=1, seconds=1)).findings
    assert [item.scope for item in found] == [JOB]

    rig.run("schedule_job", keep={"last": 1, "daily": 7})
    assert scheduled.plan_of(rig.store, JOB)[0] == Snapshots(every="1 minute", keep=Keep(last=1, daily=7))
    rig.run("schedule_job", never=True)
    assert scheduled.plan_of(rig.store, JOB)[0] == Snapshots(keep=Keep(last=1, daily=7))
    assert rig.record().launch == launch
    rig.run("schedule_job", as_defined=True)
    assert rig.record().snapshots is None


@pytest.fixture(scope="module")
def deployed(object_store_server: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A job at work, for what is refused."""
    with made_rig(object_store_server, tmp_path_factory.mktemp("rig")) as rig:
        rig.run("deploy_job", version="v1")
        yield rig


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "say what changes"),
        ({"never": True, "as_defined": True}, "goes with none of them"),
        ({"every": "1 hour", "cron": "0 * * * *"}, "choose one"),
        ({"every": "5 seconds"}, "at least 1 minute"),
        ({"cron": "0 0 30 2 *"}, "never comes"),
        ({"keep": {"lasts": 1}}, "lasts"),
        ({"keep": {"last": 0}}, "last"),
    ],
)
def test_what_is_no_schedule_is_refused(deployed: Rig, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(StreamOpsError, match=says):
        deployed.run("schedule_job", **asked)
    assert deployed.record().snapshots is None
