"""
# Start the cluster again, with the jobs that ran

**What it does.** Starts the master and the workers, waits until all members have joined, starts exactly the jobs that
`shutdown_cluster` stopped, each from its own checkpoint, and waits until each has caught up with its topics. It reports
the events and seconds of catching up per job.

**When to use it.** After `shutdown_cluster`; or when the cluster is down for another reason: then the jobs that should
run come back. A driver that the master still holds is left to the master, which starts it again by itself.

**What it changes.** Master and workers run; the job records of these jobs name a new launch of the same deployment.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the cluster; the log of `check` names it.
- *check fails*: the cluster runs already, or a node's supervisor does not answer. Nothing was touched. To go on without
  a node that is broken, tick *Without missing members*.
- *Not all members join in time*: the log names those that are missing. Repair them and trigger again, or tick *Without
  missing members*.
- *A job cannot continue*: the log names it; Kafka's retention may have overtaken it. Start it in another way
  (`deploy_job`), then trigger again for the rest.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, chain

from streamops_airflow import forms, runs
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="restart_cluster",
    description="Start master and workers, and exactly the jobs that ran; wait until each has caught up",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "cluster"],
    params={
        "without_missing": forms.flag(
            "Without missing members", "Go on with the members that came in time; those that are missing are named."
        ),
        "library": forms.library("LIBRARY/VERSION to bring the jobs back on; left empty, as the shutdown was told."),
        "members_timeout_s": forms.seconds("Members within (s)", 120, "How long the workers may take to join."),
        "healthy_timeout_s": forms.seconds(
            "Healthy within (s)", 300, "How long the jobs may take to work, and then to catch up."
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    start_servers = StepsOperator(task_id="start_servers")
    wait_members = StepsOperator(task_id="wait_members")
    resume_jobs = StepsOperator(task_id="resume_jobs")
    wait_jobs = StepsOperator(task_id="wait_jobs")
    wait_caught_up = StepsOperator(task_id="wait_caught_up")
    finish = StepsOperator(task_id="finish")

    chain(check, start_servers, wait_members, resume_jobs, wait_jobs, wait_caught_up, finish, *ending())
