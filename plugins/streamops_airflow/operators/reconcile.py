"""One pass of reconciliation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamops_airflow import runs
from streamops_airflow.operators.base import OperationOperator, plain_errors

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReconcileOperator(OperationOperator):
    """Brings back what should run. XCom: what was done, one line each; nothing when nothing was to be done."""

    def execute(self, context: Context) -> list[str] | None:
        """Look at everything once, and act."""
        from streamops.upkeep.reconciler import Reconciler

        with plain_errors():
            return Reconciler(self.engine(context), runs.owner(context, "reconcile"), self.log.info).run() or None
