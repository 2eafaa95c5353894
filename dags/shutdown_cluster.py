"""
# Shut the cluster down without losing anything

**What it does.** Stops every running job at a batch boundary, waits until its state is saved and says so per job,
records which jobs ran, then stops the workers and the master and reports how each process ended.

**When to use it.** Before maintenance of the machines, or to take the whole installation out of service.
`restart_cluster` brings back exactly the jobs that ran.

**What it changes.** All jobs are stopped, and so are the Spark workers and the master. Kafka, the object store and the
results stay as they are. With a *Snapshot name* every job keeps a snapshot of that name as well.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the cluster; the log of `check` names it.
- *check fails*: the cluster is stopped already, the master or a node's supervisor does not answer, the snapshot name is
  taken, or the state of a job does not fit the *Shared library*. Nothing was touched.
- *stop_jobs fails because an operation holds a job*: nothing was touched; trigger again when it is over.
- *A job does not stop in time*: the jobs that were stopped are started again, and the run is failed. Look at that job
  (`streamops jobs show JOB`), then trigger again.
- *It fails while servers are stopped*: all state is saved. Trigger `restart_cluster`, or clear the failed task.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, chain

from streamops_airflow import forms, runs
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="shutdown_cluster",
    description="Stop every job at a batch boundary, record which ran, then stop workers and master",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "cluster", "stops-every-job"],
    params={
        "snapshot": forms.snapshot("Keep a snapshot of every job under this new name; left empty, none is kept."),
        "library": forms.library(
            "LIBRARY/VERSION that the restart brings the jobs back on. Whether their state fits is checked first."
        ),
        "stop_timeout_s": forms.seconds("Stopped within (s)", 60, "How long each job's batch in flight may take."),
        "healthy_timeout_s": forms.seconds(
            "Healthy within (s)", 180, "For the jobs that are started again when another one does not stop."
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    stop_jobs = StepsOperator(task_id="stop_jobs")
    keep_snapshots = StepsOperator(task_id="keep_snapshots")
    stop_servers = StepsOperator(task_id="stop_servers")
    finish = StepsOperator(task_id="finish")

    chain(check, stop_jobs, keep_snapshots, stop_servers, finish, *ending("restore_cluster"))
