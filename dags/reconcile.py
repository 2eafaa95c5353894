"""
# Bring back what should run

**What it does.** Compares, every minute, what the job records say should run with what runs, and brings back what is
missing: a driver that is gone and that the master does not hold, a job after the master lost its memory, a worker whose
program does not run, an operation whose DAG run is over. It writes a log line only when it did something.

**When to use it.** It runs by itself. To keep it away from one job for a while: `streamops jobs pause JOB`, and
`streamops jobs resume JOB` afterwards. To keep it away from everything, pause this DAG.

**What it changes.** A job that is started again has a new launch of the same deployment, from its own checkpoint. An
abandoned operation is finished, or undone.

**What can go wrong, and how to recover.**

- *A job is not brought back*: its driver failed for good (`streamops jobs show JOB` says why), an operation works on
  it, it is paused, the cluster was shut down, or the master is still recovering.
- *A job is started again and again*: each start is an operation (`streamops operations JOB`) with its reason.
- *This run fails*: its log names a job or a worker that nothing could be done about; the others had their turn. The
  next run looks again, and settles what this one left.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG

from streamops_airflow import runs
from streamops_airflow.operators.reconcile import ReconcileOperator

with DAG(
    dag_id="reconcile",
    description="Bring back jobs and workers that should run, and settle abandoned operations",
    doc_md=__doc__,
    schedule="* * * * *",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    tags=["streamops", "scheduled"],
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    ReconcileOperator(task_id="reconcile", retries=0)
