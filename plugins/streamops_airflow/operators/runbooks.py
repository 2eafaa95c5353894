"""The runbooks as operators, for other people's DAGs: each triggers the DAG of its runbook and waits for its end."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.triggers.external_task import DagStateTrigger
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout

from streamops.model.names import CLUSTER
from streamops.operations.follow import HELD, request
from streamops.operations.operation import Operation, operation_id
from streamops.operations.requests import fields
from streamops.operations.runbook import Runbook
from streamops.operations.runbooks import RUNBOOKS
from streamops.store import documents, keys
from streamops_airflow import runs
from streamops_airflow.operators.base import StreamOpsOperator, plain_errors

if TYPE_CHECKING:
    from airflow.sdk import Context

_LOOK_S = 5  # between two looks of the triggerer at a run of some minutes
_GOES: list[Any] = ["queued", "running"]  # states of a run: plain text, which is what a trigger stores
_OVER: list[Any] = ["success", "failed"]


class RunbookOperator(StreamOpsOperator, TriggerDagRunOperator):
    """Triggers a runbook as a person does from its form, and waits for it to end without holding a worker.

    The triggered run is the audit trail, with a log for each step; this task links to it and ends with its reason.
    A retried or cleared task adopts the run that it triggered before, unless that one failed or found the job held.

    Args:
        streamops_conn_id: the installation (templated).
        more: the fields of the runbook's form, all templated. Its *Params* are ``job_params``, because a DAG has
            its own ``params``; text where the form has a number or a tick box is converted.
        wait_timeout: for how long the run is waited for; it may be longer than usual because its DAG is switched off,
            or waits for an approval. The run itself is not touched then.

    XCom: ``operation``, ``dag_run``, and what the steps reported, such as ``snapshot``, ``version``, ``deployment``.

    Raises:
        AirflowFailException: the request was refused or the operation failed; the message is its one sentence.
        AirflowException: another operation holds the job, and nothing was done; or the run is not over in time. A
            retry may succeed.
    """

    runbook: ClassVar[Runbook]
    names: ClassVar[Mapping[str, str]]  # of the form's fields, by the name of the argument

    def __init__(self, *, wait_timeout: timedelta = timedelta(days=1), **more: Any) -> None:
        asked = {name: more.pop(name) for name in self.names if name in more}
        super().__init__(
            trigger_dag_id=self.runbook.name,
            logical_date=None,
            wait_for_completion=True,
            # Airflow waits without an end for what it has triggered: until the run is there, and then this task does.
            allowed_states=[*_GOES, *_OVER],
            poke_interval=_LOOK_S,
            deferrable=True,
            **more,
        )
        self.wait_timeout = wait_timeout
        for name in self.names:
            setattr(self, name, asked.get(name))

    def execute(self, context: Context) -> Any:
        """Trigger the runbook, or adopt the run of an earlier try; then wait."""
        with plain_errors():
            asked = request(self.runbook.name, **{field: getattr(self, name) for name, field in self.names.items()})
            self.trigger_run_id, there = self._triggered(context)
        self.log.info("The run %s/%s does it%s", self.runbook.name, self.trigger_run_id, " already" if there else "")
        if there:
            self._wait(self.trigger_run_id)
        self.conf = {
            runs.INSTALLATION: self.streamops_conn_id,
            **asked.model_dump(mode="json", include=set(self.names.values()), exclude_unset=True),
        }
        ti = context["ti"]
        self.note = f"Triggered by task {ti.task_id} of {ti.dag_id}/{ti.run_id}"
        super().execute(context)  # raises what makes Airflow trigger and defer

    def execute_complete(self, context: Context, event: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        """Wait for the end of a run that has only begun; then say how it ended."""
        (run_id,) = event[1]["run_ids"]
        if event[1].get(run_id) in _GOES:
            self._wait(run_id)
        with plain_errors():
            operation = self._operation(run_id)
        where = f"{self.runbook.name}/{run_id}"
        if operation is None:
            why = context["ti"].xcom_pull(dag_id=self.runbook.name, run_id=run_id, task_ids="check", key=HELD)
            if why is not None:
                raise AirflowException(f"Nothing was done by {where}. {why}")
            raise AirflowFailException(f"The run {where} ended before it began an operation; see its log.")
        if operation.state != "succeeded":
            raise AirflowFailException(f"Operation {operation.id} of {where} is {operation.state}: {operation.reason}")
        self.log.info("Operation %s of %s succeeded", operation.id, where)
        facts: dict[str, Any] = {}
        for name, step in operation.steps.items():
            if "/" not in name:  # of a part, which concerns one job of several
                facts |= step.facts
        return {"operation": operation.id, "dag_run": run_id, **facts}

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Called after a deferral, also after one that took too long."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            run_id, _ = self._triggered(context)
            raise AirflowException(
                f"The run {self.runbook.name}/{run_id} is not over after {self.wait_timeout}; it was left as it is. "
                "See what it waits for, and whether its DAG is switched on; clear this task to wait for it again."
            ) from error

    def _wait(self, run_id: str) -> NoReturn:
        trigger = DagStateTrigger(self.runbook.name, _OVER, [run_id], poll_interval=_LOOK_S)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.wait_timeout)

    def _triggered(self, context: Context) -> tuple[str, bool]:
        """Id of the run of this task, and whether it is there already."""
        ti = context["ti"]
        place = f"{ti.dag_id}/{ti.task_id}/{ti.map_index}/{ti.run_id}"
        stem = f"{ti.dag_id}.{ti.task_id}"[:200] + f".{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        for number in itertools.count(1):
            run_id = f"{stem}.{number}"
            if not ti.get_dr_count(dag_id=self.runbook.name, run_ids=[run_id]):
                return run_id, False
            state = str(ti.get_dagrun_state(self.runbook.name, run_id))
            if state not in ("success", "failed") or self._succeeded(run_id):
                return run_id, True
        raise AssertionError

    def _succeeded(self, run_id: str) -> bool:
        operation = self._operation(run_id)
        return operation is not None and operation.state == "succeeded"

    def _operation(self, run_id: str) -> Operation | None:
        name = self.runbook.name
        key = keys.operation(str(getattr(self, "job", CLUSTER)), operation_id(name, name, run_id))
        found = documents.read(self.hook.store, key, Operation)
        return found.value if found else None


def _operator(name: str) -> type[RunbookOperator]:
    """The operator of a runbook, with the fields of its form as arguments that Airflow knows.

    They are in the signature, so that ``default_args``, ``partial`` and ``expand`` take them, and none other.
    """
    runbook = RUNBOOKS[name]
    asked = fields(runbook.request)
    of_airflow = signature(BaseOperator.__init__).parameters
    names = {f"job_{field}" if field in of_airflow else field: field for field in asked}

    def init(self: Any, **given: Any) -> None:
        super(made, self).__init__(**given)

    def argument(name: str, required: bool) -> Parameter:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if required else None)

    own = [argument(shown, asked[field]["required"]) for shown, field in names.items()]
    ends = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *own, Parameter("more", Parameter.VAR_KEYWORD)]
    init.__signature__ = signature(init).replace(parameters=ends)  # type: ignore[attr-defined]
    lines = [f"        {shown}: {asked[field]['description']}" for shown, field in names.items()]
    document = "\n".join([runbook.purpose, "", "    Args:", *lines, "", "    More: ``RunbookOperator``.", ""])
    templates: Sequence[str] = ("streamops_conn_id", *names)
    made: type[RunbookOperator] = type(
        "".join(part.title() for part in name.split("_")) + "Operator",
        (RunbookOperator,),
        {
            "__module__": __name__,
            "__doc__": document,
            "__init__": init,
            "runbook": runbook,
            "names": names,
            "template_fields": templates,
        },
    )
    return made


DeployJobOperator = _operator("deploy_job")
StartJobOperator = _operator("start_job")
SnapshotJobOperator = _operator("snapshot_job")
CancelJobOperator = _operator("cancel_job")
RehearseJobOperator = _operator("rehearse_job")
UpgradeJobOperator = _operator("upgrade_job")
RollbackJobOperator = _operator("rollback_job")
RestoreJobOperator = _operator("restore_job")
DeleteJobOperator = _operator("delete_job")
ManageSnapshotOperator = _operator("manage_snapshot")
ManageQuarantineOperator = _operator("manage_quarantine")
PauseJobOperator = _operator("pause_job")
ScheduleJobOperator = _operator("schedule_job")
SetLogLevelsOperator = _operator("set_log_levels")
SettleOperationOperator = _operator("settle_operation")
ShutdownClusterOperator = _operator("shutdown_cluster")
RestartClusterOperator = _operator("restart_cluster")
ScaleClusterOperator = _operator("scale_cluster")
