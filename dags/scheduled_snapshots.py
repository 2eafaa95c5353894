"""
# Take the snapshots that are due

**What it does.** Takes the snapshots of running jobs that are due, each as a live snapshot, with the same recorded
steps as `snapshot_job`. A job's schedule is the one set by `schedule_job`, or else `snapshots.every` or
`snapshots.cron` in its definition; a job without one is left alone. Each snapshot is an event of the asset
`s3://BUCKET/snapshots/JOB/manifests`, which other DAGs can wait for.

**When to use it.** It runs by itself when a snapshot is due: a watcher in Airflow's triggerer looks every 15 seconds.
Pause it to stop all scheduled snapshots; after unpausing it, press *Reparse Dag*, or it can take up to five minutes
until the watcher is back.

**What it changes.** New snapshots, named after the time they were due (`scheduled-20260316T120000Z`).

**What can go wrong, and how to recover.**

- *A snapshot fails*: its mapped task and this run fail, and `streamops snapshots schedule` shows the reason. The
  other jobs' snapshots and the next run are not affected.
- *Skipped*: another operation held the job. It is retried after 15 seconds, then after twice that, and so on up to
  every five minutes; the delay is recorded.
- *Late, or times missed* (Airflow was down): only the newest missed snapshot is made up for; how late it was, and how
  many were missed, is recorded.
- *The process died*: a retry continues with the same operation and name, and takes nothing twice.
"""

from datetime import timedelta

from airflow.sdk import DAG

from streamops_airflow import assets, runs
from streamops_airflow.operators.catalogue import DueSnapshotsOperator, TakeScheduledOperator
from streamops_airflow.triggers.watching import DueSnapshotsTrigger, to_do

with DAG(
    dag_id="scheduled_snapshots",
    description="Take the snapshots that are due by their jobs' definitions",
    doc_md=__doc__,
    schedule=[to_do(DueSnapshotsTrigger("scheduled_snapshots"))],
    tags=["streamops", "snapshots", "scheduled"],
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    look = DueSnapshotsOperator(task_id="look", execution_timeout=timedelta(minutes=5))
    take = TakeScheduledOperator.partial(
        task_id="take", outlets=[assets.TAKEN], max_active_tis_per_dag=2, execution_timeout=timedelta(hours=1)
    )
    take.expand_kwargs(look.output)
