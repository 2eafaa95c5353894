"""
# Take the snapshots that are due

**What it does.** Every five minutes it looks which running jobs have a snapshot due, by `snapshots.every` or
`snapshots.cron` of their definition, and takes each as a live snapshot, with the same recorded steps as
`snapshot_job`. A job without such a schedule is left alone. Each snapshot is an event of the asset
`s3://BUCKET/snapshots/JOB/manifests`, which other DAGs can wait for.

**When to use it.** It runs by itself. Pause it to stop all scheduled snapshots.

**What it changes.** New snapshots, named after the time they were due (`scheduled-20260316T120000Z`).

**What can go wrong, and how to recover.**

- *A snapshot fails*: its mapped task and this run are red, and `streamops snapshots schedule` shows the reason. The
  other jobs' snapshots and the next run are not affected.
- *Skipped*: another operation held the job. It is due again at the next look, and the delay is recorded.
- *Late, or times missed* (Airflow was down): only the newest missed time is made up for; how late it was, and how many
  were missed, is recorded.
- *The process died*: another try continues with the same operation and name, and takes nothing twice.
"""

from airflow.sdk import DAG

from streamops_airflow import assets, runs
from streamops_airflow.operators.catalogue import DueSnapshotsOperator, TakeScheduledOperator

with DAG(
    dag_id="scheduled_snapshots",
    description="Take the snapshots that are due by their jobs' definitions",
    doc_md=__doc__,
    schedule="*/5 * * * *",
    tags=["streamops", "snapshots", "scheduled"],
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    look = DueSnapshotsOperator(task_id="look")
    take = TakeScheduledOperator.partial(task_id="take", outlets=[assets.TAKEN], max_active_tis_per_dag=2)
    take.expand_kwargs(look.output)
