"""The verbs that run a runbook: each triggers its DAG, shows the steps, and ends with one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from streamops.cli import console, here, options
from streamops.cli.progress import Progress
from streamops.clients.airflow import Airflow
from streamops.model.errors import RefusedError
from streamops.model.owner import Owner, current_user
from streamops.operations import checks, rehearsals, runbooks
from streamops.operations.facts import Checked, Planned
from streamops.operations.follow import Runbooks, request
from streamops.operations.operation import Operation, Request
from streamops.operations.requests import NewVersion
from streamops.operations.runbooks.snapshot_job import SnapshotJob
from streamops.store.object_store import ObjectStore

DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it costs; touch nothing.")]
AS = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Run JOB's version under this name: another job of the same code."),
]
HERE = Annotated[
    bool, typer.Option("--without-airflow", help="Run it in this process, for when Airflow itself is down.")
]


def verb(
    runbook: str, told: Callable[[Operation], str], fixed: Mapping[str, Any] | None = None, **spelled: str
) -> Callable[..., None]:
    """The command of a job's runbook.

    Args:
        told: the last line.
        fixed: values that the command stands for, and does not ask.
        spelled: fields that it writes otherwise than other commands do.
    """
    versioned = issubclass(runbooks.find(runbook).request, NewVersion)
    asked = options.Options(runbook, spelled, without=("code_of", *(fixed or ())))

    def does(given: dict[str, Any]) -> None:
        values = {**asked.values(given), **(fixed or {})}
        if name := given.get("name"):
            values |= {"job": name, "code_of": values["job"]}
        how = {name: given[name] for name in ("json", "dry_run", "without_airflow")}
        carry_out(runbook, told, **how, **values)

    more = (options.switch("dry_run", DRY_RUN), options.switch("without_airflow", HERE))
    return asked.command(does, *((options.optional("name", AS),) if versioned else ()), *more)


def carry_out(
    runbook: str,
    told: Callable[[Operation], str],
    *,
    json: bool,
    dry_run: bool,
    without_airflow: bool,
    **values: Any,
) -> None:
    """Have a runbook carried out, or only say what it would do; ``told`` makes the last line of what was done."""
    if dry_run:
        preview(json, request(runbook, **values))
        return
    done = run(json, runbook, without_airflow=without_airflow, **values)
    say(json, done, told(done))


def _runs(operation: Operation) -> str:
    found = operation.reported("check", Checked)
    version = operation.request.version if isinstance(operation.request, NewVersion) else found.after
    origin = f" from snapshot {found.snapshot}" if found.snapshot else ""
    return f"{operation.job} {version} is running{origin}."


def _kept(operation: Operation) -> str:
    if operation.reported("check", Checked).unchanged:
        return _absent(operation)
    asked = operation.request
    stopped = ", and the job is stopped" if isinstance(asked, SnapshotJob) and asked.cancel else ""
    return f"Snapshot {operation.reported('check', Checked).snapshot} of {operation.job} is kept{stopped}."


def _rehearsed(operation: Operation) -> str:
    found = rehearsals.find(console.store(), [operation.job], operation.id)
    return (
        f"{operation.job} {found.new.version} was rehearsed beside {found.old.version}: {rehearsals.verdict(found)}. "
        f"'streamops rehearsals show {found.id}' shows all of it."
    )


def _stopped(operation: Operation) -> str:
    absent = operation.reported("check", Checked).state == checks.NOT_DEPLOYED
    return _absent(operation) if absent else f"{operation.job} is stopped."


def _absent(operation: Operation) -> str:
    return f"There is no deployed job {operation.job}; nothing was to be done."


deploy = verb("deploy_job", _runs)
rehearse = verb("rehearse_job", _rehearsed)
upgrade = verb("upgrade_job", _runs)
rollback = verb("rollback_job", _runs, snapshot="--to SNAPSHOT")
restore = verb("restore_job", _runs, snapshot="SNAPSHOT")
start = verb("start_job", lambda done: f"{done.job} is running.")
cancel = verb("cancel_job", _stopped)
snapshot = verb("snapshot_job", _kept, snapshot="NAME")
pause = verb(
    "pause_job",
    lambda done: f"{done.job} is paused: no one starts it again by itself. Next: streamops jobs resume {done.job}",
    {"action": "pause"},
)
log_level = verb(
    "set_log_levels", lambda done: f"{done.job} logs as asked, until it is restarted.", logging="LOGGER=LEVEL"
)
resume = verb("pause_job", lambda done: f"{done.job} is started again by itself if it ends.", {"action": "resume"})


schedule = verb(
    "schedule_job",
    lambda done: f"Snapshots of {done.job}: {done.reported('note', Planned).plan}.",
    keep="--keep NAME=COUNT",
)


def run(json: bool, runbook: str, *, without_airflow: bool = False, **values: Any) -> Operation:
    """Trigger a runbook and follow it to its end, or carry it out in this process."""
    asked = request(runbook, **values)  # refused before anything is asked of a server
    settings = console.settings()
    if without_airflow:
        if getattr(asked, "approval", False):
            raise RefusedError("Airflow asks the person, so approval does not go with --without-airflow.")
        return here.run(settings, asked, (lambda line: console.err.print(line, markup=False)) if json else console.say)
    with Airflow(settings) as airflow, Progress(console.err if json else console.out) as progress:
        return Runbooks(airflow, ObjectStore(settings)).run(
            asked, progress.show, lambda run: progress.say(f"{runbook}: {airflow.page(run)}")
        )


def preview(json: bool, asked: Request) -> None:
    """Check a request without acting: what its first step says, and the plan that the real run carries out."""
    from streamops.operations.engine import Engine
    from streamops.wiring import ports

    settings, said = console.settings(), list[str]()
    acting = ports(settings, here.Owners(settings), ObjectStore(settings))
    facts = Engine(acting, said.append).preview(asked, Owner(kind="cli", user=current_user()))
    steps = [{"step": step.name, "task": step.task, "title": step.title} for step in runbooks.of(asked).plan(asked)]
    if json:
        console.show_json({"request": asked, "plan": steps, "check": facts})
        return
    for line in said:
        console.say(line)
    console.say(f"\n{asked.runbook} would do:")
    for number, step in enumerate(steps, 1):
        console.say(f"{number:3}. {step['title']}")
    console.say("\nNothing was touched.")


def say(json: bool, operation: Operation, text: str) -> None:
    """The last line, or the operation for a script."""
    if json:
        console.show_json(operation)
        return
    seconds = (operation.updated - operation.created).total_seconds()
    console.say(f"{text} ({operation.id}, {console.duration(seconds)})")
