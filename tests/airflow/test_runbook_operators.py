"""The operators of the runbooks in someone else's DAG: what they take, what they trigger, and how they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DagRunTriggerException, TaskDeferred

from fakes.rig import JOB, Rig, patient
from streamops.model.errors import NotFoundError
from streamops.model.owner import Owner
from streamops.operations.follow import HELD
from streamops.operations.operation import operation_id
from streamops.operations.requests import fields
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import REPOSITORY
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.operators import runbooks
from streamops_airflow.operators.base import StreamOpsOperator
from streamops_airflow.operators.runbooks import DeployJobOperator, RunbookOperator, UpgradeJobOperator

OPERATORS = {
    item.runbook.name: item
    for item in vars(runbooks).values()
    if hasattr(item, "runbook") and item is not RunbookOperator
}


def test_each_runbook_has_an_operator_that_takes_the_fields_of_its_form():
    assert set(OPERATORS) == set(RUNBOOKS)
    for name, operator in OPERATORS.items():
        assert set(operator.names.values()) == set(fields(RUNBOOKS[name].request))
        assert set(operator.template_fields) == {"streamops_conn_id", *operator.names}


def test_arguments_are_those_of_the_form_and_no_others():
    with pytest.raises(TypeError, match="missing keyword argument 'version'"):
        DeployJobOperator(task_id="deploy", job="clicks")
    with pytest.raises(TypeError, match="probation_s"):
        DeployJobOperator(task_id="deploy", job="clicks", version="v1", probation_s=3)
    with DAG("d", schedule=None, default_args={"job": "clicks", "streamops_conn_id": "eu"}):
        task = UpgradeJobOperator(task_id="upgrade", version="v2", job_params={"window": "1 minute"})
        mapped = DeployJobOperator.partial(task_id="deploy", version="v1").expand(job=["a", "b"])
    assert (task.job, task.streamops_conn_id, task.job_params) == ("clicks", "eu", {"window": "1 minute"})
    assert mapped.partial_kwargs["version"] == "v1"


def test_the_examples_can_be_read():
    bag = DagBag(str(REPOSITORY / "docs" / "examples"))
    assert not bag.import_errors
    order = [task.task_id for task in bag.dags["release_clicks"].topological_sort()]
    assert order == ["load_campaigns", "deploy", "snapshot", "verdict", "approve", "upgrade", "report"]
    assert set(bag.dags["rehearse_clicks"].task_ids) == {"keep", "rehearse", "end"}


@dataclass
class Instance:
    """A task instance in another pipeline, and the runs that Airflow knows."""

    states: dict[str, str] = field(default_factory=dict)
    held: str | None = None
    dag_id: str = "pipeline"
    task_id: str = "deploy"
    run_id: str = "manual__1"
    map_index: int = -1

    def get_dr_count(self, dag_id: str, run_ids: list[str]) -> int:
        return len(set(run_ids) & set(self.states))

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        return self.states[run_id]

    def xcom_pull(self, *, key: str, **where: Any) -> str | None:
        assert (where["task_ids"], key) == ("check", HELD)
        return self.held

    def xcom_push(self, **pushed: Any) -> None: ...


@pytest.fixture
def task(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> RunbookOperator:
    monkeypatch.setattr(SnapshotHook, "store", rig.store)
    return DeployJobOperator(task_id="deploy", job=JOB, version="v1", healthy_timeout_s="90", streamops_conn_id="eu")


def triggered(task: RunbookOperator, instance: Instance) -> DagRunTriggerException:
    with pytest.raises(DagRunTriggerException) as raised:
        task.execute.__wrapped__(task, {"ti": instance})
    return raised.value


def came(task: RunbookOperator, instance: Instance, run_id: str) -> Any:
    return task.execute_complete({"ti": instance}, ("trigger", {"run_ids": [run_id]}))


def carried_out(rig: Rig, run_id: str, **asked: Any) -> None:
    """What the triggered run does."""
    owner = Owner(kind="airflow", dag_id="deploy_job", run_id=run_id, user="ada")
    values = {"job": JOB, "version": "v1", **asked}
    rig.engine().run(patient("deploy_job", **values), owner, operation_id("deploy_job", "deploy_job", run_id))


def test_the_runbook_gets_the_values_as_its_form_has_them_and_tells_who_asked(task, rig):
    asked = triggered(task, Instance())
    assert asked.trigger_dag_id == "deploy_job"
    assert asked.conf == {"streamops_conn_id": "eu", "job": JOB, "version": "v1", "healthy_timeout_s": 90}
    assert asked.note == "Triggered by task deploy of pipeline/manual__1"
    assert (asked.wait_for_completion, asked.deferrable, asked.logical_date) == (True, True, None)


def test_a_wrong_value_is_refused_before_anything_is_triggered(task):
    task.version = "../v1"
    with pytest.raises(AirflowFailException, match="version"):
        task.execute.__wrapped__(task, {"ti": Instance()})


def test_another_try_adopts_the_run_of_the_first_unless_that_one_failed(task, rig):
    first = triggered(task, Instance()).dag_run_id
    for state in ("queued", "running"):
        with pytest.raises(TaskDeferred) as deferred:
            task.execute.__wrapped__(task, {"ti": Instance({first: state})})
        assert deferred.value.trigger.run_ids == [first]
    second = triggered(task, Instance({first: "failed"})).dag_run_id
    assert second != first
    assert triggered(task, Instance({first: "success"})).dag_run_id == second  # it found the job held
    carried_out(rig, first)
    with pytest.raises(TaskDeferred):  # cleared: nothing is done twice
        task.execute.__wrapped__(task, {"ti": Instance({first: "success"})})
    other = triggered(task, Instance(run_id="manual__2")).dag_run_id
    assert other not in (first, second)


def test_a_run_is_waited_for_until_it_is_over_or_the_time_is(task):
    task.wait_timeout = timedelta(hours=2)
    begun = triggered(task, Instance())
    assert {"queued", "running", "success", "failed"} == {*begun.allowed_states, *begun.failed_states}
    run_id = begun.dag_run_id
    with pytest.raises(TaskDeferred) as deferred:  # what Airflow calls first, which has waited for its begin alone
        task.execute_complete({"ti": Instance()}, ("trigger", {"run_ids": [run_id], run_id: "queued"}))
    assert (deferred.value.trigger.run_ids, deferred.value.timeout) == ([run_id], timedelta(hours=2))
    assert sorted(deferred.value.trigger.states) == ["failed", "success"]
    assert deferred.value.method_name == "execute_complete"
    late = {"error": "Trigger timeout"}
    with pytest.raises(AirflowException, match=f"deploy_job/{run_id} is not over after 2:00:00") as ended:
        task.resume_execution("__fail__", late, {"ti": Instance({run_id: "running"})})
    assert not isinstance(ended.value, AirflowFailException)  # a retry adopts the run, and waits for it again


def test_it_ends_with_what_the_steps_reported(task, rig):
    run_id = triggered(task, Instance()).dag_run_id
    carried_out(rig, run_id)
    facts = came(task, Instance(), run_id)
    assert facts["dag_run"] == run_id
    assert facts["version"] == "v1"
    assert facts["deployment"] == 1


def test_it_fails_with_the_one_sentence_of_what_failed(task, rig):
    run_id = triggered(task, Instance()).dag_run_id
    with pytest.raises(NotFoundError):
        carried_out(rig, run_id, from_snapshot="nothing")
    with pytest.raises(AirflowFailException, match="has no snapshot nothing"):
        came(task, Instance(), run_id)


def test_a_job_that_is_held_may_be_tried_again_and_a_run_that_never_began_may_not(task):
    with pytest.raises(AirflowException, match="upgrade_job works on it") as held:
        came(task, Instance(held="upgrade_job works on it."), "run")
    assert not isinstance(held.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match="before it began"):
        came(task, Instance(), "run")


def test_what_acts_on_an_installation_says_which():
    assert all("streamops_conn_id" in operator.template_fields for operator in (StreamOpsOperator, *OPERATORS.values()))
