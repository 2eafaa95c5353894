"""
# Bring back what should run

**What it does.** Compares what should run according to the job records with what does run, and brings back what is
missing: a driver that is gone and that the master does not hold, a job after the master lost its state, a worker whose
program does not run, an operation whose DAG run is over. The log of `look` begins with what was found and says what has
to be done; each start, each second driver and each operation that was left half done has its own `heal` task.

**When to use it.** It runs by itself when there is something to do: a watcher in Airflow's triggerer looks every five
seconds. Triggered by hand, it looks at once. To exclude one job for a while: `streamops jobs pause JOB`, and
`streamops jobs resume JOB` afterwards. To exclude everything, pause this DAG; after unpausing it, press *Reparse Dag*,
or it can take up to five minutes until the watcher is back.

**What it changes.** A job that is started again has a new launch of the same deployment, from its own checkpoint. An
abandoned operation is finished, or undone.

**What can go wrong, and how to recover.**

- *A job is not brought back*: its driver failed for good (`streamops jobs show JOB` says why), an operation works on
  it, it is paused, the cluster was shut down, or the master is still recovering.
- *A job is started again and again*: each start is an operation (`streamops operations JOB`) with its reason.
- *This run fails*: a failed `heal` task names a job or a worker that could not be brought back; the others were dealt
  with. What is still found is retried after 15 seconds, then after twice that, and so on up to every five minutes;
  what can only be reported, such as a record that cannot be read, every hour.
- *A `heal` task waits for another job*: the cluster has no room for both drivers until the first has its executors.
- *There is no run although something does not run*: the triggerer's log says what keeps the watcher from looking.
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
