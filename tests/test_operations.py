"""Operations as data: what a request may say, and what the plans look like to those who carry them out."""

from __future__ import annotations

import pytest

from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.operations import runbooks
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation, StepRecord
from streamops.operations.requests import fields
from streamops.operations.runbook import Runbook
from streamops.operations.runbooks import RUNBOOKS
from streamops.operations.runbooks.cancel_job import CancelJob


@pytest.mark.parametrize("runbook", RUNBOOKS.values(), ids=RUNBOOKS)
def test_steps_of_a_task_stand_together_and_the_check_comes_first(runbook: Runbook) -> None:
    at = [step.task for step in runbook.steps]
    changes = [task for before, task in zip(["", *at], at, strict=False) if before != task]
    assert changes == list(runbook.tasks)
    assert runbook.steps[0].name == "check"
    assert len({step.name for step in runbook.steps}) == len(runbook.steps)


@pytest.mark.parametrize("runbook", RUNBOOKS.values(), ids=RUNBOOKS)
def test_a_way_back_has_only_steps_that_there_are(runbook: Runbook) -> None:
    moment, minimal = now(), {"version": "v1", "snapshot": "s", "operation": "left", "every": "1 hour"}
    minimal |= {"logging": {"x": "INFO"}, "file": "0" * 64}
    known = {name: value for name, value in minimal.items() if name in runbook.request.model_fields}
    if choices := fields(runbook.request).get("action", {}).get("enum"):
        known["action"] = choices[0]
    request = ask(runbook.name, **({} if runbook.name.endswith("_cluster") else {"job": "sums"}), **known)
    operation = Operation(id="o", request=request, owner=Owner(kind="cli"), created=moment, updated=moment)
    assert runbook.undo_plan(operation).steps == ()  # nothing was done
    for step in runbook.steps:
        for record in (StepRecord(started=moment), StepRecord(started=moment, finished=moment)):
            operation = operation.with_step(step.name, record)
            assert set(runbook.undo_plan(operation).steps) <= set(runbook.undo)
            assert not runbook.undo_plan(operation).steps or runbook.restoring


def test_the_switch_of_an_upgrade_is_one_task_and_writes_the_manifest_before_it_hands_over() -> None:
    names = [step.name for step in RUNBOOKS["upgrade_job"].steps if step.task == "switch"]
    assert names == ["request_stop", "await_stop", "export_and_restore", "commit_manifest", "hand_over", "keep"]


def test_an_unknown_runbook_is_refused_with_those_there_are() -> None:
    with pytest.raises(NotFoundError, match="upgrade_job"):
        runbooks.find("downgrade_job")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"runbook": "deploy_job"}, "version: Field required"),
        ({"runbook": "deploy_job", "version": "v1", "from_snapshot": "s", "from_scratch": True}, "choose one"),
        ({"runbook": "deploy_job", "version": "v1", "fork": True}, "fork: needs from_snapshot"),
        ({"runbook": "deploy_job", "version": "v1", "topic_retention_h": 3}, "topic_retention_h: needs create_topics"),
        ({"runbook": "upgrade_job", "version": "v1", "from_snapshot": "s"}, "from_snapshot: upgrade_job has no such"),
        ({"runbook": "restore_job"}, "snapshot: Field required"),
        ({"runbook": "rehearse_job", "version": "v1", "may_differ": ["a"]}, "may_differ: needs demand_equal"),
        ({"runbook": "rehearse_job", "version": "v1", "observe_s": 3601}, "observe_s"),
        ({"runbook": "rollback_job", "version": "v1"}, "version: rollback_job has no such"),
        ({"runbook": "restore_job", "snapshot": "s", "params": {"size": 1}}, "params: restore_job has no such"),
        ({"runbook": "pause_job", "action": "stop"}, "action"),
        ({"runbook": "set_log_levels", "logging": {"source.x": "LOUD"}}, "logging"),
        ({"runbook": "set_log_levels", "logging": {}}, "logging"),
        ({"runbook": "deploy_job", "version": "v1", "start_at": {"t": "latest"}}, "start_at: needs from_snapshot"),
        ({"runbook": "manage_snapshot", "snapshot": "s", "action": "import"}, "archive: goes with the action import"),
        ({"runbook": "manage_snapshot", "snapshot": "s", "action": "pin", "trust": True}, "trust: goes with"),
        ({"runbook": "manage_quarantine", "action": "write"}, "file: goes with the action write"),
        ({"runbook": "manage_quarantine", "action": "drop"}, "points: go with the action drop"),
        ({"runbook": "settle_operation", "operation": "o", "action": "undo"}, "action"),
        ({"runbook": "cancel_job", "forse": True}, "forse: cancel_job has no such"),
        ({"runbook": "snapshot_job", "snapshot": "../x"}, "snapshot name"),
        ({"runbook": "snapshot_job", "snapshot": "a" * 129}, "snapshot name"),
        ({"runbook": "snapshot_job", "snapshot": "größe"}, "snapshot name"),
        ({"runbook": "cancel_job", "job": "a\nb"}, "job name"),
        ({"runbook": "cancel_job", "stop_timeout_s": 0}, "stop_timeout_s"),
        ({"runbook": "cancel_job", "job": "_cluster"}, "is not a job name"),
        ({"runbook": "shutdown_cluster"}, "_cluster"),
        ({"runbook": "cancel_job", "accept_loss": ["a"]}, "accept_loss: cancel_job has no such"),
        ({"runbook": "cancel_job", "runbooks": 3}, "runbooks: cancel_job has no such"),
        ({"runbook": "cancel_job", "size": 3}, "size: cancel_job has no such"),
        ({"runbook": "scale_cluster", "job": "_cluster", "size": 3, "change": 1}, "choose one"),
    ],
)
def test_a_wrong_request_says_which_field_and_why(asked: dict[str, object], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        ask(str(asked["runbook"]), **{"job": "sums", **asked})


def test_a_snapshot_to_start_from_is_this_jobs_unless_it_says_another() -> None:
    own = ask("deploy_job", job="sums", version="v1", from_snapshot="s")
    other = ask("deploy_job", job="sums", version="v1", from_snapshot="old/s", fork=True)
    assert own.source_snapshot() == ("sums", "s")
    assert other.source_snapshot() == ("old", "s")


def test_an_operation_of_another_release_can_be_read() -> None:
    moment = now().isoformat()
    request = {"runbook": "cancel_job", "job": "sums", "stop_timeout_s": 90, "strategy": "x", "version": None}
    fields = {"id": "o", "request": request, "owner": {"kind": "cli"}, "created": moment, "updated": moment}
    read = Operation.model_validate(fields)
    assert isinstance(read.request, CancelJob)
    assert read.request.stop_timeout_s == 90
    with pytest.raises(NotFoundError, match="downgrade_job"):
        Operation.model_validate({**fields, "request": {"runbook": "downgrade_job", "job": "sums"}})


def test_an_operation_knows_where_it_is() -> None:
    moment = now()
    request = ask("cancel_job", job="sums")
    operation = Operation(id="o", request=request, owner=Owner(kind="cli"), created=moment, updated=moment)
    assert runbooks.of(operation).at(operation) == "check"
    begun = operation.with_step("check", StepRecord(started=moment))
    assert begun.started("check")
    assert not begun.done("check")
    assert runbooks.of(begun).at(begun) == "check"
    ended = begun.with_step("check", StepRecord(started=moment, finished=moment, facts={"a": 1}))
    assert (runbooks.of(ended).at(ended), ended.facts("check")) == ("request_stop", {"a": 1})
    assert Operation.model_validate_json(ended.model_dump_json()) == ended
