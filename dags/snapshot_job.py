"""
# Take a snapshot

**What it does.** Keeps the state of a job as a named, immutable, verified snapshot. By default the job keeps running;
with *Cancel* it is first stopped at a batch boundary.

**When to use it.** Before a risky change; as a regular backup; with *Cancel*, to take a job out of service in a way
that it can be continued from later, also as another version.

**What it changes.** A new snapshot. With *Cancel* also the job: it is stopped, and says so.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the job; the log of `check` names it. Trigger again when it is over.
- *The name is taken*: refused; names are never reused. Choose another.
- *The export fails* (no space, no object store): there is no snapshot, not half of one. With *Cancel* the job may be
  stopped by then: `start_job` continues it from its own checkpoint. Otherwise it never stopped.
- *The job does not stop in time*: the run fails and the job was told to stop; look at its log, then trigger again.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, chain

from streamops_airflow import assets, forms, runs
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="snapshot_job",
    description="Keep the state of a job as a named snapshot, running or with a stop",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "snapshots"],
    params={
        "job": forms.job("take the snapshot of"),
        "snapshot": forms.snapshot(
            "A new name, never used before for this job; left empty, one is made from the operation's id."
        ),
        "cancel": forms.flag("Cancel", "Stop the job at a batch boundary first. It stays stopped."),
        "stop_timeout_s": forms.seconds(
            "Stopped within (s)", 60, "With Cancel: how long the batch in flight may take."
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    switch = StepsOperator(task_id="switch", outlets=[assets.TAKEN])
    finish = StepsOperator(task_id="finish")

    chain(check, switch, finish, *ending())
