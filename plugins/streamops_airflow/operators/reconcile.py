"""One pass of reconciliation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

from streamops.operations import Owner
from streamops_airflow.operators.base import OperationMixin, plain_errors

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReconcileOperator(OperationMixin, BaseOperator):
    """Brings back what should run. XCom: what was done, one line each; nothing when nothing was to be done."""

    def execute(self, context: Context) -> list[str] | None:
        """Look at everything once, and act."""
        from streamops.cluster.reconciler import Reconciler

        dag_run = context["dag_run"]
        owner = Owner(kind="airflow", dag_id=dag_run.dag_id, run_id=dag_run.run_id, user="reconcile")
        with plain_errors():
            return Reconciler(self.engine(context), owner, self.log.info).run() or None
