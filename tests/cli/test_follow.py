"""What is shown of an operation, and the requests that are made of options."""

from datetime import UTC, datetime, timedelta

import pytest

from streamops.model.errors import RefusedError
from streamops.model.owner import Owner
from streamops.operations.follow import facts, spans, view
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation, StepRecord
from streamops.operations.runbooks import RUNBOOKS

T = datetime(2026, 1, 1, 12, tzinfo=UTC)
UPGRADE = ask("upgrade_job", job="trade-analyser", version="v2", snapshot="SavePoint1")


def operation(**changes) -> Operation:
    values = {"id": "upgrade_job-1", "request": UPGRADE, "owner": Owner(kind="airflow"), "created": T, "updated": T}
    return Operation(**(values | changes))


@pytest.mark.parametrize(
    ("strategy", "passed_by"),
    [
        ("stop_and_restart", {"shadow", "shadowed", "keep"}),
        ("gapless", {"request_stop", "await_stop", "export_and_restore", "commit_manifest", "submit_cold"}),
    ],
)
def test_every_step_of_what_was_asked_for_is_shown_before_it_begins(strategy: str, passed_by: set[str]) -> None:
    asked = ask("upgrade_job", job="trade-analyser", version="v2", strategy=strategy)
    steps = view(asked, None, T)
    known = [step.name for step in RUNBOOKS["upgrade_job"].steps]
    assert [step.name for step in steps] == [name for name in known if name not in passed_by]
    assert {step.state for step in steps} == {"waiting"}


def test_a_step_under_way_counts_up_and_a_finished_one_keeps_its_time():
    done = StepRecord(started=T, finished=T + timedelta(seconds=2), facts={"launch": "l-1", "objects": 1234})
    now = operation(steps={"check": done, "reserve": StepRecord(started=T + timedelta(seconds=2))})
    check, reserve, *rest = view(UPGRADE, now, T + timedelta(seconds=7))
    assert (check.state, check.seconds, check.facts) == ("done", 2.0, "launch l-1, objects 1,234")
    assert (reserve.state, reserve.seconds) == ("running", 5.0)
    assert {step.state for step in rest} == {"waiting"}


def test_the_step_that_failed_and_what_was_taken_back_are_shown():
    now = operation(
        state="undone",
        steps={"check": StepRecord(started=T)},
        undo={"restart_old": StepRecord(started=T, finished=T + timedelta(seconds=3))},
    )
    steps = view(UPGRADE, now, T)
    assert steps[0].state == "failed"
    assert steps[-1].state == "undone"
    assert steps[-1].title == "Undo: restart old"


def test_a_request_holds_only_what_was_given():
    asked = ask("deploy_job", job="clicks", version="v1", params=None, from_scratch=None)
    assert asked.model_dump(exclude_unset=True) == {"runbook": "deploy_job", "job": "clicks", "version": "v1"}


def test_a_wrong_request_names_the_field():
    with pytest.raises(RefusedError, match="healthy_timeout_s"):
        ask("deploy_job", job="clicks", version="v1", healthy_timeout_s=0)


def test_a_waiting_step_counts_from_the_end_of_the_step_before_it():
    steps = {
        name: StepRecord(started=T + timedelta(seconds=start), finished=T + timedelta(seconds=end))
        for name, start, end in (("check", 0, 1), ("reserve", 2, 3), ("submit", 4, 10))
    }
    waiting = operation(steps=steps)
    standby = next(step for step in view(UPGRADE, waiting, T + timedelta(seconds=25)) if step.name == "standby")
    assert (standby.state, standby.seconds) == ("running", 15.0)
    over = StepRecord(started=T + timedelta(seconds=30), finished=T + timedelta(seconds=30.1))
    assert spans(operation(steps={**steps, "standby": over}))["standby"] == (
        T + timedelta(seconds=10),
        T + timedelta(seconds=30.1),
    )


def test_a_steps_facts_are_short_and_what_a_wait_was_for_needs_no_word_before_it() -> None:
    reported = {"why": "epoch 1 held, every stage works", "events": 1_701_105, "clean": True, "text": "x" * 50}
    assert facts(reported) == "epoch 1 held, every stage works, events 1,701,105"
    assert facts({"clean": True, "reason": "all 4 points are right"}) == "all 4 points are right"
    why = "there is no room for a standby: the new driver starts after the stop"
    assert facts({"why": why}) == why
