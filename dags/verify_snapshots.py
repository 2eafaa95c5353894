"""
# Verify snapshots

**What it does.** Reads back every byte of every snapshot that has not been read for some days, compares it with the
signed manifest, and notes the result in the catalogue. With *State*, local Spark also reads the state of each, and the
log says how many rows each partition of each operator holds. The newest good snapshot of each job is also restored into
a scratch job, once a week: it continues beside the real job, writes to its own measurements, is recounted from the
topic, and is removed again with its points. Each job has its own task for either, with its own log.

**When to use it.** It runs by itself every day at 03:10 UTC. Trigger it with *Days* 0 to read everything now, or with
*Job* and *Snapshot* for one of them, as `streamops snapshots verify JOB/NAME --restore` does.

**What it changes.** Only the notes: `streamops snapshots` shows when each was last verified and how. A restore test
also leaves a receipt (`streamops receipts JOB`). Retention does not rely on a snapshot that does not verify. A
scratch job (`scratch-JOB`) takes the room of one more driver with its executors for a few minutes, and yields to
everything else on its nodes; without that room, the log says so, and the test is retried the next day.

**What can go wrong, and how to recover.**

- *An object is missing or altered*: the run fails and names the object, and every snapshot that needs it. Take a new
  snapshot at once (it copies the object again), and pin the last good one.
- *A manifest is refused*: it was altered, or the key it was signed with is not in the installation's private file.
- *State cannot be read*: the objects are what was copied, but Spark cannot continue from them; the checkpoint was
  damaged before the snapshot was taken. Look at the job, and pin the last good snapshot.
- *What continued from it is wrong*: the snapshot was restored, and a recount of what the scratch job wrote does not
  match the topic; the log names the windows. Do not go back to this snapshot. Recount the real job (`streamops
  recount JOB`): if it is wrong as well, its state was wrong before.
- *The scratch job did not start or continue*: nothing is noted. The cluster may be too busy; to look into it, deploy
  the snapshot as a fork. What is left of the test is removed by the last task, or else by the next run.
- *Local Spark does not work here* (no Java, no memory, no room): nothing is noted.
- *The object store does not answer*: nothing is noted; it is retried.
"""

from airflow.sdk import DAG

from streamops_airflow import forms, runs
from streamops_airflow.operators.catalogue import (
    ClearScratchOperator,
    JobsOperator,
    RestoreTestOperator,
    VerifyOperator,
)

with DAG(
    dag_id="verify_snapshots",
    description="Read snapshots back, restore some for a test, and note what was found",
    doc_md=__doc__,
    schedule="10 3 * * *",
    tags=["streamops", "snapshots", "scheduled"],
    params={
        "job": forms.optional_job("Only this job; empty for all."),
        "snapshot": forms.snapshot("Only this one of that job, however recently it was read back or restored."),
        "days": forms.days("Days", 7, "Skip snapshots that were read back within this many days."),
        "state": forms.flag("State", "Also let Spark read the state itself; takes a minute or more per snapshot."),
        "restore": forms.flag(
            "Restore test",
            "Also restore the newest snapshot of each job into a scratch job and recount what that writes.",
            default=True,
        ),
        "restore_days": forms.days("Restore test days", 7, "Skip jobs that had a restore test within this many days."),
        runs.INSTALLATION: forms.installation(),
    },
    **{**runs.DAG_ARGS, "max_active_runs": 1, "default_args": runs.ASKED_ARGS},
) as dag:
    look = JobsOperator(task_id="look")
    each = {"map_index_template": "{{ task.job }}"}
    VerifyOperator.partial(task_id="read_back", max_active_tis_per_dag=2, **each).expand_kwargs(look.output)
    # No second try by itself: what a try that died had begun is undone by the teardown.
    tested = RestoreTestOperator.partial(task_id="test_restore", retries=0, max_active_tis_per_dag=1, **each)
    tested.expand_kwargs(look.output) >> ClearScratchOperator(task_id="clear_up").as_teardown()
