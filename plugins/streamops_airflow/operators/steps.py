"""The tasks of a runbook: first, middle and teardowns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from streamops.model.errors import LockedError, OvertakenError
from streamops.model.names import shown
from streamops.operations import receipts, runbooks
from streamops.operations.follow import HELD
from streamops.operations.operation import OVER
from streamops_airflow import assets, runs
from streamops_airflow.operators.base import WHY, BringsBackOperator, OperationOperator, plain_errors
from streamops_airflow.operators.driver_submit import SubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from streamops.operations.engine import Engine
    from streamops.operations.operation import Operation
    from streamops.operations.runbook import Runbook

SUBMIT_AGAIN = "submit_again"  # the task that submits what ran before
REFUSED = "refused_before_it_began"  # under which the first task tells why
_UNBEGUN = {HELD: "skipped", REFUSED: "refused"}
_UNTOLD = "a task ended without an outcome, or the run was marked failed"


class StepsOperator(OperationOperator):
    """Carries out the steps that the plan gives to the task of this name; waits by deferring.

    XCom: the facts that the steps report (ids, counts, durations).
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the steps, continuing at what is recorded."""
        if step := self.waiting_step(context, self.task_id):
            self.wait(context, step)
        return self.after_wait(context)

    def after_wait(self, context: Context) -> dict[str, Any]:
        """The steps themselves; a waiting step that is done is only recorded."""
        with self.carried_out(context):
            run = runs.of(context)
            facts = dict(self.engine(context).run_task(run.job, run.operation_id, self.task_id))
        if self.outlets and "snapshot" in facts:
            assets.announce(context, self.hook.store.bucket, run.job, facts["snapshot"], facts.get("bytes", 0))
        return facts


class PartsOperator(StepsOperator):
    """The task before one that is mapped over jobs.

    Args:
        mapped: the task after it.

    XCom: the jobs, one mapping of arguments for each.
    """

    def __init__(self, *, mapped: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mapped = mapped

    def after_wait(self, context: Context) -> list[dict[str, str]]:  # type: ignore[override]
        """The steps; then what the next task is mapped over."""
        super().after_wait(context)
        with self.carried_out(context):
            run = runs.of(context)
            return [{"part": part} for part in self.engine(context).parts(run.job, run.operation_id, self.mapped)]


class BeginOperator(BringsBackOperator, StepsOperator):
    """The first task: takes the job's operation lock, writes the operation object, and refuses what must not be.

    A job that another operation holds is left alone: this task and all after it end skipped, and the log names
    the owner.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Begin (or find) this run's operation and check the request."""
        for line in runs.told(context):
            self.log.info("%s", line)
        return self.begin(context)

    def begin(self, context: Context) -> dict[str, Any]:
        """What is left once it may begin."""
        with self.told_errors(context):
            run = runs.of(context)
            try:
                operation = self.engine(context).begin(run.request, run.owner, run.operation_id)
            except OvertakenError:
                raise
            except LockedError as error:
                self.log.warning("Nothing was done. %s", error)
                self.untouched(context, HELD, str(error))
                raise AirflowSkipException(str(error)) from error
        facts = super().execute(context)
        return {"operation": operation.id, "job": run.job, **facts}

    def told_errors(self, context: Context) -> AbstractContextManager[None]:
        """Errors before an operation has begun: the last task tells the reason of one that ends the run."""

        def exhausted(reason: str) -> None:
            if runs.last_try(context):
                self.untouched(context, WHY, reason)

        return plain_errors(lambda reason: self.untouched(context, REFUSED, reason), exhausted)

    def untouched(self, context: Context, key: str, reason: str) -> None:
        """No operation began: the last task says so again, and the reason."""
        context["ti"].xcom_push(key=key, value=reason)
        for line in unbegun(context, key, reason):
            self.log.info("%s", line)


def unbegun(context: Context, key: str, reason: str) -> Iterator[str]:
    """The receipt of a run that began no operation."""
    dag_run, (job, _) = context["dag_run"], runs.place(context)
    state, owner = _UNBEGUN.get(key, "not begun"), runs.owner(context)
    yield from receipts.lines(receipts.unbegun(dag_run.dag_id, job, state, reason, owner, runs.form_values(context)))


class TeardownOperator(OperationOperator):
    """Runs also when a task failed or someone marked the run failed; skipped when the run never began an operation.

    Teardowns have no setup in Airflow's sense: with ``check`` as their setup they would not run when someone
    marks the run failed while ``check`` works, although the lock may be taken by then.
    """

    def execute(self, context: Context) -> str:
        """Do this teardown's part."""
        with plain_errors():
            job, operation_id = runs.place(context)
            engine = self.engine(context)
            operation = engine.find(job, operation_id)
            if operation is not None:
                return self.tear_down(context, engine, operation)
            self.never_began(engine, job, operation_id, context)
        self.log.info("This run never began an operation on %s; there is nothing to do", shown(job))
        raise AirflowSkipException

    def tear_down(self, context: Context, engine: Engine, operation: Operation) -> str:
        """Do it and say what was done."""
        raise NotImplementedError

    def never_began(self, engine: Engine, job: str, operation_id: str, context: Context) -> None:
        """What is to do for a run without an operation: mostly nothing."""

    def fail(self, context: Context, engine: Engine, operation: Operation) -> None:
        """Record that it failed, with what a task told that could not record it, because a server was away."""
        if operation.state == "running":
            tasks = list(runbooks.of(operation).tasks)
            told = [why for why in context["ti"].xcom_pull(task_ids=tasks, key=WHY) or () if why]
            engine.fail(operation.job, operation.id, told[-1] if told else _UNTOLD)


class RestoreOperator(TeardownOperator):
    """After a failure, what ran before is put back, up to its drivers; after a success, nothing happens."""

    def tear_down(self, context: Context, engine: Engine, operation: Operation) -> str:
        """The engine knows how far the operation came."""
        return self.take_back(context, engine, operation, before=runbooks.of(operation).submits_again)

    def take_back(self, context: Context, engine: Engine, operation: Operation, before: str = "") -> str:
        """Do what is left to do of it, up to a step."""
        if operation.state == "succeeded":
            self.log.info("The operation succeeded; there is nothing to restore")
            return "nothing to restore"
        self.fail(context, engine, operation)
        return engine.undo(operation.job, operation.id, before)


class SubmitAgainOperator(RestoreOperator, SubmitOperator):  # type: ignore[misc]  # whose execute returns nothing
    """After a failure, what ran before is submitted and works again; after a success, nothing happens."""

    def tear_down(self, context: Context, engine: Engine, operation: Operation) -> str:
        """Whatever is left to do."""
        return self.take_back(context, engine, operation)


class ReleaseOperator(TeardownOperator):
    """Gives the job's operation lock back."""

    def tear_down(self, context: Context, engine: Engine, operation: Operation) -> str:
        """Record the failure first, so that no one takes the operation for a running one."""
        if operation.state != "succeeded":
            self.fail(context, engine, operation)
            if runbooks.of(operation).undo_plan(operation).steps and operation.state not in OVER:
                raise AirflowFailException(
                    f"Operation {operation.id} is not undone yet, so {operation.job} stays locked: the next "
                    f"operation undoes it first, or 'streamops operations abort {operation.id}' does."
                )
        engine.release(operation.job, operation.id)
        return "free"

    def never_began(self, engine: Engine, job: str, operation_id: str, context: Context) -> None:
        """The first task may have ended between taking the lock and writing the operation."""
        engine.release(job, operation_id)


class OutcomeOperator(TeardownOperator):
    """Fails the run unless its operation succeeded, or another operation held the job.

    Airflow takes a run's state from its last tasks. When someone marks a run failed, those are *skipped*, and with
    the teardowns successful the run would end green.
    """

    def tear_down(self, context: Context, engine: Engine, operation: Operation) -> str:
        """Show the receipt. Raises AirflowFailException when it did not succeed."""
        engine.show_receipt(operation.job, operation.id)
        if operation.state != "succeeded":
            raise AirflowFailException(f"Operation {operation.id} is {operation.state}: {operation.reason}")
        return f"operation {operation.id} succeeded"

    def never_began(self, engine: Engine, job: str, operation_id: str, context: Context) -> None:
        """Skipped if the job was held by another operation; failed if this run was ended before it began one."""
        told = {key: context["ti"].xcom_pull(task_ids="check", key=key) for key in (HELD, REFUSED, WHY)}
        never = f"The run ended before it began an operation on {shown(job)}."
        key, reason = next(((key, reason) for key, reason in told.items() if reason), ("", never))
        for line in unbegun(context, key, reason):
            self.log.info("%s", line)
        if key != HELD:
            raise AirflowFailException(reason)


def ending(runbook: Runbook) -> list[TeardownOperator]:
    """The last tasks of a runbook, in order. They run whatever became of the tasks before them."""
    restoring: list[TeardownOperator] = []
    if runbook.restoring:
        restoring.append(RestoreOperator(task_id=runbook.restoring).as_teardown())
    if runbook.submits_again:
        restoring.append(SubmitAgainOperator(task_id=SUBMIT_AGAIN).as_teardown())
    release = ReleaseOperator(task_id="release_lock").as_teardown()
    return [*restoring, release, OutcomeOperator(task_id="outcome").as_teardown(on_failure_fail_dagrun=True)]
