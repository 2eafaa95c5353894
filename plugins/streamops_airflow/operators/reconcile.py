"""One pass of reconciliation: a look, and a task for each thing that may start a driver."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from streamops.model.errors import NotFoundError, RefusedError, UnhealthyError
from streamops.model.names import label
from streamops.operations import steps
from streamops_airflow import runs
from streamops_airflow.operators.base import OperationOperator, plain_errors
from streamops_airflow.operators.driver_submit import SubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from streamops.upkeep.reconciler import Healing, Reconciler


def _reconciler(operator: OperationOperator, context: Context) -> Reconciler:
    from streamops.upkeep.reconciler import Reconciler  # loads much that parsing does not need

    return Reconciler(operator.engine(context), runs.owner(context, "reconcile"), operator.log.info)


class ReconcileOperator(OperationOperator):
    """Looks at everything, and does what needs no driver. XCom: what else is to do, a mapping of arguments for each."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Look once."""
        for line in (*runs.told(context), *runs.found(context)):
            self.log.info("%s", line)
        with plain_errors():
            runs.require_known(context)
            plan = _reconciler(self, context).plan()
        for item in plan:
            self.log.info("To do: %s %s, because %s", item.do, label(item.scope), item.why)
        if not plan:
            self.log.info("No driver is missing, and nothing was left half done")
        return [{**asdict(item), "after": [*item.after]} for item in plan]


class HealOperator(SubmitOperator):
    """Does one thing that ``ReconcileOperator`` found: brings a job back, starts its second driver, or settles what was
    left half done. It waits for a job to come back without holding a worker.

    Args:
        scope, do, why, after: as ``Healing`` has them.

    XCom: a line that says what was done.
    """

    def __init__(self, *, scope: str, do: Any, why: str, after: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scope, self.do, self.why, self.after = scope, do, why, tuple(after)

    def execute(self, context: Context) -> str:  # type: ignore[override]  # that one returns nothing
        """Do it, once those are back that it has no room beside."""
        self.log.info("%s: %s", label(self.scope), self.why)
        return self.go_on(context, self.after)

    def go_on(self, context: Context, after: Sequence[str], event: dict[str, Any] | None = None) -> str:
        """Wait for these jobs, one after another; then do it."""
        if event is not None:
            self.log.info("%s", event["why"])
        for at, job in enumerate(after):
            # One that did not come back takes no room.
            with self.carried_out(context), suppress(RefusedError, UnhealthyError, NotFoundError):
                place = job, self.reconciler(context).recovery(job)
                done, why = self.engine(context).poll(*place, steps.HEALTHY.name)
                if not done and (operation := self.engine(context).find(*place)) is not None:
                    self.log.info("There is no room beside %s, which comes first: %s", job, why)
                    self.defer_until(steps.HEALTHY.name, operation, "go_on", after=list(after[at + 1 :]))
        if self.do == "start":
            with self.carried_out(context):
                self.reconciler(context).submit(self.scope)
            self.wait(context, steps.HEALTHY.name)
        return self.after_wait(context)

    def after_wait(self, context: Context) -> str:
        """All of it, or what is left of a start."""
        with self.carried_out(context):
            return self.reconciler(context).heal(self.item)

    @property
    def item(self) -> Healing:
        """What is to be done."""
        from streamops.upkeep.reconciler import Healing

        return Healing(self.scope, self.do, self.why, self.after)

    def place(self, context: Context) -> tuple[str, str]:
        """The job that comes back, and the operation that brings it back."""
        return self.scope, self.reconciler(context).recovery(self.scope)

    def failed(self, context: Context, reason: str) -> None:
        """A start is given up, and its lock is free."""
        self.reconciler(context).give_up(self.item, reason)

    def reconciler(self, context: Context) -> Reconciler:
        """The pass that the run is."""
        return _reconciler(self, context)
