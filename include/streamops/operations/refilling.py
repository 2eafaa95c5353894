"""Where the stages begin whose state is filled again from the ledger (``versions.refill`` says when that is done)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

from streamops.model.definitions import milliseconds
from streamops.model.errors import RefusedError
from streamops.model.manifest import Manifest
from streamops.model.records import Offsets, StageStart, now
from streamops.operations.ports import LedgerPort
from streamops.versions import refill, verdicts
from streamops.versions.artifacts import ArtifactManifest


@dataclass(frozen=True)
class Stood:
    """Where a stage of the version before stands, or stood in a snapshot."""

    offsets: Offsets  # the next to read
    watermark_ms: int | None
    start: StageStart


def of_snapshot(manifest: Manifest) -> dict[str, Stood]:
    """Where the stages of a snapshot stood."""
    return {name: Stood(stage.offsets, stage.watermark_ms, stage.start) for name, stage in manifest.stages.items()}


def starts(
    ledger: LedgerPort,
    version: ArtifactManifest,
    stages: Collection[str],
    stood: Mapping[str, Stood],
    topics: Mapping[str, str],
    number: int = 0,
) -> dict[str, StageStart]:
    """The start of each stage that is filled from the ledger, in deployment ``number``, and of those that these read.

    One that the version before has is filled again from where its results were finished; a new one from ``fill`` before
    that of the others.

    An event is dated ``max_ahead`` after its record at most: all events of a time lie behind the first record that is
    not older than this much before it.

    Args:
        topics: source -> topic.

    Raises:
        RefusedError: the topic no longer holds what the stage needs.
    """
    known = verdicts.known(version, {})
    reads = {stage: set(found.reads) if found else set() for stage, found in known.items()}
    order = list(TopologicalSorter(reads).static_order())
    marks = [found.watermark_ms for found in stood.values() if found.watermark_ms]
    others_ms = min(marks, default=int(now().timestamp() * 1000))
    plans: dict[str, refill.Refill] = {}
    needed: dict[str, int] = {}  # stage -> all results after this time are needed, since the epoch
    for stage in reversed(order):  # a stage before those that it reads
        found, before = known[stage], stood.get(stage)
        reach = refill.reach_ms(found, verdicts.ledger(version.definition)) if found else None
        finished = [needed[stage]] if stage in needed else []
        fill = version.definition.stages[stage].fill
        if stage in stages:
            finished.append((before.watermark_ms or 0) if before else others_ms - milliseconds(fill or "0 seconds"))
        if not finished or not reach or not found or (stage in stood and stage not in stages):
            continue
        at_end = version.definition.stages[stage].recount is not None
        plans[stage] = refill.plan(min(finished), reach, stands_at_end=at_end)
        for read in found.reads:
            needed[read] = min(needed.get(read, plans[stage].since_ms), plans[stage].since_ms)
    made: dict[str, StageStart] = {}
    for stage in (stage for stage in order if stage in plans):
        found = known[stage]
        read_from = [source for source in found.sources if source in topics] if found else []
        offsets = _offsets(ledger, version, stage, read_from, plans[stage], stood.get(stage), topics)
        for read in sorted(reads[stage] & {*made}):
            offsets = {**made[read].offsets, **offsets}
        whole_after_ms = plans[stage].whole_after_ms
        made[stage] = StageStart(
            since_deployment=number,
            offsets=offsets,
            whole_after_ms=whole_after_ms if whole_after_ms > 0 else None,
            filled_to_ms=others_ms if version.definition.stages[stage].fill and stage not in stood else None,
        )
    return made


def _offsets(
    ledger: LedgerPort,
    version: ArtifactManifest,
    stage: str,
    sources: Iterable[str],
    plan: refill.Refill,
    before: Stood | None,
    topics: Mapping[str, str],
) -> Offsets:
    """Where a stage begins to read its topics."""
    offsets: Offsets = {}
    for source in sources:
        first_ms = max(0, plan.since_ms - milliseconds(version.definition.sources[source].max_ahead))
        at, kept = ledger.offsets_at(topics[source], first_ms), ledger.beginning_offsets(topics[source])
        began = before.start.offsets.get(source, {}) if before else {}
        reached = (before.offsets.get(source) if before else None) or at
        offsets[source] = {part: max(min(at.get(part, end), end), began.get(part, 0)) for part, end in reached.items()}
        everything = plan.whole_after_ms <= 0
        if not everything and any(began.get(p, 0) < kept.get(p, 0) >= at for p, at in offsets[source].items()):
            if not before:
                raise RefusedError(
                    f"Stage {stage} would begin {version.definition.stages[stage].fill} before the others (fill), "
                    f"which topic {topics[source]} no longer holds; publish a version with a shorter time, or let the "
                    "topic keep its records longer."
                )
            raise RefusedError(
                f"Stage {stage} would be filled again from topic {topics[source]}, which no longer holds what it "
                "needs; give the changed stage another name, or let the topic keep its records longer."
            )
    return offsets
