"""Operations as data: what a request may say, and what the plans look like to those who carry them out."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from streamops.model.errors import NotFoundError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.operations import bodies
from streamops.operations.operation import RUNBOOKS, Operation, Request, Step, StepRecord, plan, tasks


@pytest.mark.parametrize("runbook", RUNBOOKS)
def test_every_step_of_every_plan_has_a_body_and_steps_of_a_task_stand_together(runbook: str) -> None:
    steps = plan(runbook)
    for step in steps:
        assert callable(bodies.body(runbook, step.name))
    assert {step.name for step in steps if step.waits} <= set(bodies.looks(runbook))
    changes = [
        step.task for before, step in zip((Step("", "", ""), *steps), steps, strict=False) if before.task != step.task
    ]
    assert changes == list(tasks(runbook))
    assert steps[0].name == "check"
    assert steps[-1].name == "finish"


def test_the_switch_of_an_upgrade_is_one_task_and_writes_the_manifest_before_it_hands_over() -> None:
    names = [step.name for step in plan("upgrade_job") if step.task == "switch"]
    assert names == ["request_stop", "await_stop", "export_and_restore", "commit_manifest", "hand_over"]


def test_an_unknown_runbook_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotFoundError, match="upgrade_job"):
        plan("downgrade_job")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"runbook": "deploy_job"}, "needs a published version"),
        ({"runbook": "deploy_job", "version": "v1", "from_snapshot": "s", "from_scratch": True}, "choose one"),
        ({"runbook": "deploy_job", "version": "v1", "fork": True}, "fork: needs from_snapshot"),
        ({"runbook": "upgrade_job", "version": "v1", "from_snapshot": "s"}, "only deploy_job"),
        ({"runbook": "restore_job"}, "needs the name of a snapshot"),
        ({"runbook": "rollback_job", "version": "v1"}, "follow from the snapshot"),
        ({"runbook": "restore_job", "snapshot": "s", "params": {"size": 1}}, "follow from the snapshot"),
        ({"runbook": "cancel_job", "forse": True}, "forse"),
        ({"runbook": "snapshot_job", "snapshot": "../x"}, "snapshot name"),
        ({"runbook": "snapshot_job", "snapshot": "a" * 129}, "snapshot name"),
        ({"runbook": "snapshot_job", "snapshot": "größe"}, "snapshot name"),
        ({"runbook": "cancel_job", "job": "a\nb"}, "job name"),
        ({"runbook": "cancel_job", "stop_timeout_s": 0}, "stop_timeout_s"),
        ({"runbook": "cancel_job", "job": "_cluster"}, "needs a job"),
        ({"runbook": "shutdown_cluster"}, "is about the cluster"),
        ({"runbook": "cancel_job", "size": 3}, "only scale_cluster"),
        ({"runbook": "scale_cluster", "job": "_cluster", "size": 3, "change": 1}, "choose one"),
    ],
)
def test_a_wrong_request_says_which_field_and_why(asked: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Request.model_validate({"job": "sums", **asked})


def test_a_snapshot_to_start_from_is_this_jobs_unless_it_says_another() -> None:
    own = Request(runbook="deploy_job", job="sums", version="v1", from_snapshot="s")
    other = Request(runbook="deploy_job", job="sums", version="v1", from_snapshot="old/s", fork=True)
    assert own.source_snapshot() == ("sums", "s")
    assert other.source_snapshot() == ("old", "s")


def test_an_operation_knows_where_it_is() -> None:
    moment = now()
    request = Request(runbook="cancel_job", job="sums")
    operation = Operation(id="o", request=request, owner=Owner(kind="cli"), created=moment, updated=moment)
    assert operation.at() == "check"
    begun = operation.with_step("check", StepRecord(started=moment))
    assert begun.started("check")
    assert not begun.done("check")
    assert begun.at() == "check"
    ended = begun.with_step("check", StepRecord(started=moment, finished=moment, facts={"a": 1}))
    assert (ended.at(), ended.facts("check")) == ("request_stop", {"a": 1})
    assert Operation.model_validate_json(ended.model_dump_json()) == ended
