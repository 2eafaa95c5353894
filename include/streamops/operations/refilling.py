"""Where the stages begin whose state is filled again from the ledger (``versions.refill`` says when that is done)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from streamops.model.definitions import milliseconds
from streamops.model.errors import RefusedError
from streamops.model.manifest import Manifest
from streamops.model.records import Offsets, StageStart
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
    """The start of each stage that is filled again, in deployment ``number``.

    An event is dated ``max_ahead`` after its record at most: all events of a time lie behind the first record that is
    not older than this much before it.

    Args:
        topics: source -> topic.

    Raises:
        RefusedError: the topic no longer holds what the stage needs.
    """
    return {
        stage: _start(ledger, version, stage, stood[stage], topics, number) for stage in sorted({*stages} & {*stood})
    }


def _start(
    ledger: LedgerPort, version: ArtifactManifest, stage: str, stood: Stood, topics: Mapping[str, str], number: int
) -> StageStart:
    definition = version.definition
    found = verdicts.known(version, {})[stage]
    reach = refill.reach_ms(found, verdicts.ledger(definition)) if found else None
    if reach is None or not stood.watermark_ms:  # nothing was finished yet: everything is read again
        return StageStart(since_deployment=number, offsets=stood.start.offsets)
    plan = refill.plan(stood.watermark_ms, reach, stands_at_end=definition.stages[stage].recount is not None)
    offsets: Offsets = {}
    for source, reached in stood.offsets.items():
        first_ms = plan.since_ms - milliseconds(definition.sources[source].max_ahead)
        at, kept = ledger.offsets_at(topics[source], first_ms), ledger.beginning_offsets(topics[source])
        began = stood.start.offsets.get(source, {})
        offsets[source] = {part: max(min(at.get(part, end), end), began.get(part, 0)) for part, end in reached.items()}
        if any(began.get(part, 0) < kept.get(part, 0) >= offset for part, offset in offsets[source].items()):
            raise RefusedError(
                f"Stage {stage} would be filled again from topic {topics[source]}, which no longer holds what it "
                "needs; give the changed stage another name, or let the topic keep its records longer."
            )
    return StageStart(since_deployment=number, offsets=offsets, whole_after_ms=plan.whole_after_ms)
