"""A runbook as a DAG: its form, its tasks in the order of its steps, and its documentation are made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, chain

from streamops_airflow import assets, forms, runs
from streamops_airflow.operators.driver_submit import DriverSubmitOperator
from streamops_airflow.operators.steps import BeginOperator, StepsOperator, ending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamops.operations.runbook import Runbook

_ENDS = {
    "restore_old_version": "after a failure, what ran before runs again",
    "dismiss_new_version": "after a failure, the new version's driver is dismissed",
    "restart_job": "after a failure with Cancel, the job runs again",
    "restore_cluster": "after a failure, the cluster works again",
    "release_lock": "gives the operation lock back",
    "outcome": "fails the run unless the operation succeeded",
}


def runbook_dag(runbook: Runbook, documentation: str | None, *tags: str) -> DAG:
    """The DAG of a runbook.

    Args:
        documentation: what an operator must know, as Markdown; the table of tasks follows it.
        tags: besides those that every runbook has.
    """
    with DAG(
        dag_id=runbook.name,
        description=runbook.purpose,
        doc_md=f"{(documentation or '').strip()}\n\n**What each task does.**\n\n{table(runbook)}\n",
        schedule=None,
        tags=["streamops", "runbook", *tags],
        params=forms.of(runbook.request),
        **{**runs.DAG_ARGS, "default_args": runs.ASKED_ARGS},
    ) as dag:
        chain(*_tasks(runbook), *ending(runbook.restoring))
    return dag


def _tasks(runbook: Runbook) -> Iterator[StepsOperator | DriverSubmitOperator]:
    for task in runbook.tasks:
        steps = [step for step in runbook.steps if step.task == task]
        if task == runbook.tasks[0]:
            yield BeginOperator(task_id=task)
        elif any(step.submits for step in steps):
            after = runbook.steps[runbook.steps.index(steps[-1]) + 1 :]
            yield DriverSubmitOperator(task_id=task, until=next(step.name for step in after if step.waits))
        else:
            outlets = [assets.TAKEN] if any(step.announces for step in steps) else []
            yield StepsOperator(task_id=task, outlets=outlets)


def table(runbook: Runbook) -> str:
    """The tasks of a runbook with what happens in each, as a Markdown table."""
    rows = [(task, "; ".join(step.title for step in runbook.steps if step.task == task)) for task in runbook.tasks]
    ends = [name for name in (runbook.restoring, "release_lock", "outcome") if name]
    rows += [(name, _ENDS[name]) for name in ends]
    return "\n".join(["| task | what happens |", "|---|---|", *(f"| {task} | {what} |" for task, what in rows)])
