"""Try a version beside the running one, on the same events, without letting it write a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from streamops.model.definitions import Definition, StageName
from streamops.model.errors import NotFoundError, RefusedError, StreamOpsError, UnhealthyError
from streamops.model.records import (
    FINAL,
    SHADOW_RUN,
    DriverStatus,
    Offsets,
    Shadow,
    StageStatus,
    distance,
    now,
)
from streamops.operations import comparable, rehearsals, replacing, steps
from streamops.operations.comparable import Comparable
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Facts, Finished, Reserved, Waited
from streamops.operations.health import Health
from streamops.operations.operation import Operation
from streamops.operations.rehearsals import Rehearsal, Side, StageTried
from streamops.operations.requests import AnyVersion, HealthyTimeout, NewVersion
from streamops.operations.runbook import Runbook, Step, UndoPlan
from streamops.recount import beside
from streamops.recount.beside import Given, Lateness
from streamops.spark import priority
from streamops.store import documents, jobs, keys
from streamops.versions import artifacts

SILENT_S = 120  # without a word of the driver that works: an operation must not keep reconciliation away from it
FEW_COMMITS_S = 120.0  # of a stage in real time: a watermark that is further behind what it reads does not move
RECENT_MS = 5_000  # results of windows that ended since then may still be on their way


class RehearseJob(NewVersion):
    """What may be asked for."""

    runbook: Literal["rehearse_job"] = "rehearse_job"
    version: Annotated[AnyVersion, Field(description="The published version to rehearse.")]
    observe_s: Annotated[
        int,
        Field(
            ge=1,
            le=3600,
            title="Observe (s)",
            description="How long both versions are watched once the new one has read everything there is. Kafka "
            "keeps the results of both meanwhile.",
        ),
    ] = 300
    demand_equal: Annotated[
        bool,
        Field(title="Demand equal results", description="The rehearsal fails if any result of both versions differs."),
    ] = False
    may_differ: Annotated[
        tuple[StageName, ...],
        Field(title="May differ", description="With Demand equal results: stages whose results may differ."),
    ] = ()
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="The rehearsal fails if the new driver is not in standby by then.")
    ] = 180

    @model_validator(mode="after")
    def _of_what(self) -> RehearseJob:
        if self.may_differ and not self.demand_equal:
            raise ValueError("may_differ: needs demand_equal; without it every stage may differ")
        return self


class Begun(Reserved):
    """As ``Reserved``. ``lateness``: stage -> that of the version that runs, before the other one starts."""

    lateness: dict[str, Lateness] = {}


class Seen(Facts):
    """Where one version stood."""

    at: datetime
    cpu_s: float | None = None
    offsets: dict[str, Offsets] = {}  # by stage


class Level(Waited):
    """Where both versions stood when the new one had read all there is."""

    old: Seen | None = None
    new: Seen | None = None


class Tried(Facts):
    """What was found in short; ``key`` has all of it."""

    result: str = ""
    points: int = 0
    differing: dict[str, int] = {}
    key: str = ""


def check(context: StepContext) -> Checked:
    """Refuse what cannot work, before anything is touched.

    Raises:
        RefusedError, NotFoundError, CheckpointError: what is wrong and what to do instead.
    """
    accepted = replacing.check(context, "a rehearsal")
    old = Comparable.of(accepted.running, accepted.old.params)
    new = Comparable.of(accepted.version, accepted.settings.params)
    why = accepted.why_not_beside(context.ports.submitter.room_for, takes_over=False) or comparable.why_not(
        old, new, context.asked(RehearseJob).observe_s
    )
    if not why and new.definition.in_batches and artifacts.BATCHES_IN_SHADOW not in accepted.version.runtime_can:
        why = "its runner is too old to run stages in batches beside another version; publish it again as another one"
    if why:
        raise RefusedError(
            f"Version {accepted.version.version} of {context.job} cannot be rehearsed, because {why}; see with "
            f"'streamops check {context.job} {accepted.version.version}' what an upgrade would do."
        )
    asked = context.asked(RehearseJob)
    if unknown := sorted({*asked.may_differ} - accepted.version.definition.stages.keys()):
        raise RefusedError(f"{accepted.version.version} of {context.job} has no stage {', '.join(unknown)}; correct "
                           "may_differ.")  # fmt: skip
    return accepted.checked


def reserve(context: StepContext) -> Begun:
    """Number the new deployment and name the launch that stands by; what runs is still undisturbed, and measured."""
    steps.publish_copy(context)
    version, settings = context.version(), replacing.settings(context)
    if not context.ports.submitter.room_for(version.definition.with_resources(settings.resources)):
        raise UnhealthyError(
            "There is no room any more for a second driver beside the one that runs; make some, and trigger again."
        )
    found = dict(_lateness_now(context))
    steps.write_deployment(context, version, None, context.number, settings)
    context.change({"standby": context.launch, "last_deployment": context.number})
    return Begun(launch=context.launch, deployment=context.number, lateness=found)


def _lateness_now(context: StepContext) -> Iterator[tuple[str, Lateness]]:
    """How late the version that runs is, as far as its results are still in their topics: half a minute at most."""
    ledger, next_epoch = context.ports.ledger, jobs.next_epoch(context.ports.store, context.job, context.launch)
    until_ms = int(now().timestamp() * 1000) - RECENT_MS
    for stage, of_stage in _running(context).stages.items():
        if not of_stage.realtime:  # its topic, if it has one, is of a version before
            continue
        nobody = Shadow(job=context.job, stage=stage, deployment=0, epoch=next_epoch, since=0, run=SHADOW_RUN)
        topic = keys.results_topic(context.job, stage)
        try:
            begin, end = ledger.beginning_offsets(topic)["0"], ledger.end_offsets(topic)["0"]
            given = Given(nobody, 0, until_ms).take(ledger.read_keyed(topic, begin, end))
        except NotFoundError:  # no result yet, or written and deleted while this is read
            continue
        if lateness := given.lateness()[0]:
            context.say(f"Stage {stage}: {lateness.points:,} results, {rehearsals.late(lateness)}, running alone")
            yield stage, lateness


def shadowed(context: StepContext) -> Level:
    """From here on both versions are watched."""
    old, new = _statuses(context)
    return Level(why=context.why, old=_seen(old), new=_seen(new))


def _seen(status: DriverStatus | None) -> Seen | None:
    if status is None:
        return None
    offsets = {name: stage.offsets for name, stage in status.stages.items()}
    return Seen(at=status.updated, cpu_s=status.cpu_s, offsets=offsets)


def look_observe(context: StepContext) -> Health:
    """Whether both versions have been watched for long enough, and have closed the windows that ended meanwhile."""
    old, new = _statuses(context)
    for name, status in (("running", old), ("new", new)):
        if status is None or status.state in FINAL:
            why = f"the {name} version's driver ended: {status.reason if status else 'it says nothing'}"
            return Health(False, why, why)
        if (silent_s := (now() - status.updated).total_seconds()) > SILENT_S:
            why = f"the {name} version's driver has said nothing for {silent_s:.0f} s"
            return Health(False, why, why)
    assert old is not None
    assert new is not None
    until = _since(context) + timedelta(seconds=context.asked(RehearseJob).observe_s)
    if now() < until:
        return Health(False, None, f"both versions are watched until {until:%H:%M:%S} UTC")
    waiting = [
        f"{stage} of {definition.version}"
        for definition, status in ((_running(context), old), (context.version().definition, new))
        for stage in definition.stages
        if not closed(status.stages.get(stage), until)
    ]
    if waiting:
        return Health(False, None, f"the time is over; its windows are not closed yet in {', '.join(waiting)}")
    return Health(True, None, f"both were watched for {context.asked(RehearseJob).observe_s} s")


def closed(stage: StageStatus | None, until: datetime) -> bool:
    """Whether a stage has closed all windows that ended by then, or no event comes that would let it."""
    if stage is None:
        return False
    if stage.quiet or (stage.watermark_ms or 0) >= until.timestamp() * 1000:
        return True
    return stage.last_commit is not None and (stage.last_commit - until).total_seconds() >= FEW_COMMITS_S


def compare(context: StepContext) -> Tried:
    """Compare the results of both versions, measure how they worked, and store what was found.

    Raises:
        StreamOpsError: nothing could be compared, or results differ that must not.
    """
    found = priority.in_background(partial(_found, context))
    for line in rehearsals.lines(found):
        context.say(line)
    if not found.points:
        raise StreamOpsError(
            f"Nothing was compared: no window of {context.job} ended in {found.seconds:.0f} s, or no event came; "
            "rehearse it for longer (observe_s)."
        )
    rehearsals.write(context.ports.store, found)
    asked = context.asked(RehearseJob)
    off = {stage: number for stage, number in found.differing.items() if stage not in asked.may_differ}
    nothing = [name for name, item in found.stages.items() if not item.compared.points and name not in asked.may_differ]
    if asked.demand_equal and nothing:
        raise StreamOpsError(
            f"Nothing of {', '.join(nothing)} was compared, because no window of it ended in {found.seconds:.0f} s; "
            "rehearse it for longer (observe_s), or name it in may_differ."
        )
    if asked.demand_equal and off:
        raise StreamOpsError(
            f"Results differ that should be equal ({rehearsals.verdict(found)}); see 'streamops rehearsals show "
            f"{found.id}', correct {found.new.version}, or name the stages in may_differ."
        )
    key = keys.rehearsal(context.job, found.id)
    return Tried(result=rehearsals.verdict(found), points=found.points, differing=found.differing, key=key)


def _found(context: StepContext) -> Rehearsal:
    """Everything that there is to say, from the statuses, the topics and what earlier steps recorded."""
    store, level = context.ports.store, context.reported("shadowed", Level)
    old, new = _statuses(context)
    if old is None or new is None:
        raise UnhealthyError("A driver's status cannot be read any more; rehearse again.")
    before = jobs.deployment(store, context.job, context.before.deployment)
    after = jobs.deployment(store, context.job, context.number)
    manifests = context.version(before.version), context.version()
    running, version = (manifest.definition for manifest in manifests)
    sides = Comparable.of(manifests[0], before.params), Comparable.of(manifests[1], after.params)
    both = [stage for stage in running.stages if stage in version.stages]
    return Rehearsal(
        id=context.operation.id,
        job=context.job,
        at=now(),
        seconds=(new.updated - _since(context)).total_seconds(),
        old=rehearsals.tried(before, running, **_used(level.old, old)),
        new=rehearsals.tried(after, version, **_used(level.new, new)),
        stages={stage: _stage(context, stage, sides, (level.old, old), (level.new, new)) for stage in both},
        only_old=tuple(running.stages.keys() - version.stages.keys()),
        only_new=tuple(version.stages.keys() - running.stages.keys()),
    )


def _stage(
    context: StepContext,
    name: str,
    sides: tuple[Comparable, Comparable],
    old: tuple[Seen | None, DriverStatus],
    new: tuple[Seen | None, DriverStatus],
) -> StageTried:
    """One stage of both: windows are compared that ended since the new one is level, and that both have closed."""
    store, ledger = context.ports.store, context.ports.ledger
    shadow = documents.find(store, keys.shadow(context.job, name), Shadow)
    if shadow is None or shadow.deployment != context.number:
        raise UnhealthyError(f"Stage {name} has not run in shadow in this operation; rehearse again.")
    mine, other = (status.stages.get(name, StageStatus()) for _, status in (old, new))
    from_ms = int(_since(context).timestamp() * 1000)
    until_ms = min(mine.watermark_ms or 0, other.watermark_ms or 0) - max(side.open_ms(name) for side in sides)
    topic = keys.results_topic(context.job, name)
    end = ledger.end_offsets(topic)["0"]  # after the watermarks: all that these have closed is in the topic
    given = Given(shadow, from_ms, until_ms).take(ledger.read_keyed(topic, shadow.since, end))
    running, (before, after) = sides[0].definition, (side.definition.stages[name].points for side in sides)
    assert before is not None  # else there is nothing to rehearse
    assert after is not None
    gave = given.old()
    if not running.stages[name].realtime:  # it writes at once, and is at the end of its batch
        gave = iter(context.ports.read_points(before, given.from_ms + 1, given.until_ms + 1))
    late = given.lateness()
    return StageTried(
        compared=beside.compare(gave, given.new(), before, after),
        old=_side(name, mine, old, late[0]),
        new=_side(name, other, new, late[1]),
        until=datetime.fromtimestamp(given.until_ms / 1000, UTC),
        before=context.reported("reserve", Begun).lateness.get(name),
    )


def _side(name: str, stage: StageStatus, seen: tuple[Seen | None, DriverStatus], late: Lateness | None) -> Side:
    first, status = seen
    rate = None
    if first and name in first.offsets and (seconds := (status.updated - first.at).total_seconds()) > 0:
        rate = distance(first.offsets[name], stage.offsets) / seconds
    return Side(
        rows_per_s=rate,
        lateness=late,
        lag=stage.lag,
        late_rows=stage.late_rows,
        state_rows=stage.state_rows,
        state_bytes=stage.state_bytes,
    )


def _used(first: Seen | None, status: DriverStatus) -> Mapping[str, float | None]:
    """What a driver took since it was seen first. One that was started again since then begins at nothing."""
    cores = None
    if first and first.cpu_s is not None and status.cpu_s is not None and status.started < first.at < status.updated:
        cores = (status.cpu_s - first.cpu_s) / (status.updated - first.at).total_seconds()
    return {"driver_cores": cores, "driver_bytes": status.memory_bytes}


def finish(context: StepContext) -> Finished:
    """Write the receipt and show it. What belongs to the version that runs stays as it is."""
    steps.clear_leftovers(context, context.job)
    return steps.receipt(context)


def undo_plan(operation: Operation) -> UndoPlan:
    """The version that runs was never touched; at most the new driver is there."""
    if not operation.started("reserve"):
        return UndoPlan()
    if operation.done("dismiss"):
        return UndoPlan("the new driver is dismissed, and the running version was never touched")
    return UndoPlan("the running version was never touched; the new driver is dismissed", ("dismiss",))


def _statuses(context: StepContext) -> tuple[DriverStatus | None, DriverStatus | None]:
    """Of the version that runs, and of the new one."""
    store, launch = context.ports.store, context.before.launch
    old = jobs.status(store, context.job, launch) if launch else None
    return old, jobs.status(store, context.job, context.launch)


def _running(context: StepContext) -> Definition:
    """The version that runs."""
    deployment = jobs.deployment(context.ports.store, context.job, context.before.deployment)
    return context.version(deployment.version).definition


def _since(context: StepContext) -> datetime:
    """When the new version was level."""
    return context.operation.steps["shadowed"].finished or now()


REHEARSE_JOB = Runbook(
    request=RehearseJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and the cluster", check),
        Step(
            "reserve",
            "prepare",
            "Number the new deployment, name the launch that stands by, and measure the running version alone",
            reserve,
        ),
        replacing.SHADOW,
        steps.SUBMIT_TRIED,
        steps.STANDBY,
        replace(replacing.SHADOWED, act=shadowed),
        Step(
            "observe",
            "observe",
            "Watch both versions for a while",
            look=look_observe,
            awaited="Observation",
            within=lambda asked: asked.observe_s + asked.healthy_timeout_s,
        ),
        Step("compare", "compare", "Compare their results, and store and show what was found", compare),
        Step(
            "dismiss",
            "dismiss",
            "End the new driver, and remove its copy of the state and its feeds",
            replacing.dismiss,
        ),
        replace(steps.FINISH, act=finish),
    ),
    undo_plan=undo_plan,
    undo={"dismiss": replacing.dismiss},
    restoring="dismiss_new_version",
    forward=lambda operation: operation.done("compare"),
)
