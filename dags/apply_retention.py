"""
# Apply retention

**What it does.** For each job with a retention rule (set by `schedule_job`, or else `snapshots.keep` in its
definition), it decides which snapshots are kept (the last ones, the newest of each hour, day and week; those that are
pinned, in use, or the last good one) and removes the others. It gives the reason for each. It also permanently frees
the bytes of what was removed 14 or more days ago. Each job has its own task, with its own log and retries.

**When to use it.** It runs by itself every day at 02:10 UTC. Triggered by hand, it only says what it would do; tick
*Apply* to have it done. `streamops snapshots prune JOB --apply` triggers it for one job.

**What it changes.** Removed snapshots leave the catalogue. For 14 days `streamops snapshots undelete JOB/NAME` brings
each back; after that it is gone. Snapshots that share objects with removed ones are never harmed.

**What can go wrong, and how to recover.**

- *A job is held by an operation*: it is left alone until the next run.
- *A manifest is refused* (altered, or signed with an unknown key): nothing of that job is freed until this is resolved.
- *Killed in the middle*: run it again; it continues.
- *The wrong one was removed*: `streamops snapshots removed JOB`, then `undelete`. Pin what must stay.
"""

from airflow.sdk import DAG

from streamops_airflow import forms, runs
from streamops_airflow.operators.catalogue import JobsOperator, RetentionOperator

with DAG(
    dag_id="apply_retention",
    description="Remove the snapshots that no rule keeps, with the reason for each",
    doc_md=__doc__,
    schedule="10 2 * * *",
    tags=["streamops", "snapshots", "scheduled"],
    params={
        "job": forms.optional_job("Only this job; empty for all."),
        "keep": forms.rule("Replaces the definition's rule, for the one job that is named."),
        "apply": forms.flag("Apply", "Remove and free; unticked, only say what would be done. The daily run applies."),
        runs.INSTALLATION: forms.installation(),
    },
    **{**runs.DAG_ARGS, "max_active_runs": 1, "default_args": runs.ASKED_ARGS},
) as dag:
    look = JobsOperator(task_id="look")
    each = RetentionOperator.partial(task_id="apply_retention", map_index_template="{{ task.job }}")
    each.expand_kwargs(look.output)
