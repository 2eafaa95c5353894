"""
# Clean Airflow's history

**What it does.** Removes the runs of `reconcile` and `scheduled_snapshots` that began 14 days ago or before, with their
logs, and the logs of reading these files. `reconcile` alone makes 1,440 runs a day.

**When to use it.** It runs by itself every day at 03:40 UTC. Trigger it with other *Days* to remove more at once.

**What it changes.** Airflow's database and its directory of logs, nothing else. Runs of runbooks stay, with their logs:
they are the audit. What reconciliation did to a job stays as well, as an operation and a receipt of that job.

**What can go wrong, and how to recover.**

- *Airflow's own clean-up fails*: the run is red and its log has the output. Nothing depends on it; the next run tries
  again.
- *The log warns that the table `deadline` was not cleaned*: Airflow 3.3 always does, and no DAG here has deadlines.
- *Killed in the middle*: run it again. A table whose name begins with `_airflow_deleted__` may be left; `airflow db
  drop-archived` removes it.
"""

from airflow.sdk import DAG

from streamops_airflow import forms, runs
from streamops_airflow.operators.history import CleanHistoryOperator

with DAG(
    dag_id="clean_history",
    description="Remove old runs of what runs by itself, with their logs",
    doc_md=__doc__,
    schedule="40 3 * * *",
    tags=["streamops", "scheduled"],
    params={"days": forms.days("Days", 14, "Keep the runs of so many days.", least=1)},
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    CleanHistoryOperator(task_id="clean")
