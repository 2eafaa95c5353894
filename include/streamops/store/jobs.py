"""The job record and what hangs on it: read together, changed conditionally."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from streamops.model.definitions import Definition, Kafka
from streamops.model.errors import DamagedError, NotFoundError, OvertakenError, RefusedError
from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.names import JOB_ID, checked
from streamops.model.records import (
    Control,
    Deployment,
    DriverStatus,
    JobRecord,
    Lease,
    Move,
    Offsets,
    ResultsPosition,
    StageStart,
)
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

T = TypeVar("T")


def names(store: ObjectStore) -> list[str]:
    """Every job of which the bucket holds anything: a record, a published version or a snapshot."""
    places = (keys.JOBS, keys.ARTIFACTS, keys.SNAPSHOTS)
    return sorted({name for place in places for name in keys.names_in(store.prefixes(place))})


def named(store: ObjectStore, text: str) -> str:
    """The job that has this name, or whose present deployment has this id. No server is asked for a name.

    Raises:
        NameRefusedError: it is neither a name nor an id.
        NotFoundError: no operation has this id.
        RefusedError: it is the id of what does not run any more, or of something else than a deployment.
    """
    if not JOB_ID.fullmatch(text):
        return checked("job", text)
    for job in names(store):
        if not store.exists(keys.operation(job, text)):
            continue
        found = record(store, job)
        now = deployment(store, job, found.deployment).created_by if found and found.deployment else "nothing"
        if now != text:
            raise RefusedError(f"{text} is not the id of what is deployed of {job} now: that is {now}.")
        return job
    raise NotFoundError(f"There is no job with the id {text}; 'streamops jobs' lists name and id of each.")


def record(store: ObjectStore, job: str) -> JobRecord | None:
    """The job record, or None: never deployed."""
    return documents.find(store, keys.record(job), JobRecord)


def change(store: ObjectStore, job: str, update: Mapping[str, object], fence: int) -> JobRecord:
    """Set fields of the record; setting them again changes nothing.

    Args:
        fence: of the job's operation lock, as the caller holds it.

    Raises:
        OvertakenError: who took the lock later has written, or claimed, the record.
        ConflictError: others kept changing it.
    """

    def changed(old: JobRecord | None) -> JobRecord:
        if old is not None and old.fence > fence:
            raise OvertakenError(
                f"The record of job {job} went to another operation (after {old.changed_by or 'none'}); "
                "this one goes no further."
            )
        return (old or JobRecord(job=job)).model_copy(update={**update, "fence": fence})

    return documents.update(store, keys.record(job), JobRecord, changed).value


def claim(store: ObjectStore, job: str, fence: int) -> None:
    """Shut out whoever held the lock before: nothing that is still on its way changes the record from here on."""
    if record(store, job) is not None:
        change(store, job, {}, fence)


def as_found(store: ObjectStore, job: str) -> JobRecord | None:
    """The job record as an operation finds it, with the number of every deployment that was ever begun taken.

    One that failed before the record named it leaves its number behind, and its objects with it; a job that was
    deleted leaves its lease, so that numbers and epochs never begin again under the same name.
    """
    found, granted = record(store, job), lease(store, job)
    begun = [info.key.removeprefix(keys.deployments(job)) for info in store.list(keys.deployments(job))]
    last = max((int(name.removesuffix(".json")) for name in begun), default=0)
    last = max(last, granted.deployment if granted else 0)
    if last <= (found.last_deployment if found else 0):
        return found
    return (found or JobRecord(job=job)).model_copy(update={"last_deployment": last})


def deployment(store: ObjectStore, job: str, number: int) -> Deployment:
    """A deployment record. Raises NotFoundError."""
    if found := documents.find(store, keys.deployment(job, number), Deployment):
        return found
    raise NotFoundError(f"Job {job} has no deployment {number}; deploy it first.")


def current(store: ObjectStore, job: str) -> Deployment:
    """The deployment that the job record names. Raises NotFoundError: the job was never deployed."""
    found = record(store, job)
    if found is None or not found.deployment:
        raise NotFoundError(f"Job {job} has never been deployed; 'streamops jobs' lists those that were.")
    return deployment(store, job, found.deployment)


def status(store: ObjectStore, job: str, launch: str) -> DriverStatus | None:
    """What the driver of a launch published last; nothing, where that cannot be read: a driver that lives says more."""
    try:
        return documents.find(store, keys.status(job, launch), DriverStatus)
    except DamagedError:
        return None


def lease(store: ObjectStore, job: str) -> Lease | None:
    """The job's lease."""
    return documents.find(store, keys.lease(job), Lease)


def tell(store: ObjectStore, job: str, launch: str, control: Control) -> bool:
    """Give a launch its word; False when it has that word already."""
    found = told(store, job, launch)
    if found and (found.command, found.operation) == (control.command, control.operation):
        return False
    sequence = found.sequence + 1 if found else 1
    documents.write(store, keys.control(job, launch), control.model_copy(update={"sequence": sequence}))
    return True


def told(store: ObjectStore, job: str, launch: str) -> Control | None:
    """The word that a launch has; None if it was not given any."""
    return documents.find(store, keys.control(job, launch), Control)


def next_epoch(store: ObjectStore, job: str, launch: str) -> int:
    """The epoch that a grant to ``launch`` gives, or gave already."""
    held = lease(store, job)
    if held is None:
        return 1
    return held.epoch if held.launch == launch else held.epoch + 1


def topics(definition: Definition, over: Mapping[str, str]) -> dict[str, str]:
    """Source to topic, maybe of a broker of its own; as set at deploy. Sources that are not topics are left out."""
    return {name: place for name, place in places(definition, over).items() if definition.sources[name].kafka}


def places(definition: Definition, over: Mapping[str, str]) -> dict[str, str]:
    """Source to topic, directory or URL, with what was set at deploy."""
    return {name: over.get(name, source.address) for name, source in definition.sources.items()}


def offset_keys(definition: Definition, over: Mapping[str, str]) -> dict[str, str]:
    """Source to the key under which Spark's offsets of it stand: the topic, or the source's own name."""
    found = places(definition, over)
    return {
        name: Kafka.at(found[name]).topic if source.kafka else found[name] if source.stage else name
        for name, source in definition.sources.items()
    }


def lasting(definition: Definition, offsets: Offsets) -> Offsets:
    """Offsets that mean the same in another deployment: those of a feed do not, each deployment has its own."""
    feeds = {name for name, source in definition.sources.items() if source.stage}
    return {source: parts for source, parts in offsets.items() if source not in feeds}


def starts(
    definition: Definition,
    number: int,
    manifest: Manifest | None,
    first: Callable[[str], Offsets],
    empty: Collection[str] = (),
    refilled: Mapping[str, StageStart] | None = None,
    renamed: Mapping[str, str] | None = None,
    moved: Mapping[str, Move] | None = None,
) -> dict[str, StageStart]:
    """From where the state of each stage counts in deployment ``number``.

    A stage that the snapshot holds keeps its start. A new one begins, per partition, at the lowest offset that any
    stage in the snapshot committed; a source that none of them read begins where the definition says.

    Args:
        first: a source's beginning by its definition, as offsets of that source.
        empty: stages whose state in the snapshot is not continued; each continues where it had read to.
        refilled: of those, the ones that begin elsewhere.
        renamed: stages that continue where the snapshot's stage of another name had read to.
        moved: sources that read another topic than the snapshot's stages did.
    """
    feeds = {name for name, source in definition.sources.items() if source.stage}
    stages = manifest.stages.items() if manifest else ()
    known = {name: _moved(stage, moved or {}, number, feeds) for name, stage in stages}
    sources = [name for name, source in definition.sources.items() if not source.stage]  # a feed starts over
    lowest: Offsets = {}
    for stage in known.values():
        for source, partitions in stage.offsets.items():
            place = lowest.setdefault(source, {})
            for partition, offset in partitions.items():
                place[partition] = min(place.get(partition, offset), offset)
    missing = [name for name in definition.stages if name not in known]
    if missing:
        for source in sources:
            if not lowest.get(source):
                lowest[source] = first(source).get(source, {})
    fresh = StageStart(since_deployment=number, offsets={source: lowest.get(source, {}) for source in sources})
    found = {name: known[name].start if name in known else fresh for name in definition.stages}
    stood = {name: known[name] for name in set(empty) & set(known) & set(found)}
    stood |= {name: known[old] for name, old in (renamed or {}).items()}
    for name, stage in stood.items():
        begun = stage.offsets if stage.batch >= 0 else stage.start.offsets
        read = {source: begun.get(source) or lowest.get(source, {}) for source in sources}
        found[name] = StageStart(since_deployment=number, offsets=read)
    return found | dict(refilled or {})


def _moved(stage: ManifestStage, moved: Mapping[str, Move], number: int, feeds: Collection[str]) -> ManifestStage:
    """A stage of a snapshot as it continues in other topics: only what it reads there can be read again.

    Args:
        feeds: sources that are what a stage hands on; who reads one is recounted from the topics behind it.
    """
    stands = stage.offsets if stage.batch >= 0 else stage.start.offsets
    through = stage.start.offsets if any(source in feeds for source in stands) else {}
    mine = {source: move for source, move in moved.items() if source in stands or source in through}
    if not mine:
        return stage
    stands = {**stands, **{source: dict(move.begin) for source, move in mine.items()}}
    own = {**through, **{source: at for source, at in stands.items() if source not in feeds}}
    before = {**stage.start.moved, **{source: move.before for source, move in mine.items()}}
    start = stage.start.model_copy(update={"since_deployment": number, "offsets": own, "moved": before})
    return stage.model_copy(update={"offsets": stands, "start": start})


def of_waiting_results(store: ObjectStore, job: str, stage: str, read: Callable[[ResultsPosition], T]) -> T | None:
    """What ``read`` makes of a stage's results that are not written yet; None if it never had any.

    The driver writes on meanwhile, and lets Kafka delete what is written: then it is read again, from the new position.

    Raises:
        NotFoundError: they are gone, and nobody has written them.
    """
    before = None
    while found := documents.find(store, keys.results(job, stage), ResultsPosition):
        try:
            return read(found)
        except NotFoundError:
            if found == before:
                raise
            before = found
    return None
