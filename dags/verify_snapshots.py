"""
# Verify snapshots

**What it does.** Reads back every byte of every snapshot that was not read for some days, compares it with the signed
manifest, and notes in the catalogue what it found. With *State*, local Spark also reads the state of each, and the log
says how many rows each partition of each operator holds.

**When to use it.** It runs by itself every day at 03:10 UTC. Trigger it with *Days* 0 to read everything now.

**What it changes.** Only the notes: `streamops snapshots` shows when each was last verified and how. Retention does not
count on a snapshot that does not verify.

**What can go wrong, and how to recover.**

- *An object is missing or altered*: the run is red and names the object, and every snapshot that needs it. Take a new
  snapshot at once (it copies the object anew), and pin the last good one.
- *A manifest is refused*: it was altered, or the key it was signed with is not in the installation's private file.
- *State cannot be read*: the objects are what was copied, but Spark cannot continue from them; the checkpoint was
  damaged before the snapshot was taken. Look at the job, and pin the last good snapshot.
- *Local Spark does not work here* (no Java, no memory, no room): nothing is noted.
- *The object store does not answer*: nothing is noted; it is tried again.
"""

from airflow.sdk import DAG

from streamops_airflow import forms, runs
from streamops_airflow.operators.catalogue import VerifyOperator

with DAG(
    dag_id="verify_snapshots",
    description="Read snapshots back and note what was found",
    doc_md=__doc__,
    schedule="10 3 * * *",
    tags=["streamops", "snapshots", "schedule"],
    params={
        "job": forms.optional_job("Only this job; empty for all."),
        "days": forms.days("Days", 7, "Leave out what was read back since then."),
        "state": forms.flag("State", "Also let Spark read the state itself; takes a minute or more a snapshot."),
    },
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    VerifyOperator(task_id="read_back")
