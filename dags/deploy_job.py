"""
# Deploy a job

**What it does.** Starts a published version of a job that is not running: with empty state the first time, or from a
snapshot.

**When to use it.** For a job's first start; to go back to a snapshot of a stopped job; to start a second job from
another job's snapshot (a fork). A running job gets another version with `upgrade_job`; a stopped one continues from
its own checkpoint with `start_job`.

**What it changes.** A new deployment with its own checkpoint, and the job record. Nothing is overwritten.

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the job; the log of `check` names it. Trigger again when it is over.
- *This version already runs*: the run succeeds and changes nothing; with other settings it is refused.
- *Another version runs*: refused; use `upgrade_job`.
- *State exists*: starting with empty state would count nothing that happened before, and is refused unless
  *From scratch* is ticked. Choose a snapshot, or `start_job`.
- *The snapshot is refused*: it is altered, incomplete, another job's, or Kafka has already deleted what comes after
  it. Nothing was touched; choose another.
- *A stage is refused*: the version cannot continue the snapshot's state of that stage. *Incompatible* needs another
  stage name. State that would be lost (*dropped*, *unknown*, or *starts empty* after a change of its windows) needs
  your yes: name the stages in *Accept loss of state*.
- *Not healthy in time*: the run fails; the log names the stage or the error. Nothing ran before, so nothing is
  restored. Correct the cause and trigger again.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, chain

from streamops_airflow import forms, runs
from streamops_airflow.operators.driver_submit import DriverSubmitOperator
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="deploy_job",
    description="Start a published version of a job that is not running: empty, or from a snapshot",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "changes-a-job"],
    params={
        "job": forms.job("deploy"),
        "version": forms.version("The published version to run."),
        "from_snapshot": forms.from_snapshot("Start from this snapshot: NAME, or JOB/NAME together with Fork."),
        "from_scratch": forms.flag(
            "From scratch", "Start with empty state although a snapshot or a checkpoint of this job exists."
        ),
        "fork": forms.flag("Fork", "The snapshot belongs to another job, and that is meant."),
        "accept_loss": forms.accept_loss(),
        "params": forms.mapping(
            "Params",
            'Values over those of the definition, e.g. {"window": "5 minutes"}.',
            ["string", "number", "boolean"],
        ),
        "topics": forms.mapping("Topics", 'Other topics for sources, e.g. {"trades": "trades-test"}.', ["string"]),
        "library": forms.library("LIBRARY/VERSION; left empty, that of the job or of the snapshot, else the newest."),
        "addresses": forms.addresses(),
        "logging": forms.levels(),
        "healthy_timeout_s": forms.seconds(
            "Healthy within (s)", 180, "The run fails if the job is not healthy by then."
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    prepare = StepsOperator(task_id="prepare")
    submit_driver = DriverSubmitOperator(task_id="submit_driver")
    wait_healthy = StepsOperator(task_id="wait_healthy")
    finish = StepsOperator(task_id="finish")

    chain(check, prepare, submit_driver, wait_healthy, finish, *ending())
