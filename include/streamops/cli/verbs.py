"""The verbs that run a runbook: each triggers its DAG, shows the steps, and ends with one line."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from streamops.adapters.airflow import Airflow
from streamops.adapters.object_store import ObjectStore
from streamops.cli import console
from streamops.cli.progress import Progress
from streamops.errors import RefusedError
from streamops.follow import Runbooks, request
from streamops.operations import Operation

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job.")]
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
    timeout: Timeout = None,
    json: console.Json = False,
) -> None:
    """Start a published version of a job."""
    params = {key: yaml.safe_load(value) for key, value in _pairs("--param", param).items()}
    done = run(
        json,
        "deploy_job",
        job=job,
        version=version,
        from_snapshot=from_snapshot,
        from_scratch=from_scratch or None,
        fork=fork or None,
        params=params or None,
        topics=_pairs("--topic", topic) or None,
        healthy_timeout_s=timeout,
    )
    say(json, done, f"{job} {version} is running.")


def upgrade(
    job: Job,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The published version to run afterwards.")],
    snapshot: Annotated[str, typer.Option(metavar="NAME", help="A new name for the state at the switch.")],
    standby: Annotated[
        bool, typer.Option(help="Warm the new driver up before the old one stops, for the shortest gap.")
    ] = True,
    timeout: Timeout = None,
    json: console.Json = False,
) -> None:
    """Replace a running job's version, with its state."""
    done = run(
        json,
        "upgrade_job",
        job=job,
        version=version,
        snapshot=snapshot,
        standby=None if standby else False,
        healthy_timeout_s=timeout,
    )
    say(json, done, f"{job} {version} is running from snapshot {snapshot}.")


def start(job: Job, timeout: Timeout = None, json: console.Json = False) -> None:
    """Start a stopped job again, from its own checkpoint."""
    done = run(json, "start_job", job=job, healthy_timeout_s=timeout)
    say(json, done, f"{job} is running.")


def cancel(job: Job, json: console.Json = False) -> None:
    """Stop a running job; 'start' continues it."""
    done = run(json, "cancel_job", job=job)
    say(json, done, f"{job} is stopped.")


def snapshot(
    job: Job,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A new name; names are never reused.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the job first; it stays stopped.")] = False,
    json: console.Json = False,
) -> None:
    """Keep the state of a job under a name."""
    done = run(json, "snapshot_job", job=job, snapshot=name, cancel=cancel or None)
    say(json, done, f"Snapshot {name} of {job} is kept{', and the job is stopped' if cancel else ''}.")


def run(json: bool, runbook: str, **values: Any) -> Operation:
    """Trigger a runbook and follow it to its end."""
    asked = request(runbook, **values)  # refused before anything is asked of a server
    settings = console.settings()
    with Airflow(settings) as airflow, Progress(console.err if json else console.out) as progress:
        return Runbooks(airflow, ObjectStore(settings)).run(
            asked, progress.show, lambda run: progress.say(f"{runbook}: {airflow.page(run)}")
        )


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
