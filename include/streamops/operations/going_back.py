"""Going back: an earlier version from the snapshot that was taken of it, or the same version from an earlier one.

Both are one set of steps. The snapshot exists already, so the new deployment's state is in place before anything is
stopped; and the deployment that runs keeps its own checkpoint, from which it goes on should the way back fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from streamops import snapshots
from streamops.model.definitions import Definition
from streamops.model.errors import CheckpointError, NotFoundError, RefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.model.records import FINAL, Deployment, DriverStatus, Offsets, now
from streamops.operations import checks, cost, steps
from streamops.operations.checks import Case
from streamops.operations.context import Facts, Work
from streamops.operations.cost import Cost
from streamops.operations.health import Health
from streamops.spark import checkpoints
from streamops.store import jobs, keys
from streamops.versions import archives, artifacts


def check(work: Work) -> Facts:
    """Refuse what cannot work, and say what it costs, before anything is touched.

    Raises:
        RefusedError, NotFoundError, SnapshotRefusedError: what is wrong and what to do instead.
    """
    case = Case(work.ports, work.operation, work.operation.before)
    record, store = case.existing(), work.ports.store
    present = jobs.deployment(store, work.job, record.deployment)
    manifest = target(work, present)
    version = artifacts.load_manifest(store, work.job, manifest.version)
    taken_from = jobs.deployment(store, work.job, manifest.deployment)
    _same_bytes(work, manifest, version)
    topics = jobs.topics(version.definition, taken_from.topics)
    checks.reachable(work.ports, version.definition, topics)
    snapshots.require_usable(
        manifest, work.job, fork=False, topics=topics, beginning=work.ports.ledger.beginning_offsets
    )
    snapshots.require_space(manifest.size, work.ports.free_bytes())
    snapshots.verify(store, manifest)
    found = price(work, manifest, record.deployment, record.launch)
    for line in cost.lines(found):
        work.say(line)
    status = jobs.status(store, work.job, record.launch) if record.launch else None
    return {
        "from": present.version,
        "to": manifest.version,
        "snapshot": manifest.name,
        "events_again": sum(found.again.values()),
        "running": record.desired == "running" and status is not None and status.state not in FINAL,
        "stands": found.stands,
        "cost": found.model_dump(mode="json", exclude={"stands"}),
    }


def target(work: Work, present: Deployment) -> Manifest:
    """The snapshot to go back to.

    Raises:
        RefusedError: it is of the wrong version for this runbook, or there is nothing to go back to.
        NotFoundError: there is no such snapshot.
    """
    store, name = work.ports.store, work.request.snapshot
    manifest = snapshots.load(store, work.job, name) if name else previous(work, present)
    if work.request.runbook == "restore_job" and manifest.version != present.version:
        raise RefusedError(
            f"Snapshot {manifest.name} is of {manifest.version}, and {work.job} is {present.version}: restore_job "
            f"keeps the version. To go back to {manifest.version}, use rollback_job with this snapshot."
        )
    if work.request.runbook == "rollback_job" and manifest.version == present.version:
        raise RefusedError(
            f"Snapshot {manifest.name} is of {manifest.version}, which {work.job} is already; to continue the same "
            "version from it, use restore_job."
        )
    return manifest


def previous(work: Work, present: Deployment) -> Manifest:
    """The snapshot from which the present version took over from the one before.

    Deployments of the same version in between (after a restore, or an upgrade that was taken back) are walked over.
    """
    store, at = work.ports.store, present
    seen: set[int] = set()
    while at.from_snapshot and at.number not in seen:
        seen.add(at.number)
        job, _, name = at.from_snapshot.rpartition("/")
        found = snapshots.find(store, job, name)
        if found is None:
            raise NotFoundError(
                f"Deployment {at.number} of {work.job} began from snapshot {name}, which is gone; "
                f"choose another: {_others(work, present)}."
            )
        if found.job != work.job:
            break
        if found.version != present.version:
            return found
        at = jobs.deployment(store, work.job, found.deployment)
    raise RefusedError(
        f"No version of {work.job} ran before {present.version} and handed its state on, so there is none to go back "
        f"to; choose a snapshot: {_others(work, present)}."
    )


def _others(work: Work, present: Deployment) -> str:
    found = [item for item in snapshots.list(work.ports.store, work.job) if item.version != present.version]
    return ", ".join(f"{item.name} ({item.version})" for item in found[-5:]) or "there is none of another version"


def _same_bytes(work: Work, manifest: Manifest, version: artifacts.ArtifactManifest) -> None:
    """What ran when the snapshot was taken is what will run: the published hashes, and the bytes behind them."""
    told = (manifest.artifact_sha256, manifest.runtime_sha256)
    same = (version.artifact_sha256, version.runtime_sha256) == told
    for key, sha256 in zip((keys.artifact(manifest.job, manifest.version), keys.runtime(told[1])), told, strict=True):
        try:
            same = same and archives.sha256(work.ports.store.get(key).body) == sha256
        except NotFoundError:
            same = False
        if not same:
            raise RefusedError(
                f"{key} is gone, or is not what ran when snapshot {manifest.name} of {work.job} {manifest.version} was "
                f"taken (sha256 {sha256[:12]}); bring it back, or choose another snapshot."
            )


def price(work: Work, manifest: Manifest, deployment: int, launch: str | None) -> Cost:
    """What it costs to continue from a snapshot instead of from where a deployment of the job stands."""
    store = work.ports.store
    version = artifacts.load_manifest(store, work.job, manifest.version).definition
    present = artifacts.load_manifest(store, work.job, jobs.deployment(store, work.job, deployment).version).definition
    topics = jobs.topics(version, jobs.deployment(store, work.job, manifest.deployment).topics)
    status = jobs.status(store, work.job, launch) if launch else None
    stands, exact = positions(work, deployment, present, status)
    ends = {source: dict(work.ports.ledger.end_offsets(topic)) for source, topic in topics.items()}
    return cost.cost(manifest, version, present, stands, ends, exact=exact)


def positions(
    work: Work, deployment: int, definition: Definition, status: DriverStatus | None
) -> tuple[dict[str, Offsets], bool]:
    """Where each stage stands, and whether that is exact.

    A checkpoint that lost an object still shows its offsets, mostly; else the driver's last word counts, which may be
    behind.
    """
    store, exact = work.ports.store, True
    prefix = checkpoints.current_epoch_prefix(store, work.job, deployment)
    found: dict[str, Offsets] = {}
    for stage in definition.stages:
        try:
            tail = checkpoints.position(store, f"{prefix}{stage}/") if prefix else None
        except (CheckpointError, NotFoundError):
            tail, exact = None, False
        if tail is not None:
            found[stage] = tail.offsets
        elif not exact and status is not None and stage in status.stages:
            found[stage] = status.stages[stage].offsets
    return found, exact


def reserve(work: Work) -> Facts:
    """Number the deployment and bring its state in place, while what runs goes on."""
    store = work.ports.store
    manifest = snapshots.load(store, work.job, work.operation.facts("check")["snapshot"])
    old = jobs.deployment(store, work.job, manifest.deployment)
    version = work.version()
    running = bool(work.operation.facts("check")["running"])
    cold = not running or steps.starts_cold(work, version)
    facts = steps.install(work, version, manifest, work.number, work.launch, old.params, old.topics)
    update = {"standby": None if cold else work.launch, "last_deployment": work.number}
    jobs.change(store, work.job, {**update, "changed_by": work.operation.id})
    return facts | {"cold": cold}


def await_stop(work: Work) -> Facts:
    """Like every stop, but one that does not come is no obstacle: its state is not needed, and the lease fences it."""
    try:
        return steps.await_stop(work)
    except UnhealthyError as error:
        work.say(f"{error} It loses the lease, and cannot write from then on.")
        return {"stopped": False, "why": str(error)}


def goal(work: Work) -> dict[str, Offsets]:
    """Stage -> offsets that were committed before: up to there results are written again."""
    stood: Mapping[str, Offsets] = work.operation.facts("check").get("stands", {})
    stopped = work.operation.facts("await_stop").get("stages", {})
    last = {stage: found["offsets"] for stage, found in stopped.items() if found.get("offsets")}
    return {**stood, **last}


def assess_catch_up(
    wanted: Mapping[str, Offsets], status: DriverStatus | None, launch: str, until: datetime, moment: datetime
) -> Health:
    """Done when every stage has committed what had been committed before, or when it is not waited for any longer."""
    if status is not None and status.launch == launch and status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    stages = status.stages if status is not None and status.launch == launch else {}
    behind = {
        name: cost.distance(stages[name].offsets, end) if name in stages and stages[name].offsets else None
        for name, end in wanted.items()
    }
    left = {name: events for name, events in behind.items() if events != 0}
    if not left:
        return Health(True, None, "everything that had been processed before has been processed again")
    shown = ", ".join(f"{name} {'not begun' if n is None else f'{n:,} events'}" for name, n in left.items())
    if moment >= until:
        return Health(True, None, f"it goes on catching up ({shown}); until then old results stand beside new ones")
    return Health(False, None, f"still to process again: {shown}")


def look_catch_up(work: Work) -> Health:
    """One look at the reprocessing."""
    healthy = work.operation.steps["healthy"].finished or now()
    status = jobs.status(work.ports.store, work.job, work.launch)
    wanted = {name: end for name, end in goal(work).items() if name in work.version().definition.stages}
    return assess_catch_up(wanted, status, work.launch, healthy + timedelta(seconds=work.request.catch_up_s), now())


def catch_up(work: Work) -> Facts:
    """Wait until the results that are written again have been; then say what going back did cost."""
    found = work.wait(lambda: look_catch_up(work), work.request.limit_s("catch_up"), "Catching up")
    status = jobs.status(work.ports.store, work.job, work.launch)
    begun = snapshots.load(work.ports.store, work.job, work.operation.facts("check")["snapshot"])
    done = {
        name: cost.distance(cost.begins(begun, name), stage.offsets)
        for name, stage in (status.stages if status else {}).items()
        if name in begun.stages
    }
    again = {name: min(count, done.get(name, 0)) for name, count in _final(work, begun).items()}
    work.say(f"It cost: {sum(again.values()):,} events were processed again, from snapshot {begun.job}/{begun.name}")
    return {"why": found.why, "events_again": sum(again.values()), "again": again}


def _final(work: Work, begun: Manifest) -> dict[str, int]:
    """Stage -> events between the snapshot and where the job stood when it stopped."""
    wanted = goal(work)
    return {
        name: cost.distance(cost.begins(begun, name), wanted[name])
        for name in work.version().definition.stages
        if name in begun.stages and name in wanted
    }


def recount(work: Work) -> Facts:
    """Compare everything that was written again, and the windows that were open at the snapshot."""
    manifest = snapshots.load(work.ports.store, work.job, work.operation.facts("check")["snapshot"])
    marks = [stage.watermark_ms for stage in manifest.stages.values()]
    # A stage without a watermark tells no time; the snapshot was taken after everything in it.
    known = [mark for mark in marks if mark is not None] or [int(manifest.created.timestamp() * 1000)]
    return steps.recount_since(work, min(known), "the snapshot")


BODIES: dict[str, Callable[[Work], Facts]] = {
    "check": check,
    "reserve": reserve,
    "await_stop": await_stop,
    "catch_up": catch_up,
    "recount": recount,
}
LOOKS: dict[str, Callable[[Work], Health]] = {"catch_up": look_catch_up}
