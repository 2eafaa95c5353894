"""``snapshots``: the catalogue of named snapshots."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from streamops import snapshots as catalogue
from streamops.cli import console, here, verbs
from streamops.cli.here import Owners
from streamops.clients.airflow import Airflow
from streamops.model.definitions import Keep
from streamops.model.errors import LockedError, RefusedError, StreamOpsError, UnreachableError
from streamops.model.names import checked
from streamops.model.owner import Owner, current_user
from streamops.model.records import now
from streamops.operations import housekeeping
from streamops.operations.facts import Checked, Managed
from streamops.operations.follow import Runbooks
from streamops.operations.housekeeping import Pruned
from streamops.operations.operation import Operation
from streamops.settings import Settings
from streamops.snapshots import difference, marks, portable, verification
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.upkeep.restore_tests import RestoreTests

app = console.noun("List, show, verify, keep and remove snapshots.")

Address = Annotated[str, typer.Argument(metavar="JOB/NAME", help="A snapshot.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job.")]


def address(text: str) -> tuple[str, str]:
    """JOB/NAME, checked. Raises RefusedError, NameRefusedError."""
    job, slash, name = text.partition("/")
    if not slash:
        raise RefusedError(f"{text!r} is not of the form JOB/NAME.")
    return console.job(job), checked("snapshot", name)


def owner() -> Owner:
    """This command, as the owner of a lock."""
    return Owner(kind="cli", run_id=uuid.uuid4().hex[:12], user=current_user())


@app.command("list")
def list_(job: console.OnlyJob = None, json: console.Json = False) -> None:
    """List snapshots, newest last."""
    store = console.store()
    found = catalogue.entries(store, job)
    if json:
        console.show_json([_row(store, row) for row in found])
        return
    columns = ("TIME", "SIZE (bytes)", "JOB NAME", "SNAPSHOT NAME", "VERIFIED", "NOTE")
    rows = console.table(*columns, right=("SIZE (bytes)",))
    for row in found:
        if row.manifest is None:
            rows.add_row(console.when(row.written), "-", row.job, row.name, "-", f"refused: {row.refused}")
            continue
        checks, pin = _checks(store, row), marks.pinned(store, row.job, row.name)
        last, problem = checks.last(), checks.problem()
        verified = f"{console.when(last.when)[:16]} {last.how}" if last else "-"
        note = f"damaged: {problem}" if problem else f"pinned: {pin.reason}" if pin else ""
        rows.add_row(console.when(row.manifest.created), f"{row.manifest.size:,}", row.job, row.name, verified, note)
    console.out.print(rows)


@app.command("show")
def show(snapshot: Address, json: console.Json = False) -> None:
    """Show what a snapshot holds, who took it, and when it was verified."""
    store = console.store()
    job, name = address(snapshot)
    manifest = catalogue.load(store, job, name)
    checks, pin = marks.checks(store, job, name, manifest.attempt), marks.pinned(store, job, name)
    own = manifest.copied()
    if json:
        details = manifest.model_dump(mode="json", exclude={"objects"})
        details |= {"size": manifest.size, "objects": len(manifest.objects), "pin": pin, "checks": checks.checks}
        console.show_json(details | {"copied_objects": len(own), "copied_size": sum(item.size for item in own)})
        return
    how = "while the job ran" if manifest.live else "after the job was stopped"
    console.out.print(f"[bold]{job}/{name}[/]: version {manifest.version}, deployment {manifest.deployment}")
    console.say(f"taken:     {console.when(manifest.created)}, {how}, by {manifest.requested_by or 'unknown'}")
    console.say(f"run:       {manifest.dag_run or '-'}, operation {manifest.operation or '-'}")
    size = f"{manifest.size:,} bytes in {len(manifest.objects)} objects"
    console.say(f"size:      {size}, of which {sum(item.size for item in own):,} in {len(own)} are its own")
    console.say(f"signature: {store.keyring.key_of(manifest.signature)}")
    console.say(f"pinned:    {f'{pin.reason} (by {pin.by})' if pin else 'no'}")
    for check in sorted(checks.checks.values(), key=lambda item: item.when):
        found = check.problem or check.details or "good"
        console.say(f"verified:  {console.when(check.when)} {check.how}: {found} ({check.seconds:.1f} s)")
    if not checks.checks:
        console.say(f"verified:  never; 'streamops snapshots verify {job}/{name}' does it")
    rows = console.table("STAGE", "BATCH", "OBJECTS", "SIZE (bytes)", "NEXT OFFSETS", right=("BATCH", "SIZE (bytes)"))
    for stage, described in manifest.stages.items():
        items = [item for item in manifest.objects if item.stage == stage]
        offsets = ", ".join(f"{source} {_offsets(places)}" for source, places in described.offsets.items())
        rows.add_row(stage, str(described.batch), str(len(items)), f"{sum(i.size for i in items):,}", offsets or "-")
    console.out.print(rows)


@app.command("pin")
def pin(
    snapshot: Address,
    reason: Annotated[str, typer.Option("--reason", help="Why it must be kept.")] = "kept by hand",
    dry_run: verbs.DRY_RUN = False,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Keep a snapshot, whatever the retention rule says."""
    how = {"dry_run": dry_run, "without_airflow": without_airflow, "json": json}
    _manage("pin", snapshot, lambda done, what: f"{what} is pinned: {reason}.", reason=reason, **how)


@app.command("unpin")
def unpin(
    snapshot: Address, dry_run: verbs.DRY_RUN = False, without_airflow: verbs.HERE = False, json: console.Json = False
) -> None:
    """Let the retention rule decide on a snapshot again."""

    def told(done: Operation, what: str) -> str:
        return f"{what} is {'not' if done.reported('check', Checked).unchanged else 'no longer'} pinned."

    _manage("unpin", snapshot, told, dry_run=dry_run, without_airflow=without_airflow, json=json)


@app.command("remove")
def remove(
    snapshot: Address,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the list of removed ones.")] = "by hand",
    dry_run: verbs.DRY_RUN = False,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Remove a snapshot; 'undelete' brings it back for 14 days."""
    undo = f"'streamops snapshots undelete {snapshot}' undoes it"
    how = {"dry_run": dry_run, "without_airflow": without_airflow, "json": json}
    _manage("remove", snapshot, lambda done, what: f"{what} is removed; for 14 days {undo}.", reason=reason, **how)


@app.command("undelete")
def undelete(
    snapshot: Address, dry_run: verbs.DRY_RUN = False, without_airflow: verbs.HERE = False, json: console.Json = False
) -> None:
    """Bring a removed snapshot back."""

    def told(done: Operation, what: str) -> str:
        found = done.reported("change", Managed)
        return f"{what} is back: {found.bytes:,} bytes in {found.objects} objects."

    _manage("undelete", snapshot, told, dry_run=dry_run, without_airflow=without_airflow, json=json)


def _manage(action: str, snapshot: str, told: Callable[[Operation, str], str], **more: Any) -> None:
    """Have the runbook do one thing; ``told`` makes the last line, from what was done and what to call the snapshot."""
    job, name = address(snapshot)
    what = f"Snapshot {job}/{name}"
    verbs.carry_out("manage_snapshot", lambda done: told(done, what), action=action, job=job, snapshot=name, **more)


@app.command("removed")
def removed(job: Job, json: console.Json = False) -> None:
    """List removed snapshots that can be brought back."""
    found = catalogue.removed(console.store(), job)
    if json:
        console.show_json(
            [{"snapshot": i.name, "removed": i.when, "until": i.until(), "record": i.record} for i in found]
        )
        return
    rows = console.table("REMOVED", "UNTIL", "SNAPSHOT NAME", "BY", "REASON")
    for item in found:
        by, reason = (item.record.by, item.record.reason) if item.record else ("?", "cannot be read")
        rows.add_row(console.when(item.when), console.when(item.until()), item.name, by, reason)
    console.out.print(rows)


@app.command("prune")
def prune(
    job: Job,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only say what would be done.")] = False,
    last: Annotated[int | None, typer.Option(min=1, help="Keep this many; replaces the definition's rule.")] = None,
    hourly: Annotated[int, typer.Option(min=0, help="Keep the newest of each hour, for this many hours.")] = 0,
    daily: Annotated[int, typer.Option(min=0, help="Keep the newest of each day, for this many days.")] = 0,
    weekly: Annotated[int, typer.Option(min=0, help="Keep the newest of each week, for this many weeks.")] = 0,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Say which snapshots are kept or removed, and why; with --apply, the runbook apply_retention does it."""
    settings, store, keep = console.settings(), console.store(), None
    if last or hourly or daily or weekly:
        keep = Keep(last=last or 1, hourly=hourly, daily=daily, weekly=weekly)
    if not apply:
        done = housekeeping.plan(store, job, keep, now())
    elif without_airflow:
        operation = verbs.run(json, "apply_retention", without_airflow=True, job=job, keep=keep)
        done = Pruned.of(job, operation.facts("remove"))
    else:
        asked = {"job": job, "apply": True, "keep": keep.model_dump(mode="json") if keep else None}
        with Airflow(settings) as airflow:
            found = Runbooks(airflow, store).handed_on("apply_retention", "apply_retention", asked)
        if "held" in found:
            raise LockedError(f"Nothing was done. {found['held']}")
        done = Pruned.of(job, found)
    if json:
        console.show_json(done)
        return
    rows = console.table("TIME", "SNAPSHOT NAME", "", "WHY")
    for verdict in done.verdicts:
        what = "keep" if verdict.keep else "removed" if apply else "would be removed"
        rows.add_row(console.when(verdict.created), verdict.name, what, verdict.why)
    console.out.print(rows)
    swept = done.swept
    if swept.stopped_by:
        console.say(f"Nothing is freed: {swept.stopped_by}")
    else:
        console.say(
            f"{swept.size:,} bytes {'freed' if apply else 'would be freed'} of what went 14 days ago or before."
        )
    if not apply and any(not verdict.keep for verdict in done.verdicts):
        console.say("This was a dry run; --apply does it.")


@app.command("verify")
def verify(
    what: Annotated[str, typer.Argument(metavar="JOB[/NAME]", help="A snapshot, or all snapshots of a job.")],
    state: Annotated[bool, typer.Option("--state", help="Also let local Spark read the state itself.")] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="Also restore it into a scratch job, let that run, and recount it.")
    ] = False,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Read every object back and compare it with the signed manifest. Exit code 1 if anything is wrong.

    With --restore, the runbook verify_snapshots does it.
    """
    settings = console.settings()
    store = ObjectStore(settings)
    if "/" in what:
        names = [address(what)]
    else:
        names = [(entry.job, entry.name) for entry in catalogue.entries(store, console.job(what))]
    say = (lambda line: None) if json else console.say
    tests = None
    if restore and without_airflow:
        tests = RestoreTests(settings, here.engine(settings, store, Owners(settings), say), owner(), say)
    found: dict[str, object] = {}
    wrong = []
    for job, name in names:
        try:
            if restore and not without_airflow:
                check = found[f"{job}/{name}"] = _restored(settings, store, job, name, state=state)
                say(f"{job}/{name}: restored and continued in {check.seconds:.0f} s, {check.details}")
                continue
            check = verification.verify(store, job, name, say)
            if state:
                check = verification.verify_state(store, job, name, say)
            if tests:
                check = tests.run(job, name)
            found[f"{job}/{name}"] = check
        except StreamOpsError as error:  # the next one may be all right
            if isinstance(error, UnreachableError):
                raise
            found[f"{job}/{name}"] = str(error)
            wrong.append(str(error))
    if json:
        console.show_json(found)
    for text in wrong:
        console.err.print(f"[bold red]error:[/] {escape(text)}")
    if wrong:
        raise typer.Exit(1)


def _restored(settings: Settings, store: ObjectStore, job: str, name: str, *, state: bool) -> marks.Check:
    """Have the runbook restore a snapshot; what that found."""
    asked = {"job": job, "snapshot": name, "state": state, "restore": True}
    with Airflow(settings) as airflow:
        Runbooks(airflow, store).handed_on("verify_snapshots", "test_restore", asked)
    return marks.checks(store, job, name, catalogue.load(store, job, name).attempt).checks["restored"]


@app.command("diff")
def diff(first: Address, second: Address, json: console.Json = False) -> None:
    """Compare two snapshots: batches, offsets, state and sizes of each stage."""
    store = console.store()
    one, two = catalogue.load(store, *address(first)), catalogue.load(store, *address(second))
    found = difference.diff(one, two)
    if json:
        console.show_json(found)
        return
    number = ("BATCHES", "EVENTS", "STATE (bytes)", "CHANGE", "SHARED (bytes)")
    rows = console.table("STAGE", *number, "NOTE", right=number)
    for item in found:
        a, b = item.first, item.second
        if a is None or b is None:
            rows.add_row(item.stage, "-", "-", "-", "-", "-", f"only in {first if b is None else second}")
            continue
        note = "" if item.same_query else "another query: the stage started with empty state in between"
        change = b.state_size - a.state_size
        events = sum(item.events.values())
        rows.add_row(
            item.stage, f"{a.batch} > {b.batch}", f"{events:+,}", f"{b.state_size:,}", f"{change:+,}",
            f"{item.shared_size:,}", note,
        )  # fmt: skip
    console.out.print(rows)
    if (one.version, one.deployment) != (two.version, two.deployment):
        console.say(f"{one.version} (deployment {one.deployment}) and {two.version} (deployment {two.deployment})")


@app.command("export")
def export(snapshot: Address, file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]) -> None:
    """Pack a snapshot and its published version into one file."""
    job, name = address(snapshot)
    with _Bar(f"{job}/{name}") as bar:
        manifest = portable.export(console.store(), job, name, file, bar.show)
    console.say(f"{job}/{name} is in {file}: {len(manifest.objects)} objects, {file.stat().st_size:,} bytes.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that 'export' wrote.")],
    trust: Annotated[bool, typer.Option("--trust", help="Accept it although another installation signed it.")] = False,
    without_airflow: verbs.HERE = False,
    json: console.Json = False,
) -> None:
    """Import a snapshot from a file into this installation. Run it again if it was interrupted: it continues."""
    with _Bar(str(file)) as bar:
        staged = portable.stage(console.store(), file, bar.show)

    def told(done: Operation, what: str) -> str:
        found = done.reported("change", Managed)
        there = f", {found.skipped} were there already" if found.skipped else ""
        published = f"; version {found.version} is published now" if found.published else ""
        return f"{what} is here: {found.objects} objects brought{there}{published}."

    how = {"dry_run": False, "without_airflow": without_airflow, "json": json}
    _manage("import", f"{staged.job}/{staged.name}", told, archive=staged.sha256, trust=trust or None, **how)


@app.command("schedule")
def schedule(json: console.Json = False) -> None:
    """Show each job's schedule, and how its last scheduled snapshot went."""
    from streamops.model.schedules import due
    from streamops.upkeep import scheduled

    store, moment = console.store(), now()
    found: list[dict[str, Any]] = []
    for job in jobs.names(store):
        plan, since = scheduled.plan_of(store, job)
        last = scheduled.last_of(store, job)
        if plan is None and last is None:
            continue
        waiting = due(plan, last.slot if last and last.state != "began" else None, since, moment) if since else None
        found.append({"job": job, "every": plan and (plan.every or plan.cron), "last": last, "due": waiting})
    if json:
        console.show_json(found)
        return
    rows = console.table("JOB NAME", "SCHEDULE", "LAST", "STATE", "LATE", "NOTE", right=("LATE",))
    for item in found:
        last, waiting = item["last"], item["due"]
        state, late = (last.state, console.duration(last.late_s)) if last else ("-", "-")
        note = (
            last.reason if last and last.reason else f"{last.missed} missed before it" if last and last.missed else ""
        )
        if waiting:
            note = f"due since {console.when(waiting.slot)}{f'; {note}' if note else ''}"
        rows.add_row(item["job"], item["every"] or "none", console.when(last.slot if last else None), state, late, note)
    console.out.print(rows)


class _Bar:
    """Progress in bytes, on a terminal only."""

    def __init__(self, title: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=console.err, transient=True)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> _Bar:
        if console.err.is_terminal:
            self._progress.start()
        return self

    def show(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _offsets(partitions: dict[str, int]) -> str:
    return " ".join(f"{partition}:{offset}" for partition, offset in partitions.items())


def _checks(store: ObjectStore, entry: catalogue.Entry) -> marks.Checks:
    return marks.checks(store, entry.job, entry.name, entry.manifest.attempt) if entry.manifest else marks.Checks()


def _row(store: ObjectStore, entry: catalogue.Entry) -> dict[str, object]:
    manifest = entry.manifest
    if manifest is None:
        return {"time": entry.written, "job": entry.job, "snapshot": entry.name, "refused": entry.refused}
    return {
        "time": manifest.created,
        "size": manifest.size,
        "job": manifest.job,
        "snapshot": manifest.name,
        "version": manifest.version,
        "deployment": manifest.deployment,
        "live": manifest.live,
        "operation": manifest.operation,
        "objects": len(manifest.objects),
        "stages": {name: stage.batch for name, stage in manifest.stages.items()},
        "verified": _checks(store, entry).checks,
        "pin": marks.pinned(store, entry.job, entry.name),
    }
