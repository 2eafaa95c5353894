"""What going back costs, from a snapshot and from where the job stands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fakes import manifests
from fakes.rig import definition
from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.records import DriverStatus, StageStart, StageStatus, State, distance
from streamops.operations.cost import begins, cost, lines
from streamops.operations.going_back import assess_catch_up

TAKEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
START = StageStart(since_deployment=1, offsets={"events": {"0": 7}})


def at(*ends: int) -> dict[str, dict[str, int]]:
    return {"events": {str(part): end for part, end in enumerate(ends)}}


def manifest(**stages: ManifestStage) -> Manifest:
    return manifests.manifest("sums", created=TAKEN, live=False, stages=stages)


def stage(offsets: dict[str, dict[str, int]], mark: int | None = 1_000) -> ManifestStage:
    return ManifestStage(batch=4, offsets=offsets, watermark_ms=mark, start=START)


def test_events_are_counted_per_stage_and_results_after_the_snapshots_watermark_are_rewritten() -> None:
    snapshot = manifest(a=stage(at(100, 50)))
    found = cost(
        snapshot, definition("v1", ("a",)), definition("v2", ("a", "b")), {"a": at(160, 55), "b": at(9, 9)}, at(999, 99)
    )
    assert found.again == {"a": 65}
    assert found.first == {}
    assert found.rewritten == {"a": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    assert found.frozen == ("b",)
    told = "\n".join(lines(found))
    assert "a processes 65 events again" in told
    assert "results after 1970-01-01T00:00:01.000Z in a are written again" in told
    assert "results in b stay as they are" in told
    assert "taken 2026-01-02T03:04:05.000Z of v1 (deployment 1)" in told


def test_a_stage_that_the_present_version_dropped_catches_up_for_the_first_time() -> None:
    snapshot = manifest(a=stage(at(100)), b=stage(at(80)))
    found = cost(snapshot, definition("v1", ("a", "b")), definition("v2", ("a",)), {"a": at(160)}, at(200))
    assert (found.again, found.first, found.frozen) == ({"a": 60}, {"b": 120}, ())
    assert "b processes 120 events that came since, for the first time" in list(lines(found))


def test_a_position_that_cannot_be_read_counts_to_the_end_and_says_so() -> None:
    snapshot = manifest(a=stage(at(100), None))
    found = cost(snapshot, definition("v1", ("a",)), definition("v1", ("a",)), {}, at(250), exact=False)
    assert found.again == {"a": 150}
    assert "a processes up to 150 events again" in list(lines(found))
    assert "all results in a are written again, over the same points" in list(lines(found))


def test_a_stage_without_a_commit_in_the_snapshot_goes_back_to_where_its_state_began() -> None:
    snapshot = manifest(a=ManifestStage(start=START))
    assert begins(snapshot, "a") == {"events": {"0": 7}}
    assert distance(at(7), at(30)) == 23
    assert distance(at(30), at(7)) == 0
    assert distance(at(30), {}) == 0


def driver(state: State = State.RUNNING, **offsets: int) -> DriverStatus:
    stages = {name: StageStatus(offsets=at(end)) for name, end in offsets.items()}
    return DriverStatus(
        job="sums", deployment=3, launch="l", holder="h", state=state, reason="", started=TAKEN, updated=TAKEN,
        stages=stages,
    )  # fmt: skip


def test_catching_up_ends_at_the_old_position_or_when_it_is_not_waited_for_any_longer() -> None:
    until = TAKEN + timedelta(seconds=60)
    wanted = {"a": at(100)}
    behind = assess_catch_up(wanted, driver(a=40), "l", until, TAKEN)
    assert (behind.done, behind.failed) == (False, None)
    assert "a 60 events" in behind.why
    assert assess_catch_up(wanted, driver(a=100), "l", until, TAKEN).done
    late = assess_catch_up(wanted, driver(a=40), "l", until, until)
    assert late.done
    assert "still catching up" in late.why
    assert not assess_catch_up(wanted, None, "l", until, TAKEN).done
    assert assess_catch_up(wanted, driver(State.FAILED, a=40), "l", until, TAKEN).failed == "failed"
