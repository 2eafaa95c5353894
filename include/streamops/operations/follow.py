"""Start a runbook in Airflow and follow it: what the command line, the demo and the benchmarks do alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import not_
from typing import Any, Literal

from pydantic import ValidationError

from streamops.clients.airflow import Airflow, Run
from streamops.model import records
from streamops.model.errors import LockedError, NotFoundError, RefusedError, StreamOpsError, UnreachableError
from streamops.model.owner import current_user, this_host
from streamops.model.wording import wrong_fields
from streamops.operations import runbooks
from streamops.operations.operation import Operation, Request
from streamops.operations.requests import ClusterRequest
from streamops.store import documents, keys, waiting
from streamops.store.object_store import ObjectStore

HELD = "held_by_another_operation"  # under which the first task tells, of a run that it skips, which
POLL_S = 1.0
LONGEST_FACT, LONGEST_SENTENCE = 40, 160  # characters, to be shown beside a step
PATIENCE_S = 60.0  # Airflow may be restarted while it is followed; the runbook continues without being watched

StepState = Literal["waiting", "running", "done", "failed", "undone"]


@dataclass(frozen=True)
class StepView:
    """One step as shown to a person; ``seconds`` so far, None before it began."""

    name: str
    title: str
    state: StepState
    seconds: float | None = None
    facts: str = ""


Show = Callable[[tuple[StepView, ...]], None]


def request(runbook: str, /, **values: Any) -> Request:
    """A checked request; values that are None are left out.

    Raises:
        RefusedError: names each wrong value and what is allowed.
    """
    given = {key: value for key, value in values.items() if value is not None}
    try:
        return runbooks.find(runbook).request.model_validate({"runbook": runbook, **given})
    except ValidationError as error:
        told = wrong_fields(error, runbook)
        raise RefusedError(f"The request is refused: {told}. Nothing was touched.") from None


def view(asked: Request, operation: Operation | None, now: datetime) -> tuple[StepView, ...]:
    """The plan with what has been done of it; steps of undoing it come last."""
    plan = runbooks.of(asked).plan(asked)
    if operation is None:
        return tuple(StepView(step.name, step.title, "waiting") for step in plan)
    failed = operation.state not in ("running", "succeeded")
    when, until = spans(operation), operation.updated if failed else now
    shown = []
    for step in plan:
        if step.name not in when:
            shown.append(StepView(step.name, step.title, "waiting"))
            continue
        began, ended = when[step.name]
        state: StepState = "done" if ended else "failed" if failed else "running"
        reported = facts(operation.facts(step.name))
        shown.append(StepView(step.name, step.title, state, ((ended or until) - began).total_seconds(), reported))
    for name, record in operation.undo.items():
        state = "undone" if record.finished else "running"
        seconds = ((record.finished or now) - record.started).total_seconds()
        title = f"Undo: {name.replace('_', ' ')}"
        shown.append(StepView(f"undo {name}", title, state, seconds, facts(record.facts)))
    return tuple(shown)


def spans(operation: Operation) -> dict[str, tuple[datetime, datetime | None]]:
    """When each step that has begun did so, and when it ended.

    A step that waits is recorded only once its wait is over: it begins where the step before it ended.
    """
    found: dict[str, tuple[datetime, datetime | None]] = {}
    before: datetime | None = None
    for step in runbooks.of(operation).plan(operation.request):
        record = operation.steps.get(step.name)
        if record is None and not (step.waits and before and operation.state != "succeeded"):
            break
        began = before if step.waits and before else record.started if record else None
        if began is None:
            break
        ended = record.finished if record else None
        found[step.name] = (began, ended)
        before = ended
        if ended is None:
            break
    return found


def facts(reported: dict[str, Any]) -> str:
    """The short ones among a step's facts, as text; ``why`` and ``reason`` are sentences, and said as they are."""
    sentences = ("why", "reason")
    short = [
        ("" if key in sentences else f"{key.replace('_', ' ')} ") + (f"{value:,}" if isinstance(value, int) else value)
        for key, value in reported.items()
        if isinstance(value, str | int) and not isinstance(value, bool)
        if 0 < len(str(value)) <= (LONGEST_SENTENCE if key in sentences else LONGEST_FACT)
    ]
    return ", ".join(short[:4])


class Runbooks:
    """The runbooks of one installation.

    Args:
        airflow: where they run.
        store: where operations are recorded.
    """

    def __init__(self, airflow: Airflow, store: ObjectStore) -> None:
        self.airflow = airflow
        self.store = store

    def wait_ready(self, runbooks: tuple[str, ...], deadline_s: float = 120.0) -> None:
        """Wait until Airflow knows these runbooks, which takes some seconds after its start.

        Raises:
            UnreachableError: not in time; names those that are missing.
        """
        missing = waiting.until(
            lambda: [name for name in runbooks if not self.airflow.ready(name)], deadline_s, POLL_S, done=not_
        )
        if missing:
            raise UnreachableError(
                f"Airflow does not offer {', '.join(missing)} after {deadline_s:g} s: paused, or with import errors."
            )

    def run(self, asked: Request, show: Show, told: Callable[[Run], None] = lambda run: None) -> Operation:
        """Trigger a runbook, follow it to its end, and return its operation.

        Args:
            show: is given the steps whenever they may have changed.
            told: is given the run once Airflow has accepted it.

        Raises:
            RefusedError: Airflow did not accept the request, or has paused the runbook.
            LockedError: another operation holds the job; nothing was done.
            StreamOpsError: the runbook failed; the message is that of the failed step.
        """
        own = {"runbook", "job"} if isinstance(asked, ClusterRequest) else {"runbook"}
        conf = asked.model_dump(mode="json", exclude=own, exclude_unset=True)
        run = self._triggered(asked.runbook, conf)
        told(run)
        operation = self._watch(asked, run, show)
        run = self.airflow.run(run.dag_id, run.run_id)
        if operation is not None and operation.state == "succeeded" and run.state == "success":
            return operation
        raise self._failure(run, operation)

    def handed_on(self, dag_id: str, task: str, conf: Mapping[str, Any]) -> Any:
        """Trigger a DAG that has a task for each job, for one job; what that task handed on at its end.

        Raises:
            RefusedError: Airflow did not accept the values, or has paused the DAG.
            StreamOpsError: the task failed; the message is its own.
        """
        run = self._triggered(dag_id, conf)
        heard = time.monotonic()
        while not run.finished:
            time.sleep(POLL_S)
            try:
                run = self.airflow.run(run.dag_id, run.run_id)
                heard = time.monotonic()
            except UnreachableError:
                if time.monotonic() - heard > PATIENCE_S:
                    raise
        if run.state == "success":
            return self.airflow.xcom(run.dag_id, run.run_id, task, map_index=0)
        raise self._failure(run, None)

    def _triggered(self, dag_id: str, conf: Mapping[str, Any]) -> Run:
        self.airflow.require_unpaused(dag_id)
        where = {"streamops_conn_id": self.airflow.installation} if self.airflow.installation else {}
        note = f"from the command line of {current_user()} on {this_host()}"
        return self.airflow.trigger(dag_id, {**conf, **where}, note)

    def operation_of(self, run: Run, job: str, known: set[str] | None = None) -> Operation | None:
        """The operation that a run began; keys in ``known`` are of other runs and are not read again."""
        known = set() if known is None else known
        for info in self.store.list(keys.operations(job)):
            if info.key in known:
                continue
            found = documents.find(self.store, info.key, Operation)
            if found and found.owner.run_id == run.run_id and found.owner.dag_id == run.dag_id:
                return found
            known.add(info.key)
        return None

    def _watch(self, asked: Request, run: Run, show: Show) -> Operation | None:
        known: set[str] = set()
        operation: Operation | None = None
        heard = time.monotonic()
        while True:
            try:
                # Before the operation is read, so that its last change is seen.
                finished = self.airflow.run(run.dag_id, run.run_id).finished
                if operation is None:
                    operation = self.operation_of(run, asked.job, known)
                else:
                    newer = documents.find(self.store, keys.operation(asked.job, operation.id), Operation)
                    operation = newer or operation
                heard = time.monotonic()
            except UnreachableError:
                if time.monotonic() - heard > PATIENCE_S:
                    raise
                finished = False
            show(view(asked, operation, records.now()))
            if finished:
                return operation
            time.sleep(POLL_S)

    def _failure(self, run: Run, operation: Operation | None) -> StreamOpsError:
        tasks = self.airflow.tasks(run.dag_id, run.run_id)
        where = f"See {self.airflow.page(run)}"
        for task in tasks:
            if task.task_id == "check" and task.state == "skipped":
                why = self.airflow.xcom(run.dag_id, run.run_id, task.task_id, HELD)
                return LockedError(f"Nothing was done. {why or 'Another operation is at work.'}")
        for task in tasks:
            if task.state == "failed" and task.task_id != "outcome":
                why = self.airflow.error(run.dag_id, run.run_id, task.task_id, task.tries, task.map_index)
                after = _afterwards(operation)
                return StreamOpsError(f"{_sentence(why or f'Task {task.task_id} failed')}{after} {where}.")
        if operation is None:
            return NotFoundError(f"The run ended {run.state} without an operation. {where}.")
        return StreamOpsError(f"{_sentence(operation.reason or f'The operation ended {operation.state}')} {where}.")


def _sentence(text: str) -> str:
    return f"{text.strip().rstrip('.')}."


def _afterwards(operation: Operation | None) -> str:
    if operation is None:
        return ""
    restored = [name for name, record in operation.undo.items() if record.finished]
    if operation.state == "undone" and restored and operation.before and operation.before.version:
        return f" It was undone: {operation.job} {operation.before.version} is as before."
    return ""
