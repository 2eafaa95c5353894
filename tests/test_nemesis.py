"""The plan of a nemesis run: the same for the same seed, possible in each state, and strict about what it sees."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from nemesis import (
    FAULTS,
    IN_BATCHES,
    LIVE,
    OF_CLUSTER,
    WISHES,
    Act,
    History,
    Kind,
    Round,
    Seen,
    judge,
    possible,
    rounds,
    way_out,
)
from streamops.operations.follow import request
from streamops.operations.runbooks import RUNBOOKS


def kept(kind: Kind) -> dict[str, str]:
    first, second = kind.versions
    return {"first": first, "second": second, "third": first}


STATES = [
    Seen(desired, version, kind, failed=failed, kept=names, spare=next(iter(names), None), paused=bool(names))
    for kind in (IN_BATCHES, LIVE)
    for desired, failed in (("running", False), ("running", True), ("stopped", False), ("stopped-with-snapshot", False))
    for version in kind.versions
    for names in ({}, kept(kind))
]
DELETED = [Seen("stopped", "v1", there=there) for there in ("gone", "in part")]


def plan(seed: int, count: int = 200) -> list[Round]:
    return list(islice(rounds(seed), count))


def test_a_seed_gives_the_same_plan_again_and_another_one_another() -> None:
    assert plan(1) == plan(1)
    assert plan(1) != plan(2)


def test_every_fault_comes_before_any_comes_again() -> None:
    struck = [each.fault for each in plan(3) if each.fault]
    first = struck[: len(FAULTS)]
    assert sorted(first) == sorted(FAULTS)
    assert 0.6 < len(struck) / 200 < 0.9


@pytest.mark.parametrize("seen", [*STATES, *DELETED], ids=str)
def test_every_state_has_a_way_on_and_each_operation_there_is_one_that_a_form_takes(seen: Seen) -> None:
    acts = possible(seen, 7)
    assert set(acts) <= set(WISHES)
    for act in acts.values():
        on = {} if act.on_cluster else {"job": "trades"}
        assert request(act.runbook, **on, **act.values).runbook in RUNBOOKS
    for each in plan(4, 50):
        wish, act = each.act(seen)
        assert acts[wish].runbook == act.runbook
    assert (seen.runs and not seen.failed) or {"start", "delete", "deploy"} & set(acts)


def test_what_needs_a_running_job_is_not_asked_of_a_stopped_one() -> None:
    def of_job(seen: Seen) -> set[str]:
        return set(possible(seen, 1)) - set(OF_CLUSTER)

    always = {"delete", "pause"}
    assert of_job(Seen("stopped", "v1")) == {"snapshot", "start", *always}
    running = {"snapshot", "snapshot and cancel", "upgrade", "cancel", *always}
    assert of_job(Seen("running", "v1")) == {*running, "rehearse"}
    assert of_job(Seen("running", "v2")) == running  # the other one has fewer stages
    assert of_job(Seen("running", "one", LIVE)) == {*running, "upgrade without a gap", "rehearse"}
    assert of_job(Seen("running", "v1", failed=True)) == {"cancel", "start", *always}


def test_what_is_left_of_a_deletion_is_deleted_and_a_job_that_is_gone_is_deployed_again() -> None:
    gone, rest = DELETED
    taken = [way_out(rest), way_out(gone), way_out(Seen("running", "v1", paused=True))]
    assert [act and act.runbook for act in taken] == ["delete_job", "deploy_job", "pause_job"]


def test_a_cluster_that_was_shut_down_is_restarted_with_the_jobs_that_ran() -> None:
    for comes_back in (True, False):
        (act,) = possible(Seen("stopped", "v2", cluster="stopped", comes_back=comes_back), 1).values()
        assert (act.runbook, act.runs, act.version) == ("restart_cluster", comes_back, "v2")


def test_a_cluster_grows_by_its_spare_node_and_shrinks_again() -> None:
    assert possible(Seen("running", "v1"), 1)["scale"].values == {"size": 3}
    assert possible(Seen("running", "v1", members=3), 1)["scale"].values == {"size": 2}


def test_the_way_out_ends_with_a_running_job_on_the_first_members() -> None:
    away = Seen("stopped", "v1", cluster="stopped", members=3)
    taken = [way_out(seen) for seen in (away, Seen("stopped", "v1", members=3), Seen("stopped", "v1"))]
    assert [act and act.runbook for act in taken] == ["restart_cluster", "scale_cluster", "start_job"]
    assert way_out(Seen("running", "v1", failed=True))
    assert way_out(Seen("running", "v1")) is None


def test_going_back_is_to_the_newest_snapshot_of_the_version() -> None:
    acts = possible(Seen("stopped", "v2", kept=kept(IN_BATCHES)), 1)
    assert (acts["rollback"].values, acts["rollback"].version) == ({"snapshot": "third"}, "v1")
    assert (acts["restore"].values, acts["restore"].version) == ({"snapshot": "second"}, "v2")


def test_a_fault_strikes_at_a_step_that_there_is() -> None:
    for each in plan(5):
        assert each.step(("check",)) == "check"
        assert each.step(("check", "finish")) in ("check", "finish")


UPGRADE = Act("upgrade_job", {}, runs=True, version="v2")
CANCEL = Act("cancel_job", {}, runs=False, version="v1")
V1, V2, STOPPED = Seen("running", "v1"), Seen("running", "v2"), Seen("stopped", "v1")


@pytest.mark.parametrize(
    ("act", "outcome", "after", "undisturbed"),
    [
        (UPGRADE, "success", V2, True),
        (UPGRADE, "failed", V1, False),
        (UPGRADE, "failed", V2, False),  # its run was ended after the probation
        (UPGRADE, "skipped", V1, False),
        (CANCEL, "success", STOPPED, True),
        (CANCEL, "failed", STOPPED, False),
        (CANCEL, "failed", V1, False),
    ],
)
def test_what_is_promised_is_no_violation(act: Act, outcome: str, after: Seen, undisturbed: bool) -> None:
    assert judge(act, outcome, V1, after, undisturbed=undisturbed) == []


@pytest.mark.parametrize(
    ("act", "outcome", "after", "undisturbed"),
    [
        (UPGRADE, "failed", V1, True),
        (UPGRADE, "skipped", V1, True),
        (UPGRADE, "success", V1, False),
        (UPGRADE, "success", Seen("stopped", "v2"), False),
        (UPGRADE, "failed", STOPPED, False),
        (UPGRADE, "skipped", V2, False),
        (CANCEL, "failed", V2, False),
        (CANCEL, "success", V1, False),
    ],
)
def test_what_is_not_promised_is_a_violation(act: Act, outcome: str, after: Seen, undisturbed: bool) -> None:
    assert len(judge(act, outcome, V1, after, undisturbed=undisturbed)) == 1


def test_a_run_leaves_its_history_and_says_which_invariant_broke_and_what_led_to_it(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.note("operation", round=1, wish="cancel")
    history.note("fault", round=1, fault="kill driver")
    history.note("ended", round=1, outcome="failed", why="it took too long")
    told = history.report("Nemesis: seed 5", "BROKEN: two drivers")
    assert (tmp_path / "report.md").read_text() == told
    assert (
        told.index("seed 5") < told.index("BROKEN: two drivers") < told.index("wish cancel") < told.index("kill driver")
    )
    assert "1 operations, of which 1 did not succeed; 1 faults" in told
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == history.lines
    assert [line["what"] for line in lines] == ["operation", "fault", "ended"]
