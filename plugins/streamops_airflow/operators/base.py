"""What every task of a runbook shares: its operation, the engine, and how errors end a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated

from streamops.model.errors import ConflictError, LeaseLostError, StreamOpsError, UnhealthyError, UnreachableError
from streamops.model.owner import Owner
from streamops.operations import runbooks
from streamops_airflow import runs
from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.triggers.waiting import StepTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from streamops.operations.engine import Engine
    from streamops.spark.submission import Submission

# Another try may find these gone; every other refusal stands, and a retry would only repeat it.
MAY_PASS = (UnreachableError, ConflictError, LeaseLostError)
_FINISHED = {"success": True, "failed": True, "queued": False, "running": False}


@contextmanager
def plain_errors(failed: Callable[[str], None] = lambda reason: None) -> Iterator[None]:
    """End the task with the core's one sentence; only errors that may pass are retried.

    Args:
        failed: is told the reason when no other try follows because of it.
    """
    try:
        yield
    except MAY_PASS as error:
        raise AirflowException(str(error)) from error
    except StreamOpsError as error:
        failed(str(error))
        raise AirflowFailException(str(error)) from error


def finished(context: Context) -> Callable[[Owner], bool | None]:
    """Asks Airflow whether the DAG run that owns a lock is over; None when Airflow does not know the run."""

    def ask(owner: Owner) -> bool | None:
        if owner.kind != "airflow" or not owner.dag_id or not owner.run_id:
            return None
        try:
            state = context["ti"].get_dagrun_state(owner.dag_id, owner.run_id)
        except Exception:  # the Task SDK has no error of its own for an unknown run
            return None
        return _FINISHED.get(str(getattr(state, "value", state)))

    return ask


def fence(context: Context) -> Callable[[str, str], None]:
    """Refuses to continue once this task may no longer run.

    A task that someone marks failed keeps its process for some seconds (until the next heartbeat), while Airflow
    already runs the teardowns. The check stands before every side effect, beside the conditional writes.
    """
    ti = context["ti"]

    def check(step: str, when: str) -> None:
        if when != "before":
            return
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id])
        state = states.get(ti.run_id, {}).get(ti.task_id)
        if state is not None and str(getattr(state, "value", state)) != "running":
            raise AirflowTaskTerminated(f"This task was set to {state} meanwhile; {step} is left to the teardown.")

    return check


class OperationMixin:
    """For operators that carry out one task of an operation's plan."""

    if TYPE_CHECKING:
        task_id: str
        log: Any
        defer: Callable[..., Any]

    def engine(self, context: Context) -> Engine:
        """The engine, speaking into this task's log."""
        return StreamOpsHook().engine(
            say=self.log.info,
            finished=finished(context),
            submit=self.submit,
            at_point=fence(context),
        )

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster and return Spark's id of it."""
        from streamops_airflow.hooks.driver_submit import DriverSubmitHook

        hook = StreamOpsHook()
        return DriverSubmitHook(hook.settings, submission).submit()

    def waiting_step(self, context: Context, task: str) -> str | None:
        """The step of a task that waits for something outside, if it has one."""
        steps = runbooks.find(context["dag_run"].dag_id).steps
        return next((step.name for step in steps if step.task == task and step.waits), None)

    def carried_out(self, context: Context) -> AbstractContextManager[None]:
        """Errors of the block end the task, and the operation records the reason when nothing is tried again."""

        def failed(reason: str) -> None:
            with suppress(StreamOpsError):  # the teardowns record it otherwise
                self.engine(context).fail(*runs.place(context), reason)

        return plain_errors(failed)

    def wait(self, context: Context, step: str) -> None:
        """Go on when the step is done; until then, defer. Returns only when it is done already."""
        with self.carried_out(context):
            run = runs.of(context)
            engine = self.engine(context)
            operation = engine.find(run.job, run.operation_id)
            if operation is not None and operation.state != "running":
                return  # someone cleared a task of a run that is over: the step itself decides what that means
            done, why = engine.poll(run.job, run.operation_id, step)
        self.log.info("%s: %s", step, why)
        if not done:
            deadline = datetime.now(UTC).timestamp() + runbooks.of(run.request).step(step).within(run.request)
            trigger = StepTrigger(run.job, run.operation_id, step, deadline)
            self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Called when the trigger fired.

        Raises:
            AirflowFailException: what was waited for cannot come any more, or did not come in time.
        """
        self.log.info("%s", event["why"])
        if not event["done"]:
            with self.carried_out(context):
                raise UnhealthyError(event["why"])
        return self.after_wait(context)

    def after_wait(self, context: Context) -> Any:
        """What is left to do after the wait."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """Stop this process's part at once; drivers and objects stay as they are, the operation says where it was.

        Airflow would let the process continue for some seconds. Raises SystemExit, after which Airflow tries the task
        again when its scheduler was only restarted, and leaves it alone when someone has set its state.
        """
        self.log.warning("The task was ended from outside; the driver is left alone")
        raise SystemExit(143)
