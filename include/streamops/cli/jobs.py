"""``jobs``: what runs, what limits it, and the likely next step."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated

import typer
from rich.markup import escape
from rich.tree import Tree

from streamops.cli import console, verbs
from streamops.cli.advice import SILENT_S, Advice, Look, advise
from streamops.cli.cluster import placed
from streamops.clients.kafka import Ledger
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import Shares, shares
from streamops.model import records
from streamops.model.definitions import Definition
from streamops.model.errors import DamagedError, NotFoundError, RefusedError, StreamOpsError
from streamops.model.records import FINAL, LIVE, Deployment, DriverStatus, JobRecord, Lease, Offsets, State
from streamops.settings import Settings
from streamops.store import documents, keys
from streamops.store import jobs as job_state
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, fingerprints
from streamops.versions import graph as execution

app = console.noun("List, show, pause or resume jobs.")

LOOK_S = 3.0  # between two looks: two or three batches


@app.command("list")
def list_(json: console.Json = False) -> None:
    """List all jobs with state, id, and when they were submitted and ended."""
    store = console.store()
    found: list[dict[str, object]] = []
    damaged: list[str] = []
    for job in job_state.names(store):
        try:
            item = overview(store, job)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        if not is_gone(item):
            found.append(item)
    if json:
        console.show_json(found)
    else:
        _print_list(found)
    if damaged:
        console.fail(" ".join(damaged))


def _print_list(found: list[dict[str, object]]) -> None:
    shown = ("job", "version", "state", "id", "submitted", "completed", "deployment", "lag")
    rows = console.table(*(key.upper() for key in shown), right=("DEPLOYMENT", "LAG"))
    for item in found:
        rows.add_row(*(str(item[key]) for key in shown))
    console.out.print(rows)


@app.command("show")
def show(job: Annotated[str, typer.Argument(help="The job.")], json: console.Json = False) -> None:
    """Show a job: stages, rates, lag, what limits it, and the likely next step."""
    settings, store = console.settings(), console.store()
    record, deployment, lease, status = read_job(store, job)
    definition = artifacts.current(store, record)
    lives = status and status.state not in FINAL
    looks = two_looks(settings, store, record, deployment) if lives else []
    if not looks and status:
        looks = [Look(records.now(), status, {})]
    advice = (
        advise(looks[-1], looks[0] if len(looks) > 1 else None, should_run=record.desired == "running")
        if looks
        else None
    )
    members = members_now(settings, status, definition) if status and definition and lives else {}
    if json:
        told = {"record": record, "deployment": deployment, "lease": lease, "status": status, "advice": advice}
        console.show_json({**told, "members": members})
        return
    state = shown_state(record, status)
    console.out.print(f"[bold]{record.job}[/] {record.version or '-'}: {state}", highlight=False)
    if deployment:
        origin = f", from snapshot {deployment.from_snapshot}" if deployment.from_snapshot else ""
        console.say(f"deployment {deployment.number} since {console.when(deployment.created)}{origin}")
        console.say(f"id: {deployment.created_by}")
        if definition:
            used = definition.resources
            console.say(
                f"cores {used.cores}, executor memory {used.executor_memory}, driver memory {used.driver_memory}"
            )
    if record.paused:
        console.say(f"paused: no one starts it again by itself (streamops jobs resume {job})")
    if lease:
        console.say(f"lease: epoch {lease.epoch}, launch {lease.launch}, holder {lease.holder or 'none'}")
    if status and looks:
        status = looks[-1].status
        page = status.ui or "no page"
        console.say(f"driver on {status.host or '?'}, Spark application {status.app_id or '-'}, {page}")
        if members:
            console.say(f"on {len(members)} of the cluster's members: {placed(members)}")
        if advice:
            stages(status, advice)
    if advice is None:
        console.say(f"No driver has reported. Next: streamops start {job}" if record.deployment else "Never deployed.")
        return
    for reason in advice.reasons:
        console.say(f"- {reason}")
    console.out.print("[bold]Next:[/] ", end="")
    console.say(advice.next_step)


@app.command("graph")
def graph(job: Annotated[str, typer.Argument(help="The job.")], json: console.Json = False) -> None:
    """Draw what a job is made of: sources, stages with their operators, sinks, and where Spark shows its own graph."""
    settings, store = console.settings(), console.store()
    record, deployment, _, status = read_job(store, job)
    if deployment is None:
        raise RefusedError(
            f"Job {job} was never deployed, so nothing of it runs; 'streamops deploy {job} VERSION' runs it."
        )
    manifest = artifacts.load_manifest(store, record.job, deployment.version)
    plans = fingerprints.read(manifest.fingerprints, manifest.definition.stages)
    found = execution.graph(manifest.definition, plans, deployment.topics)
    driver = status.ui if status and status.state not in FINAL else ""
    pages = {"master": settings.spark_ui, "driver": driver, "queries": f"{driver}/StreamingQuery/" if driver else ""}
    if json:
        console.show_json({"job": job, "version": deployment.version, **found.model_dump(), "pages": pages})
        return
    tree = Tree(f"[bold]{escape(record.job)}[/] {escape(deployment.version)}", highlight=False)
    drawn: set[str] = set()
    for node in found.roots:
        _draw(found, node, tree, drawn)
    console.out.print(tree)
    for name, page in pages.items():
        console.say(f"Spark's page of the {name}: {page or 'none, since no driver runs'}")


def _draw(found: execution.Graph, node: execution.Node, above: Tree, drawn: set[str]) -> None:
    """A node and what comes after it; what several nodes flow into is drawn once."""
    again = node.id in drawn
    drawn.add(node.id)
    details = ("above",) if again else node.details
    branch = above.add("\n".join((f"{node.kind} [bold]{escape(node.name)}[/]", *map(escape, details))))
    for following in found.after(node.id) if not again else ():
        _draw(found, following, branch, drawn)


app.command("pause", help="Exclude a job from reconciliation: it is not started again by itself.")(verbs.pause)
app.command("log-level", help="Let loggers of a running job log more, or less.")(verbs.log_level)
app.command("resume", help="Include a job in reconciliation again.")(verbs.resume)


def stages(status: DriverStatus, advice: Advice) -> None:
    """Print what passes through each stage; the one that limits is marked."""
    rows = console.table(
        "STAGE", "IN/s", "OUT/s", "LAG", "CATCH UP", "BATCH", "BUSY", "STATE ROWS", "LATE", "LAST COMMIT",
        right=("IN/s", "OUT/s", "LAG", "CATCH UP", "BATCH", "BUSY", "STATE ROWS", "LATE"),
    )  # fmt: skip
    for flow in advice.flows:
        stage = status.stages[flow.stage]
        rows.add_row(
            f"{flow.stage}{' (limits)' if flow.stage == advice.limiting else ''}",
            f"{flow.rate_in:,.0f}",
            f"{flow.rate_out:,.0f}",
            f"{flow.lag:,}",
            "never" if flow.catch_up_s is None else console.duration(flow.catch_up_s) if flow.catch_up_s else "now",
            "real time" if stage.phase == LIVE else f"{stage.batch_ms} ms",
            "" if flow.busy is None else f"{flow.busy:.0%}",
            f"{stage.state_rows:,}",
            f"{stage.late_rows:,}",
            console.when(stage.last_commit),
        )
    console.out.print(rows)


def read_job(store: ObjectStore, job: str) -> tuple[JobRecord, Deployment | None, Lease | None, DriverStatus | None]:
    """Everything that is recorded of a job.

    Raises:
        NotFoundError: there is no such job; the message names those that are there.
    """
    record = job_state.record(store, job)
    if record is None:
        known = job_state.names(store)
        if job in known:
            return JobRecord(job=job), None, None, None
        raise NotFoundError(f"There is no job {job!r}; known jobs: {', '.join(known) or 'none, publish one first'}.")
    key = keys.deployment(job, record.deployment)
    deployment = documents.find(store, key, Deployment) if record.deployment else None
    status = documents.find(store, keys.status(job, record.launch), DriverStatus) if record.launch else None
    return record, deployment, job_state.lease(store, job), status


def members_now(settings: Settings, status: DriverStatus, definition: Definition) -> Shares:
    """The members that a job runs on, and what each has of it; empty where the cluster cannot be asked."""
    try:
        nodes = SupervisedNodes(settings)
        return shares(nodes.inventory, nodes.master(), status, definition)
    except StreamOpsError:
        return {}


def two_looks(settings: Settings, store: ObjectStore, record: JobRecord, deployment: Deployment | None) -> list[Look]:
    """Look at a running job twice, some seconds apart, to measure its rates."""
    if deployment is None or record.launch is None:
        return []
    definition = artifacts.load_manifest(store, record.job, deployment.version).definition
    topics = job_state.topics(definition, deployment.topics)
    found: list[Look] = []
    with closing(Ledger(settings)) as ledger:
        for wait in (0.0, LOOK_S):
            time.sleep(wait)  # the interval that is measured
            status = job_state.status(store, record.job, record.launch)
            if status:
                ends: Offsets = {name: ledger.end_offsets(topic) for name, topic in topics.items()}
                found.append(Look(records.now(), status, ends))
    return found


def shown_state(record: JobRecord, status: DriverStatus | None) -> str:
    """The state that a person is shown: what the driver says, unless it has gone silent or should not run."""
    if record.desired != "running":
        busy = status and status.state not in FINAL and (records.now() - status.updated).total_seconds() < SILENT_S
        return State.STOPPING if busy else record.desired
    if status is None:
        return State.STARTING if record.launch else State.UNKNOWN
    if status.state in FINAL:
        return status.state
    silent = (records.now() - status.updated).total_seconds()
    return f"{State.UNKNOWN} (silent for {silent:.0f} s)" if silent > SILENT_S else status.state


def is_gone(item: dict[str, object]) -> bool:
    """Whether a job was deleted: its operations and receipts stay, and nothing else."""
    return item["state"] == "never deployed" and not item["published"]


def overview(store: ObjectStore, job: str) -> dict[str, object]:
    """One line of the list."""
    record, deployment, _, status = read_job(store, job)
    lags = [stage.lag for stage in status.stages.values()] if status else []
    published = artifacts.versions(store, job)
    return {
        "job": job,
        "version": record.version or "-",
        "state": shown_state(record, status) if record.deployment else "never deployed",
        "deployment": record.deployment,
        "lag": f"{max(lags):,}" if lags and record.desired == "running" else "-",
        "id": deployment.created_by if deployment else "-",
        "submitted": console.when(deployment.created if deployment else None),
        "completed": console.when(status.updated if status and status.state in FINAL else None),
        "published": published,
    }
