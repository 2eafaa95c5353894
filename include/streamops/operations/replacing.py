"""What an upgrade and its rehearsal do alike: ask whether a version can follow the one that runs, and run it beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamops import snapshots
from streamops.model.definitions import Definition, milliseconds
from streamops.model.errors import DeniedError, RefusedError
from streamops.model.records import Control, Deployment, Shadow
from streamops.operations import checks, health, moving, refilling, steps, undo
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Dismissed, Reserved
from streamops.operations.health import Health
from streamops.operations.rehearsals import AsRun
from streamops.operations.requests import NewVersion
from streamops.operations.runbook import Step
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import libraries, refill, verdicts
from streamops.versions.artifacts import ArtifactManifest

LAST_WORD_S = 90.0  # for the new driver to end, so that it makes no more objects where they are removed
SHADOW_S = 600  # for reading all there is; the old version runs meanwhile, and nothing waits


@dataclass(frozen=True)
class Accepted:
    """A version that can follow the one that runs.

    Args:
        old: what runs, a deployment of ``running``.
        settings: what the new one would be deployed with.
    """

    checked: Checked
    old: Deployment
    running: ArtifactManifest
    version: ArtifactManifest
    settings: steps.Settings

    @property
    def definition(self) -> Definition:
        """Of the new version, as it would be deployed."""
        return self.version.definition.with_resources(self.settings.resources)

    def as_run(self, store: ObjectStore) -> tuple[AsRun, AsRun]:
        """The version that runs, and the new one as it would be deployed."""
        new = AsRun(
            version=self.version.version,
            artifact_sha256=self.version.artifact_sha256,
            runtime_sha256=self.version.runtime_sha256,
            library=libraries.choose(store, self.version.definition, self.settings.library, self.old.library),
            params=dict(self.settings.params),
            topics=dict(self.settings.places),
            resources=dict(self.settings.resources),
        )
        return AsRun.of(self.old), new

    def why_not_beside(
        self, room_for: Callable[[Definition], bool], *, standby: bool = True, takes_over: bool = True
    ) -> str:
        """Why the new version cannot run beside the old one, on a copy of its state; empty if it can."""
        old, new = self.running.definition, self.definition
        if self.checked.moved:
            return f"{', '.join(self.checked.moved)} continues in another topic"
        return why_not_beside(old, new, self.checked.outcomes, room_for, standby=standby, takes_over=takes_over)


def check(context: StepContext, what: str) -> Accepted:
    """Refuse a version that cannot follow the one that runs, before anything is touched.

    Args:
        what: is asked for, such as ``an upgrade``.

    Raises:
        RefusedError, NotFoundError, CheckpointError: what is wrong and what to do instead.
    """
    asked, store, record = context.asked(NewVersion), context.ports.store, checks.existing(context)
    version = checks.version(context, asked)
    if record.desired != "running":
        raise RefusedError(
            f"Job {context.job} is {record.desired}, and {what} needs a running job; start it (start_job), or "
            f"deploy {asked.version} from a snapshot (deploy_job with from_snapshot)."
        )
    old = jobs.deployment(store, context.job, record.deployment)
    changes = asked.params or asked.places or asked.logging or asked.resources or asked.library
    if old.version == version.version and not changes:
        raise RefusedError(f"Job {context.job} already runs {old.version}; there is nothing to upgrade.")
    checks.settings(version.definition, asked)
    running = context.version(old.version)
    checks.same_partitions(context, context.job, old.version, version)
    over = steps.Settings.inherited(old, version.definition, asked)
    libraries.choose(store, version.definition, asked.library, old.library)
    topics = jobs.topics(version.definition, over.places)
    checks.runner(version, topics, asked.logging)
    checks.reachable(context.ports, version.definition, topics)
    size, stood, ledger = 0, {}, context.ports.ledger
    tails = checks.tails(context, record, running.definition)
    read = {stage: start.offsets for stage, start in old.stages.items()}
    read |= {stage: tail.offsets for stage, tail in tails.items()}
    plans = verdicts.known(running, {})
    read = moving.of_read(read, plans)
    before = jobs.topics(running.definition, old.topics)
    moved = moving.find(ledger, before, topics, read, asked.start_at, context.say)
    moving.require_ready(ledger, moved, read, moving.closed(tails, plans), asked.accept_loss, context.say)
    for stage, tail in tails.items():
        checks.kept_by_kafka(context, stage, tail.offsets, {n: t for n, t in topics.items() if n not in moved})
        size += tail.size
        if stage in old.stages:
            stood[stage] = refilling.Stood(tail.offsets, tail.watermark_ms, old.stages[stage])
    snapshots.require_space(2 * size, context.ports.free_bytes())
    changed = verdicts.moved(running.definition, old.topics, version.definition, over.places, moved)
    found = verdicts.of_deployment(running, old.params, version, over.params, changed)
    told = verdicts.require(found, asked.accept_loss, context.say)
    refilling.starts(ledger, version, told["refilled"], stood, topics)
    checked = Checked(before=old.version, after=version.version, bytes=size, moved=moved, **told)
    return Accepted(checked, old, running, version, over)


def settings(context: StepContext) -> steps.Settings:
    """Those of the running deployment, and over them what is asked for."""
    old = jobs.deployment(context.ports.store, context.job, context.before.deployment)
    return steps.Settings.inherited(old, context.version().definition, context.asked(NewVersion))


def why_not_beside(
    old: Definition,
    new: Definition,
    outcomes: Mapping[str, str],
    room_for: Callable[[Definition], bool],
    *,
    standby: bool = True,
    takes_over: bool = True,
) -> str:
    """Why a version cannot run beside the other, on a copy of its state; empty if it can.

    Args:
        outcomes: of each stage of the new version, what becomes of its state.
        room_for: whether the cluster holds one more driver of a version.
        standby: whether a second driver is asked for.
        takes_over: what it gives meanwhile is to count in the end, which only stages in real time can do.
    """
    if takes_over and (batches := new.in_batches):
        return f"{', '.join(batches)} of {new.version} runs in batches"
    if changed := [name for name in new.stages if not _goes_on(name, old, new, outcomes.get(name, ""))]:
        return f"the state of {', '.join(changed)} is not kept as it is"
    fill = {name: stage.fill for name, stage in new.stages.items() if stage.fill and name not in old.stages}
    if long := [name for name, before in fill.items() if milliseconds(before) > refill.LONGEST_MS]:
        return f"{', '.join(long)} is filled from {fill[long[0]]} before, which takes too long for two versions at once"
    if gone := sorted(old.stages.keys() - new.stages.keys()):
        return f"{new.version} has no stage {', '.join(gone)}"
    if old.resources.state_partitions != new.resources.state_partitions:
        return "its state is brought into another number of partitions"
    if not standby:
        return "no standby was asked for"
    return "" if room_for(new) else "there is no room for a second driver beside the one that runs"


def _goes_on(name: str, old: Definition, new: Definition, outcome: str) -> bool:
    """Whether a stage may continue beside the old version with what the verdict makes of its state.

    One that is filled again gives once more what the old version has written meanwhile, so it must give the same, as
    its ``recount`` says. Of an old one in batches nothing waits to be written that the new one would have to know.
    """
    before, after = old.stages.get(name), new.stages[name]
    if before is None or outcome == "kept":
        return True
    return outcome == "refilled" and not before.realtime and after.recount == before.recount is not None


def shadow(context: StepContext) -> Reserved:
    """Give the new driver a copy of the old one's present state, and the word to run on that without writing.

    It finds both when it starts: what it reads warms it, and a warm-up before would be done twice.
    """
    store = context.ports.store
    told = jobs.told(store, context.job, context.launch)
    if told is not None and told.operation == context.operation.id:  # it may run there already
        return Reserved(deployment=context.number, launch=context.launch)
    attempt = f"{context.operation.id}-shadow-{context.operation.steps['shadow'].tries}"
    manifest = steps.export(context, attempt, live=True)[1]
    found = steps.install(context, context.version(), manifest, context.number, context.launch, settings(context))
    jobs.tell(store, context.job, context.launch, Control(command="shadow", operation=context.operation.id))
    return found


def look_shadow(context: StepContext) -> Health:
    """Whether the new version has read all there is."""
    store, before = context.ports.store, context.before.launch
    found = jobs.status(store, context.job, context.launch)
    running = jobs.status(store, context.job, before) if before else None
    every = context.version(context.before.version).definition.trigger
    every_s = milliseconds(every) / 1000 if every else 0.0
    return health.assess_shadow(found, context.launch, context.version().definition.stages, running, every_s)


def dismiss(context: StepContext) -> Dismissed:
    """End a driver that never wrote, and remove its copy of the state and its feeds; what runs is left alone."""
    facts = undo.dismiss(context)
    store = context.ports.store
    found = jobs.status(store, context.job, context.launch)
    if found is not None:  # one that starts later finds its dismissal, and makes nothing

        def look() -> bool:
            return health.assess_stop(jobs.status(store, context.job, context.launch), context.launch).done

        ended = context.until(look, LAST_WORD_S)
        context.say(f"Launch {context.launch}: {'ended' if ended else 'does not answer; it ends once it looks'}")
        facts = facts.model_copy(update={"ended": ended})
    _remove(context)
    return facts


def _remove(context: StepContext) -> None:
    """What only the new deployment had. Its record stays: numbers are never given again."""
    store, number, job = context.ports.store, context.number, context.job
    made = documents.find(store, keys.deployment(job, number), Deployment)
    if made is None or made.created_by != context.operation.id:
        return
    steps.drop_feeds(context, number)
    notes = [keys.feed(job, stage, number) for stage in made.stages]
    running = context.version(jobs.deployment(store, job, context.before.deployment).version).definition.stages
    for stage in made.stages:
        shadow = documents.find(store, keys.shadow(job, stage), Shadow)
        if shadow is None or shadow.deployment != number:
            continue
        notes.append(keys.shadow(job, stage))
        if stage not in running or not running[stage].realtime:  # nobody else gives results there
            steps.drop_results(context, stage)
    objects = [info.key for info in store.list(keys.checkpoints(job, number))]
    try:
        context.ports.retention().delete([*objects, *notes])
    except DeniedError as error:
        context.say(f"{len(objects):,} objects of deployment {number} stay: {error}")
        return
    context.say(f"Deployment {number}: {len(objects):,} objects of its copy of the state removed")


SHADOW = Step(
    "shadow",
    "prepare_shadow",
    "Give the new driver a copy of the present state to run on, without writing",
    shadow,
)
SHADOWED = Step(
    "shadowed",
    "wait_shadow",
    "Wait until it has read all there is",
    look=look_shadow,
    awaited="Shadow",
    within=lambda asked: max(SHADOW_S, asked.healthy_timeout_s),
)
