"""
# Upgrade a job

**What it does.** Stops a running job at a batch boundary, keeps its state as a named snapshot, and starts another
version from that snapshot. Every event still counts exactly once.

**When to use it.** To bring a new version of a running job into service. To go back to the version before, use
`rollback_job`. A job that never ran is started with `deploy_job`; a stopped one with `start_job`.

**What it changes.** A new snapshot; a new deployment of the job with its own checkpoint; the job record. The old
deployment and its checkpoint stay.

| task | what happens |
|---|---|
| check | takes the job's operation lock; refuses what cannot work, before anything is touched |
| prepare | reserves the launch of the new version |
| submit_driver | puts the new driver on the cluster, in standby beside the old one if there is room |
| wait_standby | waits until the new driver is warm |
| switch | stop at a boundary → export → restore → snapshot's manifest → hand over; each phase is in the log |
| wait_healthy | waits until every stage of the new version has committed, or has found no data |
| probation | watches the new version for a while: failures, lag, and that it produces |
| recount | recomputes the results from the topic and compares |
| finish | writes the receipt |
| restore_old_version | after a failure: the old version runs again (after the hand-over: from the snapshot) |
| release_lock | gives the job's lock back |
| outcome | fails the run unless the operation succeeded |

**What can go wrong, and how to recover.**

- *Every task is skipped*: another operation holds the job; the log of `check` names it. Trigger again when it is over.
- *check fails*: the log says what to correct. Nothing was touched.
- *check refuses a stage*: its log has the verdict on each stage. *Incompatible* state is never continued: give the
  stage another name, or keep its computation. State that would be lost (*dropped*, *unknown*, or *starts empty* after a
  change of its windows) needs your yes: name the stages in *Accept loss of state*. `streamops check JOB VERSION` says
  the same beforehand.
- *The new version does not become healthy in time*: the old version runs again at the end of this run, and the run is
  failed. The snapshot is kept. Look into the driver's log of the new version, publish a correction, trigger again
  under another snapshot name.
- *It does not pass its probation*: the same. The log says first what that costs: how many events are processed again.
- *You want to stop the upgrade*: mark the **run** as failed. The teardowns bring the old version back.
- *Airflow or a worker died*: tasks continue at the recorded step when they are tried again. Clearing any task is safe.
"""

from airflow.sdk import DAG, Param, chain

from streamops_airflow import assets, forms, runs
from streamops_airflow.operators.driver_submit import DriverSubmitOperator
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

with DAG(
    dag_id="upgrade_job",
    description="Bring another version of a running job into service, with its state, without losing an event",
    doc_md=__doc__,
    schedule=None,
    tags=["streamops", "runbook", "changes-a-job"],
    params={
        "job": forms.job("upgrade"),
        "version": forms.version("The published version that shall run afterwards."),
        "snapshot": forms.snapshot(
            "A new name for the state at the switch, e.g. before-v2; left empty, one is made from the operation's id."
        ),
        "strategy": Param(
            "stop_and_restart",
            enum=["stop_and_restart"],
            title="Strategy",
            description="The old version stops at a batch boundary before the new one starts from its state.",
        ),
        "standby": forms.standby(),
        "library": forms.library("LIBRARY/VERSION; left empty, the version that the job has now."),
        "addresses": forms.addresses(),
        "logging": forms.levels(),
        "accept_loss": forms.accept_loss(),
        "healthy_timeout_s": forms.seconds(
            "Healthy within (s)", 180, "If the new version is not healthy by then, the old one runs again."
        ),
        "stop_timeout_s": forms.seconds("Stopped within (s)", 60, "The time for the old version's batch in flight."),
        "probation_s": forms.seconds(
            "Probation (s)",
            30,
            "How long the new version is watched once it is healthy: if it fails repeatedly, falls behind or produces "
            "nothing, the old one runs again. 0 for no probation.",
            least=0,
        ),
        "recount": forms.flag(
            "Recount", "Afterwards recompute the results around the switch from the topic and compare.", default=True
        ),
    },
    **runs.DAG_ARGS,
) as dag:
    check = BeginOperator(task_id="check")
    prepare = StepsOperator(task_id="prepare")
    submit_driver = DriverSubmitOperator(task_id="submit_driver", until="standby")
    wait_standby = StepsOperator(task_id="wait_standby")
    switch = StepsOperator(task_id="switch", outlets=[assets.TAKEN])
    wait_healthy = StepsOperator(task_id="wait_healthy")
    probation = StepsOperator(task_id="probation")
    recount = StepsOperator(task_id="recount")
    finish = StepsOperator(task_id="finish")

    chain(
        check,
        prepare,
        submit_driver,
        wait_standby,
        switch,
        wait_healthy,
        probation,
        recount,
        finish,
        *ending("restore_old_version"),
    )
