"""What going back to a snapshot costs, said before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from streamops.model.definitions import Definition
from streamops.model.manifest import Manifest
from streamops.model.records import Offsets, distance
from streamops.model.stored import Part
from streamops.recount.report import moment
from streamops.store import jobs


class Cost(Part):
    """The price of continuing from a snapshot instead of from where the job stands.

    ``again``: stage -> events that are processed a second time. ``first``: stage -> events that came since the
    snapshot and that the present version had no such stage for. ``rewritten``: measurement -> results after this time
    are written again, with the same keys; None: all of them. ``frozen``: measurements that no one writes any more.
    ``stands``: where each stage of the present version stands.
    ``exact`` is False when the present position cannot be read, and the end of the ledger stands for it.
    """

    snapshot: str
    taken: datetime
    version: str
    deployment: int
    again: dict[str, int] = {}
    first: dict[str, int] = {}
    rewritten: dict[str, datetime | None] = {}
    frozen: tuple[str, ...] = ()
    stands: dict[str, Offsets] = {}
    exact: bool = True


def begins(manifest: Manifest, stage: str) -> Offsets:
    """Where a stage continues from a snapshot; one without a commit there, where its state began."""
    found = manifest.stages[stage]
    return found.offsets if found.batch >= 0 else found.start.offsets


def cost(
    manifest: Manifest,
    target: Definition,
    present: Definition,
    stands: Mapping[str, Offsets],
    ends: Offsets,
    *,
    exact: bool = True,
) -> Cost:
    """Compare a snapshot with where a job stands.

    Args:
        target: the version that continues from the snapshot.
        present: the version that the job has now.
        stands: stage -> offsets that the present version has committed; what is missing counts to the end.
        ends: the ends of the topics, by source.
    """
    again, first, rewritten = {}, {}, {}
    for name, stage in target.stages.items():
        if name not in manifest.stages:
            continue
        start = jobs.lasting(target, begins(manifest, name))
        if name in present.stages:
            again[name] = distance(start, stands.get(name, ends))
        else:
            first[name] = distance(start, ends)
        for sink in stage.influx_sinks if name in present.stages else ():
            mark = manifest.stages[name].watermark_ms
            rewritten[sink.measurement] = None if mark is None else moment(mark)
    written = set(target.measurements)
    return Cost(
        snapshot=f"{manifest.job}/{manifest.name}",
        taken=manifest.created,
        version=manifest.version,
        deployment=manifest.deployment,
        again=again,
        first=first,
        rewritten=rewritten,
        frozen=tuple(name for name in present.measurements if name not in written),
        stands=dict(stands),
        exact=exact,
    )


def lines(found: Cost) -> Iterator[str]:
    """The cost in words."""
    yield (
        f"Going back to snapshot {found.snapshot}, taken {_when(found.taken)} of {found.version} "
        f"(deployment {found.deployment})"
    )
    most = "" if found.exact else "up to "
    for stage, events in found.again.items():
        yield f"{stage} processes {most}{events:,} events again"
    for stage, events in found.first.items():
        yield f"{stage} processes {events:,} events that came since, for the first time"
    for measurement, since in found.rewritten.items():
        part = "all results" if since is None else f"results after {_when(since)}"
        yield f"{part} in {measurement} are written again, over the same points"
    if found.frozen:
        yield f"results in {', '.join(found.frozen)} stay as they are, and nothing is added to them"


def _when(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
