"""One pass of reconciliation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamops_airflow import runs
from streamops_airflow.operators.base import BringsBackOperator, plain_errors

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReconcileOperator(BringsBackOperator):
    """Brings back what should run. XCom: what was done, one line each; nothing when nothing was to be done."""

    def execute(self, context: Context) -> list[str] | None:
        """Look at everything once, and act."""
        from streamops.upkeep.reconciler import Reconciler

        for line in (*runs.told(context), *runs.found(context)):
            self.log.info("%s", line)
        with plain_errors():
            runs.require_known(context)
            done = Reconciler(self.engine(context), runs.owner(context, "reconcile"), self.log.info).run()
        if not done:
            self.log.info("Nothing was done: all that should run does, or is looked after by an operation")
        return done or None
