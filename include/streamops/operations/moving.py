"""Sources that read another topic than before: when a job may continue there, and from which offset.

What a stage had read of a topic means nothing in another one. So it continues only once it has read the topic before to
its end, and only from an offset that someone states: from then on, both together are what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from streamops.model.definitions import Definition, Kafka
from streamops.model.errors import NotFoundError, RefusedError, UnreachableError
from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.records import Deployment, Move, Offsets
from streamops.operations import cost
from streamops.operations.ports import LedgerPort
from streamops.recount.report import moment
from streamops.spark.checkpoints import Tail
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, fingerprints
from streamops.versions.fingerprints import Fingerprint

_HOW = "earliest, latest, or an offset for each partition such as 0:120,1:340"
_FEW = 1000  # records of which is looked whether they are events


def taken_of(store: ObjectStore, manifest: Manifest) -> tuple[Definition, dict[str, str]] | None:
    """The version that a snapshot was taken of, and where it read by what was set at deploy; None if not known here."""
    found = documents.find(store, keys.deployment(manifest.job, manifest.deployment), Deployment)
    if found is None or found.artifact_sha256 != manifest.artifact_sha256:  # it came from another installation
        return None
    return artifacts.load_manifest(store, manifest.job, manifest.version).definition, found.topics


def of_snapshot(manifest: Manifest) -> dict[str, Offsets]:
    """Where the stages of a snapshot stood: the next offsets to read."""
    stood = {stage: cost.begins(manifest, stage) for stage in manifest.stages}
    return of_read(stood, fingerprints.read(manifest.fingerprints, manifest.stages))


def of_read(stood: Mapping[str, Offsets], plans: Mapping[str, Fingerprint | None]) -> dict[str, Offsets]:
    """``stood`` without what a stage does not read: one without a commit was given a start in every topic."""
    return {
        stage: {s: at for s, at in offsets.items() if s in plan.sources} if (plan := plans.get(stage)) else offsets
        for stage, offsets in stood.items()
    }


def closed_in(manifest: Manifest) -> dict[str, int]:
    """As ``closed``, of a snapshot."""
    return closed(manifest.stages, fingerprints.read(manifest.fingerprints, manifest.stages))


def closed(stages: Mapping[str, Tail | ManifestStage], plans: Mapping[str, Fingerprint | None]) -> dict[str, int]:
    """Stage -> the time, since the epoch, up to which it drops events as late."""
    return {
        stage: found.watermark_ms
        for stage, found in stages.items()
        if found.watermark_ms is not None and ((plan := plans.get(stage)) is None or plan.stateful)
    }


def find(
    ledger: LedgerPort,
    before: Mapping[str, str],
    after: Mapping[str, str],
    stood: Mapping[str, Offsets],
    start_at: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Move]:
    """The sources that read another topic than before, each with where it begins there.

    Args:
        before, after: source -> topic.
        stood: stage -> the next offsets to read.
        start_at: source -> the offset that is asked for.

    Raises:
        RefusedError: it is not said where a source begins, or that is no offset of the topic.
        NotFoundError, UnreachableError: the topic is not there.
    """
    read = {source for offsets in stood.values() for source in offsets}
    moved = {source: topic for source, topic in after.items() if before.get(source, topic) != topic and source in read}
    for source in start_at.keys() - moved.keys():
        say(f"Where source {source} is to start is not used: it reads the same topic as before, and continues there")
    return {
        source: Move(before=before[source], after=topic, begin=_begin(ledger, source, topic, start_at.get(source)))
        for source, topic in moved.items()
    }


def _begin(ledger: LedgerPort, source: str, topic: str, asked: str | None) -> dict[str, int]:
    first, end = dict(ledger.beginning_offsets(topic)), dict(ledger.end_offsets(topic))
    if asked in ("earliest", "latest"):
        return first if asked == "earliest" else end
    if asked is None:
        raise RefusedError(
            f"Source {source} is to read topic {topic}, where its present place means nothing; say where it begins "
            f"there (start_at, {source}: {_HOW})."
        )
    try:
        begin = {part: int(offset) for part, offset in (pair.split(":") for pair in asked.split(","))}
    except ValueError:
        raise RefusedError(f"start_at of source {source}: {asked!r} is not {_HOW}.") from None
    if begin.keys() != first.keys() or any(not first[part] <= at <= end[part] for part, at in begin.items()):
        there = ", ".join(f"{part}: {first[part]} to {end[part]}" for part in sorted(first, key=int))
        raise RefusedError(f"start_at of source {source}: topic {topic} holds, by partition, {there}; not {asked}.")
    return begin


def require_ready(
    ledger: LedgerPort,
    moved: Mapping[str, Move],
    stood: Mapping[str, Offsets],
    closed: Mapping[str, int],
    accepted: Collection[str],
    say: Callable[[str], None],
) -> None:
    """Make sure that continuing in other topics loses no event: of the topics before, and of those after.

    Args:
        stood: stage -> the next offsets to read.
        closed: stage -> the time up to which it drops events as late, as ``closed`` says.
        accepted: stages that may leave events out.

    Raises:
        RefusedError: a stage would leave events out, or nobody can say whether it would.
    """
    _require_drained(ledger, moved, stood, accepted, say)
    _require_in_time(ledger, moved, stood, closed, accepted)


def _require_drained(
    ledger: LedgerPort,
    moved: Mapping[str, Move],
    stood: Mapping[str, Offsets],
    accepted: Collection[str],
    say: Callable[[str], None],
) -> None:
    """Make sure that nothing is left to read of the topics before.

    Args:
        accepted: stages that may leave the rest out.

    Raises:
        RefusedError: a stage has not read a topic to its end, or nobody can say whether it has.
    """
    for source, move in moved.items():
        try:
            end: Mapping[str, int] | None = ledger.end_offsets(move.before)
        except (NotFoundError, UnreachableError) as error:
            end, why = None, str(error)
        for stage, offsets in stood.items():
            if source not in offsets:
                continue
            left = None if end is None else _left(ledger, move.before, offsets[source], end)
            if left == 0:
                say(f"Stage {stage} has read topic {move.before} to its end, and continues in {move.after}")
            elif stage in accepted:
                rest = "what is left" if left is None else f"{left:,} events"
                say(f"Stage {stage} leaves out {rest} of {move.before}, as was accepted")
            elif left is None:
                raise RefusedError(
                    f"Stage {stage} is to continue in topic {move.after}, and whether it has read {move.before} to its "
                    f"end cannot be seen: {why} To accept that the rest is left out, name the stage in accept_loss."
                )
            else:
                raise RefusedError(
                    f"Stage {stage} has {left:,} events of topic {move.before} to read before it can continue in "
                    f"{move.after}. Let what writes there write to {move.after} now, and upgrade once its lag is 0; "
                    "or name the stage in accept_loss, to leave them out."
                )


def _left(ledger: LedgerPort, topic: str, start: Mapping[str, int], end: Mapping[str, int]) -> int:
    """Events to read. In real time a stage stands behind the last one, before what only marks a transaction's end."""
    left = sum(max(0, at - start.get(part, 0)) for part, at in end.items())
    if 0 < left <= _FEW:
        with suppress(NotFoundError):  # retention has removed some of them
            left = sum(1 for _ in ledger.read(topic, start, end))
    return left


def _require_in_time(
    ledger: LedgerPort,
    moved: Mapping[str, Move],
    stood: Mapping[str, Offsets],
    closed: Mapping[str, int],
    accepted: Collection[str],
) -> None:
    """Make sure that no stage drops the first events of a topic as late: producers that changed early wrote them.

    The times of records stand for those of their events.

    Args:
        closed: stage -> the time up to which it drops events as late, as ``closed`` says.
        accepted: stages that may leave them out.

    Raises:
        RefusedError: a stage would leave events out.
    """
    for source, move in moved.items():
        for stage in (name for name, offsets in stood.items() if source in offsets and name not in accepted):
            if stage not in closed:
                continue
            at = ledger.offsets_at(move.after, closed[stage])
            if late := sum(max(0, at.get(part, first) - first) for part, first in move.begin.items()):
                raise RefusedError(
                    f"Stage {stage} would leave out {late:,} events of topic {move.after} as late: they were written "
                    f"before {moment(closed[stage]):%Y-%m-%dT%H:%M:%SZ}, up to which it is done by the events of "
                    f"{move.before}. All producers must change within the watermark's delay; begin later (start_at), "
                    "or name the stage in accept_loss."
                )


def places(moved: Mapping[str, Move]) -> dict[str, dict[str, dict[str, int]]]:
    """As checkpoints say it: source -> topic -> partition -> offset."""
    return {source: {Kafka.at(move.after).topic: move.begin} for source, move in moved.items()}


def refuse_past(manifest: Manifest, then: Mapping[str, str], present: Deployment, now: Mapping[str, str]) -> None:
    """Refuse to go back to before a source continued in another topic: what was read there since would be left out.

    Args:
        then, now: source -> topic, of the version in the snapshot and of ``present``, which runs.

    Raises:
        RefusedError: with the two ways that there are.
    """
    later = [start for start in present.stages.values() if start.since_deployment > manifest.deployment]
    for source, topic in then.items():
        reads = now.get(source)  # the present version may have dropped it
        if (reads or topic) != topic or any(source in start.moved for start in later):
            with_it = f"with topics {source}={reads} and start_at to read that, or " if reads else ""
            raise RefusedError(
                f"Source {source} read {topic} when snapshot {manifest.name} was taken, and another topic since (now "
                f"{reads or 'none'}): {manifest.version} would not read what came there. Cancel the job, and deploy "
                f"{manifest.version} from the snapshot (deploy_job with from_snapshot): {with_it}with topics "
                f"{source}={topic} to do without."
            )
