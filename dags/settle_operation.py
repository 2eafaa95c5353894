"""
# Settle an abandoned operation

**What it does.** Takes over an operation whose DAG run, or command, is gone, and does with it what you choose.

- *resume*: finishes it from its recorded step.
- *abort*: undoes it, so that what ran before runs again.
- *leave*: closes it and touches nothing else; its standby, which nothing would use any more, is told to end.

**When to use it.** `reconcile` settles what a finished run left behind, and so does the next operation on the job. Use
this when Airflow no longer knows the run (it was deleted, or Airflow lost its database); or, with *leave*, when undoing
it fails every time, so that nothing else can be done with the job: afterwards `cancel_job`, `restore_job` and
`delete_job` work again. Look first at `streamops operations show ID`.

**What it changes.** What the steps of the other operation change, under this run's lock and in this run's log. With
*leave*, only records: the log of `check` says what is left, and the operation keeps your reason.

**What can go wrong, and how to recover.**

- *The run of that operation is still alive*, and so holds the job: every task is skipped. End that run first, by
  marking it as failed.
- *There is nothing to settle*: the operation is over; refused.
- *It cannot be finished*: it is undone, and this run fails with the reason.
- *It cannot be undone*: this run fails with the reason. Mend the cause and trigger again, or choose *leave*.
"""

from streamops.operations.runbooks.settle_operation import SETTLE_OPERATION
from streamops_airflow.dags import runbook_dag

dag = runbook_dag(SETTLE_OPERATION, __doc__)
