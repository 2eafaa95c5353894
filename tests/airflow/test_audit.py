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
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskAwaitingInput,
    TaskDeferred,
)

from asking import fitting
from fakes.rig import JOB, PATIENT, Rig, patient
from streamops.model import records
from streamops.model.errors import RefusedError, UnhealthyError, UnreachableError
from streamops.model.names import CLUSTER
from streamops.model.owner import Owner
from streamops.model.records import RefusedPoint
from streamops.operations.engine import Engine, list_operations
from streamops.operations.operation import Request, operation_id
from streamops.operations.requests import ClusterRequest
from streamops.operations.runbooks import RUNBOOKS
from streamops.spark.submission import Submission
from streamops.store import keys, locks, quarantine
from streamops.upkeep import reconcile
from streamops_airflow import assets
from streamops_airflow.dags import runbook_dag
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.operators import approval
from streamops_airflow.operators.base import StreamOpsOperator
from streamops_airflow.operators.driver_submit import SubmitOperator
from streamops_airflow.operators.reconcile import HealOperator, ReconcileOperator
from streamops_airflow.operators.steps import BeginOperator

AWAY = "The object store does not answer."
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
    "manage_quarantine": {"action": "drop", "points": ["0123456789abcdef"]},
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
        away: that is because the object store does not answer until the task has ended, whose last try it was.
    """

    def __init__(
        self, rig: Rig, number: int, runbook: str, values: dict[str, Any], breaks: str = "", *, away: bool = False
    ) -> None:
        self.rig, self.runbook, self.log, self.breaks, self.away = rig, runbook, Log(), breaks, away
        of_job = not issubclass(RUNBOOKS[runbook].request, ClusterRequest)
        given = {**fitting(runbook, PATIENT), **({"job": JOB} if of_job else {}), **values}
        self.dag: DAG = runbook_dag(RUNBOOKS[runbook], "")
        self.xcom: dict[tuple[str, str], Any] = {}
        self.returned: Any = None  # by the task before
        self.submitted_by: list[Any] = []
        self.try_number, self.max_tries = 3, 2  # the last one
        run = SimpleNamespace(
            dag_id=runbook, run_id=f"manual__{number}", run_type="manual", triggering_user_name="ada", note=NOTE,
            conf=given,
        )  # fmt: skip
        outlets = {assets.TAKEN: SimpleNamespace(add=lambda *_, **__: None)}
        self.context: dict[str, Any] = {"dag_run": run, "dag": self.dag, "ti": self, "outlet_events": outlets}
        self.context["task_instance"], self.id = self, "a-task"
        self.answer: dict[str, Any] | None = None  # of a person
        self.question = ""
        self.verdict: dict[str, Any] = {}  # over what the check says
        self.verdict_then: dict[str, Any] = {}  # the same once a person has answered
        self.context["params"] = {name: param.resolve(suppress_exception=True) for name, param in
                                  self.dag.params.items()} | given  # fmt: skip

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcom[self.task_id, key] = value

    def xcom_pull(self, task_ids: str | list[str], key: str) -> Any:
        if isinstance(task_ids, str):
            return self.xcom.get((task_ids, key))
        return [self.xcom.get((name, key)) for name in task_ids]

    @property
    def operation_id(self) -> str:
        return operation_id(self.runbook, self.runbook, self.context["dag_run"].run_id)

    def at_point(self, step: str, when: str) -> None:
        if (step, when) == (self.breaks, "before"):
            raise UnreachableError(AWAY) if self.away else RefusedError("What this step needs is gone.")

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
        fail = engine.fail
        monkeypatch.setattr(engine, "fail", lambda *told: self.store_away() or fail(*told))
        monkeypatch.setattr(assets, "announced", lambda *_: False)
        monkeypatch.setattr(StreamOpsOperator, "log", self.log, raising=False)
        monkeypatch.setattr(SnapshotHook, "store", self.rig.store)
        monkeypatch.setattr(SnapshotHook, "task_engine", lambda *_: engine)
        monkeypatch.setattr(SnapshotHook, "checked", self.checked)
        monkeypatch.setattr(hitl, "upsert_hitl_detail", self.ask)
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
            except AirflowException as ended:
                self.states[task.task_id] = "skipped" if isinstance(ended, AirflowSkipException) else "failed"
                going = False
            going = going and task.task_id != until
        return audit(self.log.lines)

    def store_away(self) -> None:
        if self.away and not self.task.is_teardown:
            raise UnreachableError(AWAY)

    def submit(self, submission: Submission) -> str:
        """Through the task, which may have no right to."""
        self.submitted_by.append(self.task)
        return str(self.task.submit(submission))

    def execute(self, task: Any, engine: Engine) -> Any:
        self.task = task
        try:
            return task.execute(self.context)
        except TaskAwaitingInput as asking:
            return self.answered(task, asking)
        except TaskDeferred as deferred:
            return task.resume(self.context, waited(self.rig, deferred, engine))

    def answered(self, task: Any, asking: TaskAwaitingInput) -> Any:
        """By the person."""
        assert asking.timeout  # no run waits for ever
        self.verdict = self.verdict_then
        return task.resume_execution(asking.method_name, {"event": self.answer}, self.context)

    def checked(self, asked: Request) -> tuple[list[str], dict[str, Any]]:
        said: list[str] = []
        facts = Engine(self.rig.engine().ports, said.append).preview(asked, self.rig.owner())
        return said, facts | self.verdict

    def ask(self, *, ti_id: str, body: str, **more: Any) -> None:
        """Airflow's page; the job may be operated on by others meanwhile."""
        lock = locks.read(self.rig.store, JOB)
        assert lock is None or lock.value.operation is None
        self.question = body


def waited(rig: Rig, deferred: TaskDeferred, engine: Engine) -> dict[str, Any]:
    """The event of the trigger."""
    assert deferred.timeout  # Airflow's scheduler ends it when no triggerer does
    trigger, why = deferred.trigger, ""

    def done() -> bool:
        nonlocal why
        found, why = engine.poll(trigger.job, trigger.operation_id, trigger.step)
        return found

    try:
        rig.wait(done, trigger.step)
    except UnhealthyError as error:
        return {"done": False, "why": str(error)}
    return {"done": True, "why": why}


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
    if runbook == "manage_quarantine":
        (refused,) = ASKED[runbook]["points"]
        point = RefusedPoint(id=refused, measurement="a", tags={}, fields={"n": 1}, time_ms=7, reason="too long")
        quarantine.put(rig.store, JOB, "a", "v1", [point])


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


@pytest.mark.parametrize("step", ["request_stop", pytest.param("check", marks=pytest.mark.full)])
def test_what_made_the_last_try_fail_is_the_reason_although_it_could_not_be_recorded(
    rig: Rig, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(rig, "cancel_job")
    told = Run(rig, 0, "cancel_job", {}, step, away=True).carry_out(monkeypatch)
    assert (told.state, told.receipt["reason"]) == ("failed", AWAY)


class Pass:
    """The tasks of a run of ``reconcile``, on the rig."""

    try_number, max_tries = 1, 0

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.log, self.xcom = rig, Log(), dict[str, Any]()
        monkeypatch.setattr(StreamOpsOperator, "log", self.log, raising=False)
        monkeypatch.setattr(SnapshotHook, "task_engine", lambda hook, context, say, submit: self.engine(submit))
        monkeypatch.setattr(SubmitOperator, "submit", lambda _, submission: rig.cluster.submit(submission))
        self.run = SimpleNamespace(
            dag_id="reconcile", run_id="asset_triggered__1", run_type="asset_triggered", triggering_user_name=None,
            note=None, conf={},
        )  # fmt: skip
        dag = SimpleNamespace(params={})
        self.context: Any = {
            "dag_run": self.run, "dag": dag, "params": {}, "ti": self, "triggering_asset_events": {}
        }  # fmt: skip

    def engine(self, submit: Any) -> Engine:
        cluster = self.rig.cluster
        through = SimpleNamespace(submit=submit, room_for=cluster.room_for, end_driver=cluster.end_driver)
        return Engine(self.rig.engine(submitter=through).ports, self.log.info)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcom[key] = value

    def look(self) -> list[dict[str, Any]]:
        return ReconcileOperator(task_id="look").execute(self.context)

    def heal(self, values: dict[str, Any]) -> str:
        """Each time that the task continues it is another process, as in Airflow."""
        call: Any = HealOperator(task_id="heal", **values).execute
        given: dict[str, Any] = {}
        while True:
            try:
                return str(call(self.context, **given))
            except TaskDeferred as deferred:
                given = {"event": waited(self.rig, deferred, self.rig.engine()), **(deferred.kwargs or {})}
                call = getattr(HealOperator(task_id="heal", **values), deferred.method_name)


def test_a_run_of_reconcile_brings_each_job_back_in_a_task_of_its_own_that_submits_its_driver(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(rig, "cancel_job")
    rig.died(JOB)
    run = Pass(rig, monkeypatch)
    (found,) = run.look()
    assert (found["scope"], found["do"]) == (JOB, "start")
    assert run.heal(found) == f"{JOB} works again"
    assert run.heal(found) == f"{JOB} works again"  # someone cleared it: nothing is done twice
    assert len(rig.cluster.processes) == 2
    back = list_operations(rig.store, JOB)[-1]
    assert (back.request.runbook, back.state, back.owner.run_id) == ("recover_job", "succeeded", run.run.run_id)
    assert locks.read(rig.store, JOB).value.operation is None
    assert [line for line in run.log.lines if line.startswith(f"Receipt {back.id}: recover_job of {JOB} succeeded")]


@pytest.mark.full
def test_a_job_that_has_no_room_beside_another_waits_for_it_without_a_worker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(rig, "cancel_job")
    rig.publish("v1", ("a",), job="other")
    rig.engine().run(patient("deploy_job", job="other", version="v1"), rig.owner(), "deploy-other")
    for job in (JOB, "other"):
        rig.died(job)
    monkeypatch.setattr(reconcile, "side_by_side", lambda master, wanted: tuple(wanted)[:1])
    run = Pass(rig, monkeypatch)
    first, then = run.look()
    assert then["after"] == [first["scope"]]
    with pytest.raises(TaskDeferred) as deferred:
        HealOperator(task_id="heal", **then).execute(run.context)
    assert (deferred.value.trigger.job, deferred.value.kwargs) == (first["scope"], {"after": []})
    assert len(rig.cluster.processes) == 2
    for values in (first, then):
        run.heal(values)
    assert len(rig.cluster.processes) == 4


def test_a_run_of_reconcile_tells_what_was_found_and_what_it_did(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pass(rig, monkeypatch)
    found = SimpleNamespace(extra={"from_trigger": True, "payload": {"found": ["node-2: its program did not run"]}})
    run.context["triggering_asset_events"] = {"asset": [found]}
    rig.nodes.up = {"master", "node-1"}
    assert run.look() == []
    asked = "Run reconcile/asset_triggered__1 (asset_triggered), asked for by no one"
    done = "node-2 is started: its program did not run"
    # The first line is Airflow's own: no task runner calls the operator here.
    assert run.log.lines[1:5] == [asked, "Form: {}", "node-2: its program did not run", done]

    run.context["triggering_asset_events"] = {}  # triggered by a person
    assert run.look() == []
    assert run.log.lines[-1] == "No driver is missing, and nothing was left half done"
    run.run.conf = {"job": JOB}
    with pytest.raises(AirflowFailException, match="reconcile has no field job; it has none"):
        run.look()


def test_a_trouble_that_can_only_be_told_is_a_task_that_fails_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.put(keys.record("other"), b'{"version": "v1"}')
    run = Pass(rig, monkeypatch)
    (found,) = run.look()
    with pytest.raises(AirflowFailException, match=r"other is left as it is: jobs/other/record.json"):
        run.heal(found)


ANSWERED = {"responded_by_user": {"id": "7", "name": "grace"}, "responded_at": records.now(), "params_input": {}}


@pytest.mark.parametrize(
    ("answer", "state", "says"),
    [
        ({**ANSWERED, "chosen_options": ["Approve"]}, "succeeded", "Approved by grace at "),
        ({**ANSWERED, "chosen_options": ["Reject"]}, "refused", "grace has rejected it. Nothing was touched."),
        ({"error": "too late", "error_type": "timeout"}, "refused", "Nobody has answered within 7 days. "),
    ],
)
def test_an_upgrade_that_asks_a_person_begins_when_somebody_has_approved(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], state: str, says: str
) -> None:
    prepared(rig, "upgrade_job")
    run = Run(rig, 0, "upgrade_job", {"version": "v2", "snapshot": "S1", "approval": True})
    run.answer = answer
    told = run.carry_out(monkeypatch)
    assert "Verdict on a: kept" in run.question
    assert told.state == state
    assert [line for line in run.log.lines if says in line]
    assert rig.record().version == ("v2" if state == "succeeded" else "v1")
    if state == "succeeded":  # a task that is cleared asks nobody
        run.answer = None
        (check, *_) = run.dag.topological_sort()
        run.task_id = check.task_id
        run.execute(check, rig.engine())


def approved(rig: Rig) -> Run:
    """An upgrade that someone approves."""
    prepared(rig, "upgrade_job")
    run = Run(rig, 0, "upgrade_job", {"version": "v2", "snapshot": "S1", "approval": True})
    run.answer = {**ANSWERED, "chosen_options": ["Approve"]}
    return run


def test_what_was_approved_must_still_be_the_verdict(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = approved(rig)
    run.verdict_then = {"outcomes": {"a": "starts empty"}}
    told = run.carry_out(monkeypatch)
    assert told.state == "refused"
    assert [line for line in run.log.lines if "The verdict is another one than was approved." in line]
    assert rig.record().version == "v1"


def test_a_store_that_is_away_after_an_answer_asks_nobody_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run, away, begin = approved(rig), [1, 2], Engine.begin
    monkeypatch.setattr(approval, "_PAUSE_S", 0.01)

    def begins(engine: Engine, *asked: Any) -> Any:
        if away:
            raise UnreachableError(f"the object store is away {away.pop()}")
        return begin(engine, *asked)

    monkeypatch.setattr(Engine, "begin", begins)
    assert run.carry_out(monkeypatch).state == "succeeded"
    assert not away
