"""``recount``: prove a job's results from the ledger."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from streamops.cli import console
from streamops.clients.kafka import Ledger
from streamops.model import records
from streamops.model.errors import RefusedError
from streamops.model.records import Offsets
from streamops.recount.recounting import recount_job
from streamops.recount.report import WORDS, Report, labels
from streamops.settings import Settings
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def recount(
    job: Annotated[str, typer.Argument(help="The job whose results are recomputed from the topic.")],
    since: Annotated[
        str | None,
        typer.Option(
            help="Only windows that began after this: 10m (or s, h, d) ago, or a time like 2026-01-31T12:00Z."
        ),
    ] = None,
    json: console.Json = False,
) -> None:
    """Recompute the results from the topic and compare them.

    Exit code 1 if a point is missing, wrong or unexpected, if a stage could not be recounted, or if nothing in a stage
    was compared.
    """
    settings = console.settings()
    store = ObjectStore(settings)
    offsets = since_offsets(settings, store, job, moment(since, records.now())) if since else None
    report = recount_job(settings, store, job, since=offsets)
    if json:
        console.show_json(report)
    else:
        show(report)
    if not report.clean:
        raise typer.Exit(1)


def show(report: Report) -> None:
    """Print a recount as a table with its verdict."""
    rows = console.table(
        "MEASUREMENT", "EXPECTED", "MISSING", "WRONG", "UNEXPECTED", "PARTIAL", "LATE", "FIRST WINDOW", "LAST WINDOW",
        right=("EXPECTED", "MISSING", "WRONG", "UNEXPECTED", "PARTIAL", "LATE"),
    )  # fmt: skip
    for name, item in zip(labels(report.measurements), report.measurements, strict=True):
        numbers = (item.expected, item.missing, item.wrong, item.unexpected, item.partial, item.late)
        rows.add_row(
            name,
            *(f"{value:,}" for value in numbers),
            console.when(item.first_window),
            console.when(item.last_window),
        )
    console.out.print(rows)
    told = [f"{item.measurement}: {note}" for item in report.measurements for note in item.notes]
    examples = [line for item in report.measurements for line in item.examples]
    for line in (*examples, *dict.fromkeys(told)):
        console.say(f"  {line}")
    for item in report.measurements:
        if item.nothing:
            console.say(f"  nothing of {item.stage} was compared: {WORDS[item.nothing]}")
    for stage, why in report.left_out.items():
        console.say(f"  {stage} was left out: {why}")
    for stage, why in report.damaged.items():
        console.say(f"  {stage} could not be recounted: {why}")
    rejected = f", {report.malformed:,} malformed and {report.ahead:,} from the future rejected"
    console.say(
        f"{report.events:,} events of {report.job} {report.version} (deployment {report.deployment}) "
        f"in {console.duration(report.seconds)}{rejected if report.malformed or report.ahead else ''}."
    )
    console.out.print(f"{label(report)}: {report.reason}")


def label(report: Report) -> str:
    """The verdict in a word or two. That nothing could be compared yet is no fault that was found."""
    if report.clean:
        return "[bold green]clean[/]"
    if report.wrong:
        return "[bold red]NOT CLEAN[/]"
    return "[bold yellow]no verdict yet[/]"


def moment(text: str, now: datetime) -> datetime:
    """The instant that ``--since`` names. Raises RefusedError."""
    if match := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not a time; write 10m, 2h, or a time like 2026-01-31T12:00Z.") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def since_offsets(settings: Settings, store: ObjectStore, job: str, at: datetime) -> Offsets:
    """Where the topics of a job's sources stood at a time.

    Raises:
        NotFoundError: the job was never deployed.
    """
    deployment = jobs.current(store, job)
    definition = artifacts.load_manifest(store, job, deployment.version).definition
    with closing(Ledger(settings)) as ledger:
        return {
            name: ledger.offsets_at(topic, int(at.timestamp() * 1000))
            for name, topic in jobs.topics(definition, deployment.topics).items()
        }
