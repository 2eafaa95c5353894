"""What every task of a runbook shares: its operation, the engine, and how errors end a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralError, TaskDeferralTimeout

from streamops.model.errors import (
    ConflictError,
    LeaseLostError,
    OvertakenError,
    RefusedError,
    StreamOpsError,
    UnhealthyError,
    UnreachableError,
)
from streamops.operations import runbooks
from streamops_airflow import runs
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.triggers.waiting import StepTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from streamops.operations.engine import Engine
    from streamops.operations.operation import Operation
    from streamops.spark.submission import Submission

# Another try may find these gone; every other refusal stands, and a retry would only repeat it.
# Who was overtaken continues once whoever did is done.
MAY_PASS = (UnreachableError, ConflictError, LeaseLostError, OvertakenError)
WHY = "why_it_failed"  # under which a task whose last try failed tells the teardowns, whatever server is away
# The trigger says itself that the time is over. Airflow's scheduler does if no triggerer runs; killed, one is replaced
# within half a minute.
_GRACE = timedelta(minutes=1)


@contextmanager
def plain_errors(
    failed: Callable[[str], None] = lambda reason: None, exhausted: Callable[[str], None] = lambda reason: None
) -> Iterator[None]:
    """End the task with the core's one sentence; only errors that may pass are retried.

    Args:
        failed: is told the reason when no other try follows because of it.
        exhausted: is told that of an error that may pass.
    """
    try:
        yield
    except MAY_PASS as error:
        exhausted(str(error))
        raise AirflowException(str(error)) from error
    except StreamOpsError as error:
        failed(str(error))
        raise AirflowFailException(str(error)) from error


class StreamOpsOperator(BaseOperator):
    """For operators that act on one installation.

    Args:
        streamops_conn_id: the connection that names it (templated).
    """

    template_fields: Sequence[str] = ("streamops_conn_id",)

    def __init__(self, *, streamops_conn_id: str = SnapshotHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.streamops_conn_id = streamops_conn_id

    @cached_property
    def hook(self) -> SnapshotHook:
        """The installation."""
        return SnapshotHook(self.streamops_conn_id)


class OperationOperator(StreamOpsOperator):
    """For operators that carry out one task of an operation's plan."""

    _engine: Engine | None = None

    def engine(self, context: Context) -> Engine:
        """The engine, speaking into this task's log: one for this try, so that what overtakes it is noticed."""
        if self._engine is None:
            self._engine = self.hook.task_engine(context, self.log.info, self.submit)
        return self._engine

    def submit(self, submission: Submission) -> str:
        """Start no driver: each is started by a SparkSubmitOperator task of its own. Raises RefusedError."""
        raise RefusedError(
            f"Task {self.task_id} is no SparkSubmitOperator, so it does not submit launch {submission.launch} of "
            f"{submission.job}."
        )

    def place(self, context: Context) -> tuple[str, str]:
        """Job (or the cluster) and operation id of what the task is about."""
        return runs.place(context)

    def waiting_step(self, context: Context, task: str) -> str | None:
        """The step of a task that waits for something outside, if it has one."""
        steps = runbooks.find(context["dag_run"].dag_id).steps
        return next((step.name for step in steps if step.task == task and step.waits), None)

    def carried_out(self, context: Context) -> AbstractContextManager[None]:
        """Errors of the block end the task, and the operation records the reason when nothing is tried again."""

        def failed(reason: str) -> None:
            context["ti"].xcom_push(key=WHY, value=reason)
            with suppress(StreamOpsError):  # the teardowns record it otherwise
                self.failed(context, reason)

        return plain_errors(failed, lambda reason: failed(reason) if runs.last_try(context) else None)

    def failed(self, context: Context, reason: str) -> None:
        """Record that no other try follows."""
        self.engine(context).fail(*self.place(context), reason)

    def wait(self, context: Context, step: str) -> None:
        """Continue when the step is done; until then, defer. Returns only when it is done already."""
        with self.carried_out(context):
            place, engine = self.place(context), self.engine(context)
            operation = engine.find(*place)
            if operation is not None and operation.state != "running":
                return  # someone cleared a task of a run that is over: the step itself decides what that means
            done, why = engine.poll(*place, step)
        self.log.info("%s: %s", step, why)
        if not done and operation is not None:
            self.defer_until(step, operation, "resume")

    def defer_until(self, step: str, operation: Operation, then: str, **kwargs: Any) -> NoReturn:
        """Wait without a worker until a step is done, cannot be any more, or had its time; then call the method."""
        seconds = runbooks.of(operation).step(step).within(operation.request)
        deadline = datetime.now(UTC).timestamp() + seconds
        trigger = StepTrigger(operation.job, operation.id, step, deadline, self.streamops_conn_id)
        self.defer(trigger=trigger, method_name=then, kwargs=kwargs, timeout=timedelta(seconds=seconds) + _GRACE)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Called after a deferral; one that Airflow ended itself may be tried again, and looks first."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            with self.carried_out(context):
                raise UnreachableError(
                    f"Airflow's triggerer did not say in time what the task waits for ({error}); see that it runs."
                ) from error

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


class BringsBackOperator(OperationOperator):
    """For operators that may find what another run left half done, and submit its driver when they settle that.

    Restore tests, scheduled snapshots, and what begins an operation: of the tasks of a plan the first alone.
    """

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster, as its definition says."""
        return self.hook.submit(submission)
