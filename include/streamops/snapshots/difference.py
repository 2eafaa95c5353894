"""Two snapshots side by side, from their manifests alone."""

from __future__ import annotations

from dataclasses import dataclass

from streamops.model.manifest import Manifest, ManifestStage
from streamops.model.records import Offsets


@dataclass(frozen=True)
class Side:
    """One stage in one snapshot; sizes in bytes. ``state_size`` leaves out logs of offsets and commits."""

    batch: int
    offsets: Offsets
    watermark_ms: int | None
    objects: int
    size: int
    state_size: int


@dataclass(frozen=True)
class StageDifference:
    """One stage in both; None where it is missing. ``events`` is how many more the second has read, by source."""

    stage: str
    first: Side | None
    second: Side | None
    events: dict[str, int]
    same_query: bool
    shared_objects: int
    shared_size: int


def diff(first: Manifest, second: Manifest) -> list[StageDifference]:
    """Every stage of either, in the order of the second."""
    names = list(dict.fromkeys([*second.stages, *first.stages]))
    return [_stage(name, first, second) for name in names]


def _stage(name: str, first: Manifest, second: Manifest) -> StageDifference:
    one, two = first.stages.get(name), second.stages.get(name)
    old = {(item.path, item.sha256): item.size for item in first.objects if item.stage == name}
    new = [(item.path, item.sha256) for item in second.objects if item.stage == name]
    same = [old[item] for item in new if item in old]
    return StageDifference(
        stage=name,
        first=_side(name, one, first) if one else None,
        second=_side(name, two, second) if two else None,
        events=_events(one.offsets, two.offsets) if one and two else {},
        same_query=bool(one and two and one.query_id == two.query_id),
        shared_objects=len(same),
        shared_size=sum(same),
    )


def _side(name: str, stage: ManifestStage, manifest: Manifest) -> Side:
    items = [item for item in manifest.objects if item.stage == name]
    state = sum(item.size for item in items if item.path.startswith("state/"))
    return Side(stage.batch, stage.offsets, stage.watermark_ms, len(items), sum(item.size for item in items), state)


def _events(one: Offsets, two: Offsets) -> dict[str, int]:
    return {
        source: sum(offset - one.get(source, {}).get(partition, 0) for partition, offset in partitions.items())
        for source, partitions in two.items()
        if source in one
    }
