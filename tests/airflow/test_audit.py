"""The log of a run is the audit: from its text alone one can tell who asked for what, what was touched, how it ended.

The tasks of each runbook's DAG are carried out in their order, as Airflow does it, on the rig; read is only what they
log. ``test_runbooks_stack.py`` looks at the same lines in Airflow's own logs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from asking import fitting
from fakes.rig import JOB, PATIENT, Rig, patient
from streamops.model import records
from streamops.model.errors import RefusedError, UnhealthyError
from streamops.model.names import CLUSTER
from streamops.model.owner import Owner
from streamops.operations.engine import Engine
from streamops.operations.operation import operation_id
from streamops.operations.requests import ClusterRequest
from streamops.operations.runbooks import RUNBOOKS
from streamops.spark.submission import Submission
from streamops.store import locks
from streamops_airflow import assets
from streamops_airflow.dags import runbook_dag
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.operators.base import StreamOpsOperator
from streamops_airflow.operators.driver_submit import SubmitOperator
from streamops_airflow.operators.reconcile import ReconcileOperator
from streamops_airflow.operators.steps import BeginOperator

NOTE = "from the command line of ada on a host"
# What must have happened before, and what is asked for.
BEFORE: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "start_job": [("cancel_job", {})],
    "rollback_job": [("upgrade_job", {"version": "v2", "snapshot": "s0"})],
    "restore_job": [("snapshot_job", {"snapshot": "s0"})],
    "restart_cluster": [("shutdown_cluster", {})],
    "manage_snapshot": [("snapshot_job", {"snapshot": "s0"})],
}
ASKED: dict[str, dict[str, Any]] = {
    "deploy_job": {"version": "v1"},
    "snapshot_job": {"snapshot": "S1"},
    "upgrade_job": {"version": "v2", "snapshot": "S1"},
    "restore_job": {"snapshot": "s0"},
    "rehearse_job": {"version": "live2", "observe_s": 1},
    "scale_cluster": {"size": 1},
    "pause_job": {"action": "pause"},
    "schedule_job": {"every": "1 hour"},
    "set_log_levels": {"logging": {"source.events": "DEBUG"}},
    "manage_snapshot": {"action": "pin", "snapshot": "s0"},
    "settle_operation": {"action": "abort", "operation": "left"},
}


@dataclass
class Log:
    """What the tasks of a run log."""

    lines: list[str] = field(default_factory=list)

    def info(self, text: str, *values: object) -> None:
        self.lines.append(text % values if values else text)

    warning = info


@dataclass(frozen=True)
class Audit:
    """What a run's log says."""

    run: str
    user: str
    note: str
    asked: dict[str, Any]
    found: str
    runbook: str
    job: str
    state: str
    receipt: dict[str, str]


def audit(lines: list[str]) -> Audit:
    """Read from the lines alone; fails where something is not told."""

    def one(pattern: str, last: bool = False) -> re.Match[str]:
        found = [match for line in lines if (match := re.fullmatch(pattern, line))]
        assert found, "\n".join([pattern, *lines])
        return found[-1 if last else 0]

    begun = one(r"Run (\S+) \(manual\), asked for by (\S+), (.*)")
    form, ended = one(r"Form: (.*)"), one(r"Receipt (\S+): (\S+) of (.+) (\S+) after [0-9.]+ s", last=True)
    found = [line.removeprefix("Found: ") for line in lines if line.startswith("Found: ")]
    told = lines[len(lines) - 1 - lines[::-1].index(ended[0]) :]
    receipt = dict(line.strip().split(": ", 1) for line in told[1:] if line.startswith("  ") and ": " in line)
    receipt["by"] = told[1].strip()
    return Audit(*begun.groups(), json.loads(form[1]), (found or [""])[0], ended[2], ended[3], ended[4], receipt)


class Run:
    """One run of a runbook's DAG, on the rig.

    Args:
        breaks: the step before whose effect everything that it needs is gone.
    """

    def __init__(self, rig: Rig, number: int, runbook: str, values: dict[str, Any], breaks: str = "") -> None:
        self.rig, self.runbook, self.log, self.breaks = rig, runbook, Log(), breaks
        of_job = not issubclass(RUNBOOKS[runbook].request, ClusterRequest)
        given = {**fitting(runbook, PATIENT), **({"job": JOB} if of_job else {}), **values}
        self.dag: DAG = runbook_dag(RUNBOOKS[runbook], "")
        self.xcom: dict[tuple[str, str], Any] = {}
        self.returned: Any = None  # by the task before
        self.submitted_by: list[Any] = []
        run = SimpleNamespace(
            dag_id=runbook, run_id=f"manual__{number}", run_type="manual", triggering_user_name="ada", note=NOTE,
            conf=given,
        )  # fmt: skip
        outlets = {assets.TAKEN: SimpleNamespace(add=lambda *_, **__: None)}
        self.context: dict[str, Any] = {"dag_run": run, "dag": self.dag, "ti": self, "outlet_events": outlets}
        self.context["params"] = {name: param.resolve(suppress_exception=True) for name, param in
                                  self.dag.params.items()} | given  # fmt: skip

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcom[self.task_id, key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.xcom.get((task_ids, key))

    @property
    def operation_id(self) -> str:
        return operation_id(self.runbook, self.runbook, self.context["dag_run"].run_id)

    def at_point(self, step: str, when: str) -> None:
        if (step, when) == (self.breaks, "before"):
            raise RefusedError("What this step needs is gone.")

    def carry_out(self, monkeypatch: pytest.MonkeyPatch, until: str = "") -> Audit:
        """All tasks in order, and the teardowns whatever became of the others.

        Args:
            until: the task after which someone marks the run as failed.
        """
        cluster = self.rig.cluster
        through = SimpleNamespace(submit=self.submit, room_for=cluster.room_for, end_driver=cluster.end_driver)
        for kind in (SnapshotHook, SubmitOperator):
            monkeypatch.setattr(kind, "submit", lambda _, submission: cluster.submit(submission))
        engine = Engine(self.rig.engine(submitter=through).ports, self.log.info, self.at_point)
        monkeypatch.setattr(StreamOpsOperator, "log", self.log, raising=False)
        monkeypatch.setattr(SnapshotHook, "store", self.rig.store)
        monkeypatch.setattr(SnapshotHook, "task_engine", lambda *_: engine)
        going, self.states = True, dict[str, str]()
        for task in self.dag.topological_sort():
            if not going and not task.is_teardown:
                continue
            self.task_id = task.task_id
            try:
                if isinstance(task, MappedOperator):
                    for values in self.returned:
                        self.execute(task.unmap(values), engine)
                else:
                    self.returned = self.execute(task, engine)
                self.states[task.task_id] = "success"
            except (AirflowFailException, AirflowSkipException) as ended:
                self.states[task.task_id] = "skipped" if isinstance(ended, AirflowSkipException) else "failed"
                going = False
            going = going and task.task_id != until
        return audit(self.log.lines)

    def submit(self, submission: Submission) -> str:
        """Through the task, which may have no right to."""
        self.submitted_by.append(self.task)
        return str(self.task.submit(submission))

    def execute(self, task: Any, engine: Engine) -> Any:
        self.task = task
        try:
            return task.execute(self.context)
        except TaskDeferred as deferred:
            trigger = deferred.trigger
            event: dict[str, Any] = {"done": True, "why": ""}

            def done() -> bool:
                found, event["why"] = engine.poll(trigger.job, trigger.operation_id, trigger.step)
                return found

            try:
                self.rig.wait(done, trigger.step)
            except UnhealthyError as error:
                event |= {"done": False, "why": str(error)}
            return task.resume(self.context, event)


def prepared(rig: Rig, runbook: str) -> None:
    if runbook == "rehearse_job":
        rig.go_live()
    elif runbook != "deploy_job":
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=1)
    for name, asked in BEFORE.get(runbook, ()):
        owner = rig.owner()
        scope = {} if issubclass(RUNBOOKS[name].request, ClusterRequest) else {"job": JOB}
        rig.engine().run(patient(name, **scope, **asked), owner, f"{name}-{rig.count}")
    if runbook == "settle_operation":
        rig.leave("check")


QUICK = ("cancel_job", "upgrade_job")


@pytest.mark.parametrize(
    "runbook", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in RUNBOOKS]
)
def test_the_log_alone_tells_who_asked_for_what_what_was_found_and_how_it_ended(
    rig: Rig, runbook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(rig, runbook)
    scope = CLUSTER if issubclass(RUNBOOKS[runbook].request, ClusterRequest) else JOB
    label = "the cluster" if scope == CLUSTER else JOB
    asked, said = ASKED.get(runbook, {}), []
    found = "the cluster, " if scope == CLUSTER else "nothing that"
    if scope == JOB and runbook != "deploy_job":
        found = f"{JOB} {rig.record().version}"

    def run(state: str, values: dict[str, Any], breaks: str = "", until: str = "") -> tuple[Run, Audit]:
        run = Run(rig, len(said), runbook, values, breaks)
        told = run.carry_out(monkeypatch, until)
        said.append(told)
        assert (told.run, told.user, told.note) == (f"{runbook}/{run.context['dag_run'].run_id}", "ada", NOTE)
        assert values.items() <= told.asked.items()
        assert set(run.dag.params) <= set(told.asked)  # what was left as it was, too
        assert (told.runbook, told.job, told.state) == (runbook, label, state)
        assert "asked for by ada, via Airflow" in told.receipt["by"]
        assert told.run in told.receipt["by"]
        by = [task for task in run.submitted_by if not isinstance(task, BeginOperator)]  # settles what was left
        assert all(isinstance(task, SparkSubmitOperator) for task in by)
        if state == "succeeded":
            assert set(run.states.values()) == {"success"}
        else:
            assert run.states["outcome"] == ("skipped" if state == "skipped" else "failed")
            assert told.receipt["reason"]
        return run, told

    _, told = run("refused", {**asked, "cancle": True})
    assert "no field cancle" in told.receipt["reason"]
    assert rig.engine().find(scope, operation_id(runbook, runbook, "manual__0")) is None

    other = Owner(kind="airflow", dag_id="other", run_id="run-0", user="bob")
    rig.runs.over["run-0"] = False
    locks.acquire(rig.store, scope, "other-1", "other", other, rig.runs.finished, records.now())
    _, told = run("skipped", asked)
    assert "bob" in told.receipt["reason"]
    locks.release(rig.store, scope, "other-1")

    wanted = patient(runbook, **({} if scope == CLUSTER else {"job": JOB}), **asked)
    steps, back = RUNBOOKS[runbook].plan(wanted), RUNBOOKS[runbook].restoring
    if runbook == "snapshot_job":  # only with cancel
        back = back if asked.get("cancel") else ""
    second = steps[1]
    breaks = steps[len(steps) // 2] if back else second  # half way there is something to take back
    _, told = run("undone" if back else "failed", asked, breaks=breaks.name)
    assert told.receipt["reason"] == "What this step needs is gone."
    assert told.found.startswith(found)
    assert bool(back) == ("undone" in told.receipt)

    if RUNBOOKS[runbook].tasks[1:]:
        _, told = run("failed", asked, until=steps[0].task)
        assert "marked failed" in told.receipt["reason"]
        assert "check" in told.receipt["steps"]

    good, told = run("succeeded", asked)
    if runbook != "scale_cluster":  # whose leaving node may have no driver
        assert bool(good.submitted_by) == any(step.submits for step in steps)
    assert told.found.startswith(found)
    operation = rig.engine().find(scope, good.operation_id)
    assert operation is not None
    assert all(f"{name} " in told.receipt["steps"] for name in operation.steps if name != steps[-1].name)
    if scope == JOB and runbook != "delete_job":
        record = rig.record()
        assert f"deployment {record.deployment}" in told.receipt["after"]
    if "snapshot" in asked:
        assert told.receipt["snapshot"] == f"{JOB}/{asked['snapshot']}"


def test_a_run_of_reconcile_tells_what_was_found_and_what_it_did(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(StreamOpsOperator, "log", log, raising=False)
    monkeypatch.setattr(SnapshotHook, "task_engine", lambda *_: rig.engine())
    run = SimpleNamespace(
        dag_id="reconcile", run_id="asset_triggered__1", run_type="asset_triggered", triggering_user_name=None,
        note=None, conf={},
    )  # fmt: skip
    found = SimpleNamespace(extra={"from_trigger": True, "payload": {"found": ["node-2: its program did not run"]}})
    context: Any = {
        "dag_run": run, "dag": SimpleNamespace(params={}), "params": {}, "triggering_asset_events": {"asset": [found]}
    }  # fmt: skip
    rig.nodes.up = {"master", "node-1"}
    done = "node-2 is started: its program did not run"
    assert ReconcileOperator(task_id="reconcile").execute(context) == [done]
    asked = "Run reconcile/asset_triggered__1 (asset_triggered), asked for by no one"
    assert log.lines[-4:] == [asked, "Form: {}", "node-2: its program did not run", done]

    context["triggering_asset_events"] = {}  # triggered by a person
    assert ReconcileOperator(task_id="reconcile").execute(context) is None
    assert log.lines[-1].startswith("Nothing was done: ")
    run.conf = {"job": JOB}
    with pytest.raises(AirflowFailException, match="reconcile has no field job; it has none"):
        ReconcileOperator(task_id="reconcile").execute(context)
