"""
# Bring back what should run

**What it does.** Compares what the job records say should run with what runs, and brings back what is missing: a
driver that is gone and that the master does not hold, a job after the master lost its memory, a worker whose program
does not run, an operation whose DAG run is over. The log of `look` begins with what was found, and says what is to be
done; each start, each second driver and each operation that was left half done is a task `heal` of its own.

**When to use it.** It runs by itself when there is something to do: a watcher in Airflow's triggerer looks every five
seconds. Triggered by hand it looks at once. To keep it away from one job for a while: `streamops jobs pause JOB`, and
`streamops jobs resume JOB` afterwards. To keep it away from everything, pause this DAG; once you unpause it, press
*Reparse Dag*, or the watcher is back within five minutes only.

**What it changes.** A job that is started again has a new launch of the same deployment, from its own checkpoint. An
abandoned operation is finished, or undone.

**What can go wrong, and how to recover.**

- *A job is not brought back*: its driver failed for good (`streamops jobs show JOB` says why), an operation works on
  it, it is paused, the cluster was shut down, or the master is still recovering.
- *A job is started again and again*: each start is an operation (`streamops operations JOB`) with its reason.
- *This run fails*: a red task `heal` names a job or a worker that nothing could be done about; the others had their
  turn. What is still found is tried again after 15 seconds, then after twice that, and so on up to every five minutes;
  what can only be told, such as a record that cannot be read, each hour.
- *A task `heal` waits for another job*: the cluster has no room for both drivers until the first has its executors.
- *There is no run although something does not run*: the log of the triggerer says what keeps the watcher from looking.
"""

from datetime import timedelta

from airflow.sdk import DAG

from streamops_airflow import runs
from streamops_airflow.operators.reconcile import HealOperator, ReconcileOperator
from streamops_airflow.triggers.watching import ReconcileTrigger, to_do

with DAG(
    dag_id="reconcile",
    description="Bring back jobs and workers that should run, and settle abandoned operations",
    doc_md=__doc__,
    schedule=[to_do(ReconcileTrigger("reconcile"))],
    tags=["streamops", "scheduled"],
    **{**runs.DAG_ARGS, "max_active_runs": 1},
) as dag:
    # A pool of its own: healing does not queue behind slow tasks. What a run leaves unfinished the next one settles.
    own = {"pool": runs.HEALING, "retries": 0, "execution_timeout": timedelta(hours=1)}
    look = ReconcileOperator(task_id="look", **own)
    heal = HealOperator.partial(task_id="heal", map_index_template="{{ task.scope }}", **own)
    heal.expand_kwargs(look.output)
