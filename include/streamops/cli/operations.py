"""``operations``: what was done, by whom, how far it came; and what to do with one that no one finishes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streamops.cli import console, verbs
from streamops.model.errors import NotFoundError
from streamops.model.names import CLUSTER, checked, label
from streamops.operations import runbooks
from streamops.operations.facts import Settled
from streamops.operations.follow import view
from streamops.operations.operation import Operation
from streamops.store import documents, keys
from streamops.store.jobs import names
from streamops.store.object_store import ObjectStore

app = console.noun("List, show, resume or abort operations.")
Id = Annotated[str, typer.Argument(metavar="ID", help="The operation, as 'streamops operations' lists it.")]


@app.command("list")
def list_(job: console.OnlyJob = None, json: console.Json = False) -> None:
    """List operations, newest last."""
    from streamops.operations.engine import list_operations

    store, jobs = console.store_and_jobs(job)
    found = sorted((item for name in jobs for item in list_operations(store, name)), key=lambda item: item.created)
    columns: dict[str, console.Cell[Operation]] = {
        "TIME": lambda item: console.when(item.created),
        "JOB": lambda item: label(item.job),
        "RUNBOOK": lambda item: item.request.runbook,
        "STATE": lambda item: item.state,
        "STEP": lambda item: runbooks.of(item).at(item) if item.state != "succeeded" else "-",
        "BY": lambda item: item.owner.user or "-",
        "ID": lambda item: item.id,
    }
    console.show_rows(found, columns, json)


@app.command("show")
def show(
    operation_id: Id,
    log: Annotated[bool, typer.Option("--log", help="Show its log, if a command carried it out.")] = False,
    json: console.Json = False,
) -> None:
    """Show an operation: owner, step, and what happened."""
    store = console.store()
    operation = find(store, operation_id)
    if log:
        if operation.owner.kind == "airflow":
            raise NotFoundError(f"{operation_id} is of {operation.owner.label()}; its log is on that run's page.")
        console.say(store.get(keys.told(operation.job, operation.id)).body.decode().rstrip())
        return
    if json:
        console.show_json(operation)
        return
    asked = operation.request.chosen
    console.out.print(f"[bold]{operation.id}[/]: {operation.request.runbook}, {operation.state}")
    console.say(f"asked for: {', '.join(f'{key}={value}' for key, value in asked.items())}")
    console.say(f"owner:     {operation.owner.label()}")
    console.say(f"since:     {console.when(operation.created)}, last change {console.when(operation.updated)}")
    if operation.state != "succeeded" and (at := runbooks.of(operation).at(operation)):
        console.say(f"step:      {at}")
    if operation.reason:
        console.say(f"reason:    {operation.reason}")
    rows = console.table("STEP", "STATE", "TOOK", "WHAT", right=("TOOK",))
    for step in view(operation.request, operation, operation.updated):
        took = console.duration(step.seconds) if step.seconds is not None else "-"
        rows.add_row(step.name, step.state, took, step.facts)
    console.out.print(rows)


@app.command("resume")
def resume(
    operation_id: Id, dry_run: verbs.DRY_RUN = False, without_airflow: verbs.HERE = False, json: console.Json = False
) -> None:
    """Finish an operation from its recorded step. Refused while its owner is alive."""
    settle(operation_id, "resume", json=json, dry_run=dry_run, without_airflow=without_airflow)


@app.command("abort")
def abort(
    operation_id: Id,
    leave_as_is: Annotated[
        bool, typer.Option("--leave-as-is", help="Close it and touch nothing: for one that cannot be undone.")
    ] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    dry_run: verbs.DRY_RUN = False,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Undo an operation and free its job. Refused while its owner is alive."""
    how = "leave" if leave_as_is else "abort"
    settle(operation_id, how, json=json, dry_run=dry_run, without_airflow=without_airflow, reason=reason)


def settle(operation_id: str, action: str, **more: Any) -> None:
    """Have an operation settled by the runbook."""
    job = find(console.store(), operation_id).job
    verbs.carry_out("settle_operation", _ended, job=job, operation=operation_id, action=action, **more)


def _ended(operation: Operation) -> str:
    found = operation.reported("settle", Settled)
    return f"{found.operation}: {found.state}{f' ({found.reason})' if found.reason else ''}"


def find(store: ObjectStore, operation_id: str) -> Operation:
    """An operation by its id, whatever its job. Raises NotFoundError."""
    checked("snapshot", operation_id)
    for job in [CLUSTER, *names(store)]:
        if found := documents.find(store, keys.operation(job, operation_id), Operation):
            return found
    raise NotFoundError(f"There is no operation {operation_id!r}; 'streamops operations' lists them.")
