"""The verbs that run a runbook: each triggers its DAG, shows the steps, and ends with one line."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import typer
import yaml

from streamops.cli import console, here, operations
from streamops.cli.progress import Progress
from streamops.clients.airflow import Airflow
from streamops.model.errors import RefusedError
from streamops.model.owner import Owner
from streamops.operations import runbooks
from streamops.operations.facts import Checked
from streamops.operations.follow import Runbooks, request
from streamops.operations.operation import Operation, Request
from streamops.store.object_store import ObjectStore

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job.")]
AcceptLoss = Annotated[
    list[str] | None,
    typer.Option("--accept-loss", metavar="STAGE", help="The state of this stage may be lost; repeatable."),
]
Standby = Annotated[
    bool, typer.Option(help="Warm the new driver up before the present one stops, for the shortest gap.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it costs; touch nothing.")]
Here = Annotated[
    bool, typer.Option("--without-airflow", help="Do it in this process, for when Airflow itself is down.")
]
Address = Annotated[
    list[str] | None,
    typer.Option(metavar="SOURCE=PLACE", help="The directory or URL of a source that is not a topic; repeatable."),
]
LogLevels = Annotated[
    list[str] | None, typer.Option(metavar="LOGGER=LEVEL", help="A logger's least level, like source.beta=DEBUG.")
]
Library = Annotated[
    str | None, typer.Option(metavar="LIBRARY/VERSION", help="The version of the shared library that it uses.")
]
Timeout = Annotated[int | None, typer.Option("--timeout", metavar="S", help="Seconds until it must be healthy.")]


def deploy(
    job: Job,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A published version.")],
    from_snapshot: Annotated[
        str | None,
        typer.Option("--from", metavar="SNAP", help="Start from this snapshot (NAME, or JOB/NAME with --fork)."),
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start with empty state although there is state to start from.")
    ] = False,
    fork: Annotated[bool, typer.Option("--fork", help="The snapshot is another job's, and that is meant.")] = False,
    param: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A param's value; repeatable.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE=TOPIC", help="A source's topic; repeatable.")
    ] = None,
    address: Address = None,
    library: Library = None,
    log_level: LogLevels = None,
    accept_loss: AcceptLoss = None,
    timeout: Timeout = None,
    without_airflow: Here = False,
    json: console.Json = False,
) -> None:
    """Start a published version of a job."""
    params = {key: yaml.safe_load(value) for key, value in _pairs("--param", param).items()}
    done = run(
        json,
        "deploy_job",
        without_airflow=without_airflow,
        job=job,
        version=version,
        from_snapshot=from_snapshot,
        from_scratch=from_scratch or None,
        fork=fork or None,
        accept_loss=accept_loss or None,
        library=library,
        params=params or None,
        topics=_pairs("--topic", topic) or None,
        addresses=_pairs("--address", address) or None,
        logging=_pairs("--log-level", log_level) or None,
        healthy_timeout_s=timeout,
    )
    say(json, done, f"{job} {version} is running.")


def upgrade(
    job: Job,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The published version to run afterwards.")],
    snapshot: Annotated[str, typer.Option(metavar="NAME", help="A new name for the state at the switch.")],
    standby: Standby = True,
    probation: Annotated[
        int | None,
        typer.Option(metavar="S", help="Seconds that it is watched; then the old version comes back, or not. 0: none."),
    ] = None,
    address: Address = None,
    library: Library = None,
    log_level: LogLevels = None,
    accept_loss: AcceptLoss = None,
    timeout: Timeout = None,
    without_airflow: Here = False,
    json: console.Json = False,
) -> None:
    """Replace a running job's version, with its state."""
    done = run(
        json,
        "upgrade_job",
        without_airflow=without_airflow,
        job=job,
        version=version,
        snapshot=snapshot,
        standby=None if standby else False,
        probation_s=probation,
        addresses=_pairs("--address", address) or None,
        logging=_pairs("--log-level", log_level) or None,
        accept_loss=accept_loss or None,
        library=library,
        healthy_timeout_s=timeout,
    )
    say(json, done, f"{job} {version} is running from snapshot {snapshot}.")


def rollback(
    job: Job,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="SNAPSHOT", help="This snapshot, instead of the one taken at the last upgrade."),
    ] = None,
    dry_run: DryRun = False,
    standby: Standby = True,
    timeout: Timeout = None,
    without_airflow: Here = False,
    json: console.Json = False,
) -> None:
    """Bring the version before the present one back."""
    _go_back("rollback_job", job, to, dry_run, standby, timeout, without_airflow, json)


def restore(
    job: Job,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A snapshot of the version that the job has.")],
    dry_run: DryRun = False,
    standby: Standby = True,
    timeout: Timeout = None,
    without_airflow: Here = False,
    json: console.Json = False,
) -> None:
    """Continue the same version from an earlier snapshot."""
    _go_back("restore_job", job, snapshot, dry_run, standby, timeout, without_airflow, json)


def _go_back(
    runbook: str,
    job: str,
    snapshot: str | None,
    dry_run: bool,
    standby: bool,
    timeout: int | None,
    without_airflow: bool,
    json: bool,
) -> None:
    values = {"snapshot": snapshot, "standby": None if standby else False, "healthy_timeout_s": timeout}
    if dry_run:
        preview(json, request(runbook, job=job, **values))
        return
    done = run(json, runbook, without_airflow=without_airflow, job=job, **values)
    told = done.reported("check", Checked)
    say(json, done, f"{job} {told.after} is running from snapshot {told.snapshot}.")


def start(job: Job, timeout: Timeout = None, without_airflow: Here = False, json: console.Json = False) -> None:
    """Start a stopped job again, from its own checkpoint."""
    done = run(json, "start_job", without_airflow=without_airflow, job=job, healthy_timeout_s=timeout)
    say(json, done, f"{job} is running.")


def cancel(job: Job, without_airflow: Here = False, json: console.Json = False) -> None:
    """Stop a running job; 'start' continues it."""
    done = run(json, "cancel_job", without_airflow=without_airflow, job=job)
    say(json, done, f"{job} is stopped.")


def snapshot(
    job: Job,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A new name; names are never reused.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the job first; it stays stopped.")] = False,
    without_airflow: Here = False,
    json: console.Json = False,
) -> None:
    """Keep the state of a job under a name."""
    done = run(json, "snapshot_job", without_airflow=without_airflow, job=job, snapshot=name, cancel=cancel or None)
    say(json, done, f"Snapshot {name} of {job} is kept{', and the job is stopped' if cancel else ''}.")


def run(json: bool, runbook: str, *, without_airflow: bool = False, **values: Any) -> Operation:
    """Trigger a runbook and follow it to its end, or carry it out in this process."""
    asked = request(runbook, **values)  # refused before anything is asked of a server
    settings = console.settings()
    if without_airflow:
        return here.run(settings, asked, (lambda line: console.err.print(line, markup=False)) if json else console.say)
    with Airflow(settings) as airflow, Progress(console.err if json else console.out) as progress:
        return Runbooks(airflow, ObjectStore(settings)).run(
            asked, progress.show, lambda run: progress.say(f"{runbook}: {airflow.page(run)}")
        )


def preview(json: bool, asked: Request) -> None:
    """Check a request without acting: what its first step says, and the plan that the real run carries out."""
    from streamops.operations.engine import Engine
    from streamops.wiring import local_ports

    settings, said = console.settings(), list[str]()
    ports = local_ports(settings, operations.Owners(settings))
    facts = Engine(ports, said.append).preview(asked, Owner(kind="cli", user=getpass.getuser()))
    steps = [{"step": step.name, "task": step.task, "title": step.title} for step in runbooks.of(asked).steps]
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


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise RefusedError(f"{option} {text!r} is not of the form NAME=VALUE.")
        pairs[key] = value
    return pairs
