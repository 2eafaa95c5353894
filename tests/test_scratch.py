"""Restore tests: what the scratch job is, which snapshot is due, and how far it must continue."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from fakes import manifests
from streamops.model.definitions import Definition, load
from streamops.model.errors import DefinitionError, LockedError
from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.names import checked
from streamops.model.owner import Owner
from streamops.model.records import DriverStatus, JobRecord, StageStart, StageStatus, State, now
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation
from streamops.settings import REPOSITORY
from streamops.snapshots.marks import Check, Checks
from streamops.upkeep import scratch
from streamops.upkeep.restore_tests import RestoreTests
from streamops.versions import artifacts

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MARK = 1_000_000_000
RUN = Owner(kind="airflow", dag_id="verify_snapshots", run_id="one")
OTHER_RUN = Owner(kind="airflow", dag_id="verify_snapshots", run_id="two")
COMMAND = Owner(kind="cli", run_id="three")


@pytest.fixture(scope="module")
def definition() -> Definition:
    """The trade job with three stages of 1 s and 60 s windows."""
    return load(REPOSITORY / "spark_jobs" / "trade_analyser" / "v2.yaml")


def manifest(name: str = "s", days_old: float = 0, **watermarks: int | None) -> Manifest:
    stages = {
        stage: ManifestStage(offsets={"trades": {"0": 500}}, watermark_ms=at, start=StageStart(since_deployment=1))
        for stage, at in watermarks.items()
    }
    return manifests.manifest("j", name, created=NOW - timedelta(days=days_old), version="v2", stages=stages)


def checks(how: str = "read back", days_ago: float = 0, problem: str = "") -> Checks:
    check = Check.model_validate(
        {"how": how, "when": NOW - timedelta(days=days_ago), "attempt": "", "problem": problem}
    )
    return Checks(checks={how: check})


@pytest.mark.parametrize("job", ["trades", "t" * 63])
def test_a_scratch_name_is_a_job_name_of_its_own(job: str) -> None:
    name = scratch.scratch_name(job)
    assert checked("job", name) == name
    assert name.startswith("scratch-")
    assert name != scratch.scratch_name(job[:-1] + "x")


def test_a_published_job_may_not_have_such_a_name(tmp_path) -> None:
    source = REPOSITORY / "spark_jobs" / "trade_analyser"
    (tmp_path / "trade_analyser.py").write_text((source / "trade_analyser.py").read_text())
    (tmp_path / "v1.yaml").write_text((source / "v1.yaml").read_text().replace("trade-analyser", "scratch-mine"))
    with pytest.raises(DefinitionError, match="belong to restore tests"):
        artifacts.publish(None, tmp_path, "v1")


def test_it_computes_the_same_and_writes_only_what_is_its_own(definition: Definition) -> None:
    one, two = scratch.derived(definition, "one"), scratch.derived(definition, "two")
    assert one.sources == definition.sources
    assert {name: stage.recount for name, stage in one.stages.items()} == {
        name: stage.recount for name, stage in definition.stages.items()
    }
    written = [set(item.measurements) for item in (definition, one, two)]
    assert all(len(names) == 3 for names in written)
    assert len(set.union(*written)) == 9
    assert one.snapshots is None
    assert scratch.is_scratch(one)
    assert Definition.model_validate_json(one.canonical()) == one


def test_the_newest_good_snapshot_is_due_once_a_week() -> None:
    old, new, bad = manifest("old", 3), manifest("new", 2), manifest("bad", 1)
    rows = [(new, checks()), (old, Checks()), (bad, checks(problem="an object is missing"))]
    assert scratch.due(rows, NOW) == new
    assert scratch.due([*rows[1:], (new, checks("restored", 8))], NOW) == new
    assert scratch.due([(new, Checks()), (old, checks("restored", 6))], NOW) is None
    assert scratch.due([(new, Checks()), (old, checks("restored", 6))], NOW, timedelta(0)) == new
    assert scratch.due([(bad, checks("restored", 8, "wrong")), (old, Checks())], NOW) == old
    assert scratch.due([(bad, checks(problem="x"))], NOW) is None
    assert scratch.due([], NOW) is None


def test_what_a_restore_found_wrong_is_not_made_good_by_intact_objects() -> None:
    both = Checks(checks={**checks("restored", 2, "wrong results").checks, **checks("read back", 1).checks})
    assert both.problem() == "wrong results"


def test_events_are_read_from_before_the_windows_that_were_open(definition: Definition) -> None:
    asked: list[tuple[str, int]] = []

    def offsets_at(source: str, ms: int) -> dict[str, int]:
        asked.append((source, ms))
        return {"0": 77}

    taken = manifest(avg_1s=MARK, avg_1m=MARK + 5, vol_1s=None)
    since, after = scratch.recount_from(definition, taken, offsets_at)
    assert after == {"avg_1s": MARK, "avg_1m": MARK + 5}
    assert since == {"trades": {"0": 77}}
    [(source, ms)] = asked
    assert source == "trades"
    assert ms == MARK + 5 - 60_000 - scratch.MARGIN_MS


def at(definition: Definition, read: int, watermark_ms: int, **more: int) -> DriverStatus:
    stage = StageStatus(commits=1, offsets={"trades": {"0": read}}, watermark_ms=watermark_ms)
    stages = {name: stage.model_copy(update=more) for name in definition.stages}
    return DriverStatus(
        job="j", deployment=1, launch="l", holder="h", state=State.RUNNING, started=NOW, updated=NOW, stages=stages
    )


@pytest.mark.parametrize(
    ("read", "gone_s", "done"),
    [(501, 10, False), (501, 179, False), (501, 180, True), (900, 0, True), (899, 0, False)],
)
def test_it_goes_on_for_two_windows_and_a_minute_or_to_the_end(definition, read: int, gone_s: int, done: bool) -> None:
    taken = manifest(**dict.fromkeys(definition.stages, MARK))
    status = at(definition, read, MARK + gone_s * 1000)
    missing = scratch.waiting_for(status, definition, taken, {"trades": {"0": 900}})
    assert (not missing) == done
    if not done:
        assert any(text.startswith("avg_1m: ") for text in missing)


def test_a_stage_without_a_batch_is_waited_for(definition: Definition) -> None:
    taken = manifest(**dict.fromkeys(definition.stages, MARK))
    ends = {"trades": {"0": 500}}
    assert len(scratch.waiting_for(None, definition, taken, ends)) == 3
    assert "its first batch" in scratch.waiting_for(at(definition, 500, MARK, commits=0), definition, taken, ends)[0]
    quiet = at(definition, 500, MARK, commits=0, quiet=True)
    assert scratch.waiting_for(quiet, definition, taken, ends) == []
    silent = at(definition, 0, MARK, commits=0, quiet=True, offsets={})  # no event came since the snapshot
    assert scratch.waiting_for(silent, definition, taken, ends) == []
    assert scratch.waiting_for(silent, definition, taken, {"trades": {"0": 501}}) != []
    assert scratch.waiting_for(silent, definition, taken, {**ends, "others": {"0": 9}}) == []  # read by no stage


def test_only_what_a_restore_test_has_published_is_ever_removed(definition: Definition) -> None:
    theirs = definition.model_copy(update={"job": "scratch-j"})
    marked = theirs.model_copy(update={"description": scratch.derived(definition, "t").description})
    assert not scratch.is_scratch(theirs)
    assert not scratch.is_scratch(marked)


def test_stages_that_write_updates_are_not_compared(definition: Definition) -> None:
    update = {name: stage.model_copy(update={"output": "update"}) for name, stage in definition.stages.items()}
    changed = definition.model_copy(update={"stages": {**definition.stages, "vol_1s": update["vol_1s"]}})
    taken = manifest(avg_1s=MARK, vol_1s=MARK)
    assert scratch.recount_from(changed, taken, lambda source, ms: {})[1] == {"avg_1s": MARK}


class Asked:
    """An engine of which only the last operation on the scratch job is known, and whether its owner has finished."""

    def __init__(self, owner: Owner, over: bool | None, minutes: float = 0) -> None:
        self.store = self.ports = self.owners = self
        moment = now() - timedelta(minutes=minutes)
        asked = ask("deploy_job", job="scratch-j", version="v1")
        self.last = Operation(id="op", request=asked, owner=owner, created=moment, updated=moment)
        self.over = over

    def get(self, key: str) -> object:
        body = JobRecord(job="scratch-j", changed_by="op").model_dump_json().encode()
        return SimpleNamespace(body=body, etag="e", age=timedelta(0))

    def find(self, job: str, operation: str) -> Operation:
        return self.last

    def finished(self, owner: Owner) -> bool | None:
        return self.over


@pytest.mark.parametrize(
    ("owner", "over", "minutes", "refused"),
    [
        (RUN, False, 60, False),  # an earlier try of the same run
        (OTHER_RUN, False, 60, True),
        (OTHER_RUN, True, 0, False),
        (COMMAND, None, 1, True),
        (COMMAND, None, 60, False),
    ],
)
def test_two_tests_of_one_job_do_not_take_the_scratch_job_from_each_other(owner, over, minutes, refused) -> None:
    expected = pytest.raises(LockedError, match="right now") if refused else nullcontext()
    with expected:
        RestoreTests(None, Asked(owner, over, minutes), RUN).refuse_another("scratch-j")
