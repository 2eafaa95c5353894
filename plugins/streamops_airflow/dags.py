"""A runbook as a DAG: its form, its tasks in the order of its steps, and its documentation are made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, TriggerRule, chain
from airflow.sdk.definitions.mappedoperator import MappedOperator

from streamops_airflow import assets, forms, runs
from streamops_airflow.operators.approval import ApprovedOperator
from streamops_airflow.operators.driver_submit import DriverSubmitOperator
from streamops_airflow.operators.steps import SUBMIT_AGAIN, BeginOperator, PartsOperator, StepsOperator, ending

if TYPE_CHECKING:
    from airflow.sdk.types import Operator

    from streamops.operations.runbook import Runbook

_IN_EVERY_RUN = """
- *Every task is skipped*: another operation holds the job, or the cluster; the log of `check` names it. Trigger again
  when it is over.
- *Airflow or a worker died*: tasks continue at the recorded step when they are retried. Clearing any task is safe.
"""

_ENDS = {
    "restore_old_version": "after a failure, what ran before is put back",
    "dismiss_new_version": "after a failure, the new version's driver is dismissed",
    "restart_job": "after a failure with Cancel, the job may write again",
    "restore_cluster": "after a failure, the cluster works again",
    SUBMIT_AGAIN: "after a failure, the drivers of what ran before are submitted, and work again",
    "release_lock": "gives the operation lock back",
    "outcome": "fails the run unless the operation succeeded",
}


def runbook_dag(runbook: Runbook, documentation: str | None, *tags: str) -> DAG:
    """The DAG of a runbook.

    Args:
        documentation: what an operator must know, as Markdown, ending with what can go wrong; what can go wrong in
            every run is added to that list, and the table of tasks follows it.
        tags: besides those that every runbook has.
    """
    most = {"max_active_runs": runs.MOST_ASKING} if _asks(runbook) else {}
    with DAG(
        dag_id=runbook.name,
        description=runbook.purpose,
        doc_md=f"{(documentation or '').strip()}{_IN_EVERY_RUN}\n**What each task does.**\n\n{table(runbook)}\n",
        schedule=None,
        tags=["streamops", "runbook", *tags],
        params=forms.of(runbook.request),
        **{**runs.DAG_ARGS, "default_args": runs.ASKED_ARGS, **most},
    ) as dag:
        chain(*_tasks(runbook), *ending(runbook))
    return dag


def _asks(runbook: Runbook) -> bool:
    """Whether a run may wait for a person before it begins."""
    return "approval" in runbook.request.model_fields


def _tasks(runbook: Runbook) -> list[Operator]:
    """The tasks of its plan, in order."""
    tasks: list[Operator] = []
    for at, task in enumerate(runbook.tasks):
        steps = [step for step in runbook.steps if step.task == task]
        following = [step for step in runbook.steps if step.task in runbook.tasks[at + 1 : at + 2]]
        if not tasks:
            tasks.append((ApprovedOperator if _asks(runbook) else BeginOperator)(task_id=task))
        elif any(step.parts for step in steps):
            # One after the other: each takes the operation up, and no two processes work on one at once.
            of_each = DriverSubmitOperator.partial(
                task_id=task,
                until="",
                streamops_conn_id=runs.ASKED_ARGS[runs.INSTALLATION],  # a default of the DAG does not reach it
                max_active_tis_per_dagrun=1,
                map_index_template="{{ task.part }}",
            )
            tasks.append(of_each.expand_kwargs(tasks[-1].output))
        elif any(step.submits for step in steps):
            after = runbook.steps[runbook.steps.index(steps[-1]) + 1 :]
            tasks.append(DriverSubmitOperator(task_id=task, until=next(step.name for step in after if step.waits)))
        elif any(step.parts for step in following):
            tasks.append(PartsOperator(task_id=task, mapped=following[0].task))
        else:
            outlets = [assets.TAKEN] if any(step.announces for step in steps) else []
            mapped = isinstance(tasks[-1], MappedOperator)  # over nothing, it is skipped
            rule = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS if mapped else TriggerRule.ALL_SUCCESS
            tasks.append(StepsOperator(task_id=task, outlets=outlets, trigger_rule=rule))
            if mapped:
                tasks[-3] >> tasks[-1]
    return tasks


def table(runbook: Runbook) -> str:
    """The tasks of a runbook with what happens in each, as a Markdown table."""
    rows = [(task, "; ".join(step.title for step in runbook.steps if step.task == task)) for task in runbook.tasks]
    ends = [runbook.restoring, SUBMIT_AGAIN if runbook.submits_again else "", "release_lock", "outcome"]
    rows += [(name, _ENDS[name]) for name in ends if name]
    return "\n".join(["| task | what happens |", "|---|---|", *(f"| {task} | {what} |" for task, what in rows)])
