"""
# Add or remove members of the cluster

**What it does.** *More members*: starts workers on spare nodes of the inventory, waits until they have joined and until
the running jobs that may take more cores use them. *Fewer members*: lets the leaving workers take nothing new
(decommissions them), hands the drivers there over to the remaining members at a batch boundary, then stops the workers.

**When to use it.** When jobs lag for want of cores, or to take nodes out of service.

**What it changes.** Which nodes are members. A job whose driver was on a leaving node continues from its own checkpoint
under a new launch; its results have a gap of some seconds, and nothing is lost.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the cluster; the log of `check` names it.
- *check fails*: the size is 0 or above the inventory, a node is unknown, its supervisor does not answer, or the running
  jobs would not fit on what remains; the log has the numbers. Nothing was touched.
- *A new worker does not join in time*: it is stopped again, and the run is failed.
- *You want to stop it*: mark the **run** as failed. Leaving nodes become members again and the jobs run.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, chain

from streamops_airflow import forms, runs
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="scale_cluster",
    description="Add members, or drain and remove them, while jobs run",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "cluster"],
    params={
        "size": forms.number("Size", "The number of members to reach; or leave it empty and say a change."),
        "change": forms.number("Change", "How many members more (2), or fewer (-1).", minimum=-1000),
        "nodes": forms.name_list("Nodes", "Which join or leave; left empty, those with the fewest drivers leave."),
        "members_timeout_s": forms.seconds("Members within (s)", 120, "How long new workers may take to join."),
        "stop_timeout_s": forms.seconds("Stopped within (s)", 60, "How long a driver's batch in flight may take."),
        "healthy_timeout_s": forms.seconds(
            "Healthy within (s)", 180, "How long a job that was handed over may take to work again."
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    start_nodes = StepsOperator(task_id="start_nodes")
    wait_members = StepsOperator(task_id="wait_members")
    wait_in_use = StepsOperator(task_id="wait_in_use")
    hand_over = StepsOperator(task_id="hand_over")
    wait_jobs = StepsOperator(task_id="wait_jobs")
    stop_nodes = StepsOperator(task_id="stop_nodes")
    finish = StepsOperator(task_id="finish")

    chain(
        check,
        start_nodes,
        wait_members,
        wait_in_use,
        hand_over,
        wait_jobs,
        stop_nodes,
        finish,
        *ending("restore_cluster"),
    )
