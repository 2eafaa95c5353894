"""Points that a sink refused: put aside with the reason, so that one of them does not stop a job.

They can be listed, exported, and written again after a correction. Putting the same points aside again, as a batch
that is run again does, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from streamops.model.errors import ConflictError
from streamops.model.records import RefusedPoint, RefusedPoints, now
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore


def point(
    measurement: str, tags: Mapping[str, str], fields: Mapping[str, float | int | str], time_ms: int, reason: str
) -> RefusedPoint:
    """A point with its id."""
    what = [measurement, sorted(tags.items()), sorted((name, str(value)) for name, value in fields.items()), time_ms]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    return RefusedPoint(
        id=digest, measurement=measurement, tags=dict(tags), fields=dict(fields), time_ms=time_ms, reason=reason
    )


def put(store: ObjectStore, job: str, stage: str, version: str, points: Sequence[RefusedPoint]) -> None:
    """Put points of a stage aside. Raises UnreachableError."""
    digest = hashlib.sha256("".join(item.id for item in points).encode()).hexdigest()[:32]
    found = RefusedPoints(job=job, stage=stage, version=version, at=now(), points=tuple(points))
    try:
        documents.write(store, keys.refused(job, stage, digest), found, new=True)
    except ConflictError:
        return  # the same points, put aside before


def read(store: ObjectStore, job: str) -> Iterator[tuple[RefusedPoints, RefusedPoint]]:
    """Each point that is put aside once, with those that were refused together with it; oldest first."""
    groups = documents.every(store, keys.quarantine(job), RefusedPoints)
    seen: set[str] = set()
    for group in sorted(groups, key=lambda item: item.at):
        for item in group.points:
            if item.id not in seen:
                seen.add(item.id)
                yield group, item


def remove(store: ObjectStore, job: str, ids: Collection[str]) -> int:
    """Forget points; how many there were."""
    gone = {item.id for _, item in read(store, job)} & set(ids)
    for info in store.list(keys.quarantine(job)):
        found = documents.read(store, info.key, RefusedPoints)
        if found is None or not gone & {item.id for item in found.value.points}:
            continue
        left = tuple(item for item in found.value.points if item.id not in gone)
        # Without points it stays, as a record that there were some: only retention may remove objects.
        documents.write(store, info.key, found.value.model_copy(update={"points": left}), over=found.etag)
    return len(gone)
