"""Verifying snapshots, and noting what was found: every byte of every object, compared with the signed manifest, and
the state itself, read by Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from streamops.model.errors import NotFoundError, SnapshotRefusedError
from streamops.model.manifest import Manifest, ManifestObject
from streamops.model.records import now
from streamops.snapshots import catalogue, integrity, marks, state
from streamops.snapshots.marks import Check, Checks, How
from streamops.spark import checkpoints
from streamops.store.object_store import ObjectStore

Say = Callable[[str], None]
FRESH = timedelta(days=7)  # a snapshot that was read back since then need not be read again


@dataclass(frozen=True)
class Found:
    """One wrong object, in words that name it."""

    item: ManifestObject
    problem: str


def read_back(store: ObjectStore, manifest: Manifest) -> list[Found]:
    """Read every object and compare; all that is wrong, in the manifest's order.

    Raises:
        UnreachableError: the object store does not answer, which says nothing about the snapshot.
    """
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        problems = pool.map(lambda item: integrity.read(store, item), manifest.objects)
        return [Found(item, wrong) for item, wrong in zip(manifest.objects, problems, strict=True) if wrong]


def _covered(store: ObjectStore, manifest: Manifest) -> str:
    """What someone did to objects since, in words; empty for nothing. It does no harm, but no one should do it."""
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        marked = zip(
            manifest.objects, pool.map(lambda item: integrity.is_covered(store, item), manifest.objects), strict=True
        )
        names = [item.key for item, covered in marked if covered]
    if not names:
        return ""
    others = f" and {len(names) - 1} more" if names[1:] else ""
    return f"{names[0]}{others} overwritten or deleted since; the snapshot's own versions are used"


def verify(store: ObjectStore, job: str, name: str, say: Say = lambda line: None) -> Check:
    """Read a snapshot back and note what was found.

    Raises:
        NotFoundError: there is no such snapshot.
        SnapshotRefusedError: its manifest is refused, or objects are wrong; the message names the first.
    """
    manifest = catalogue.load(store, job, name)
    began = time.monotonic()
    found = read_back(store, manifest)
    covered = _covered(store, manifest)
    check = Check(
        how="read back",
        when=now(),
        attempt=manifest.attempt,
        problem="; ".join(item.problem for item in found[:5]) + (f" and {len(found) - 5} more" if found[5:] else ""),
        objects=len(manifest.objects),
        size=manifest.size,
        seconds=round(time.monotonic() - began, 3),
        details=covered,
    )
    marks.note(store, job, name, check)
    if found:
        for item in found:
            say(f"{job}/{name}: {item.problem}")
        raise integrity.refusal(store, manifest, found[0].item, check.problem)
    if covered:
        say(f"{job}/{name}: {covered}")
    say(f"{job}/{name}: {check.objects} objects, {check.size:,} bytes read back in {check.seconds:.1f} s, all good")
    return check


def verify_state(store: ObjectStore, job: str, name: str, say: Say = lambda line: None) -> Check:
    """Let Spark read the state of every stage of a snapshot, count its rows, and note what was found.

    It finds what hashes cannot: state that was wrong already when the snapshot was taken.

    Raises:
        NotFoundError: there is no such snapshot.
        SnapshotRefusedError: its manifest is refused, an object is wrong, or Spark cannot read the state.
        RefusedError: there is no room here for a copy.
        UnhealthyError: local Spark does not work here, which says nothing about the snapshot.
    """
    manifest = catalogue.load(store, job, name)
    began = time.monotonic()
    stages = stateful(manifest)
    items = [item for item in manifest.objects if item.stage in stages]
    found, refused = state.Counts(counts=(), problems={}), None
    with state.private_directory() as directory:
        try:
            places = [state.bring_snapshot(store, manifest, stage, directory / stage) for stage in stages]
        except SnapshotRefusedError as error:
            refused = error
        else:
            found = state.count(places)
    problems = [f"the state of stage {stage} cannot be read: {text}" for stage, text in found.problems.items()]
    check = Check(
        how="state",
        when=now(),
        attempt=manifest.attempt,
        problem=str(refused) if refused else "; ".join(problems),
        objects=len(items),
        size=sum(item.size for item in items),
        seconds=round(time.monotonic() - began, 3),
        details=summary(found.counts) if stages else "no stage has state",
    )
    marks.note(store, job, name, check)
    if refused:
        raise refused
    for count in found.counts:
        where = f"{count.stage}, operator {count.operator} ({count.operator_name}), store {count.store}"
        variable = f", variable {count.variable}" if count.variable else ""
        say(f"{job}/{name}: {where}{variable}, partition {count.partition}: {count.rows:,} rows")
    if problems:
        raise SnapshotRefusedError(
            f"Snapshot {job}/{name}: {check.problem}; nothing was touched, use another snapshot."
        )
    say(f"{job}/{name}: state read in {check.seconds:.1f} s, {check.details}")
    return check


def stateful(manifest: Manifest) -> list[str]:
    """The stages of a snapshot that hold state."""
    held = {item.stage for item in manifest.objects if item.path.startswith("state/")}
    return [stage for stage in manifest.stages if stage in held]


def summary(counts: Iterable[state.Count]) -> str:
    """Rows by stage, in one line."""
    rows: dict[str, int] = {}
    for count in counts:
        rows[count.stage] = rows.get(count.stage, 0) + count.rows
    return ", ".join(f"{stage} {number:,} rows" for stage, number in rows.items())


def wanted(
    known: Iterable[tuple[Manifest, Checks]], moment: datetime, fresh: timedelta = FRESH, how: How = "read back"
) -> list[Manifest]:
    """Which snapshots to verify now: those that were not for a while, the longest first; never verified comes first."""
    ranked = []
    for manifest, checks in known:
        last = max((check.when for check in checks.checks.values() if check.how == how), default=None)
        if last is None or moment - last >= fresh:
            ranked.append((last.timestamp() if last else 0.0, manifest.created, manifest))
    return [manifest for _, _, manifest in sorted(ranked, key=lambda item: item[:2])]


def verify_due(
    store: ObjectStore,
    jobs: Iterable[str],
    moment: datetime,
    fresh: timedelta = FRESH,
    say: Say = lambda line: None,
    *,
    with_state: bool = False,
) -> list[str]:
    """Read back every snapshot whose turn it is; one that is wrong does not stop the others.

    Args:
        with_state: also let Spark read the state of those whose state was not read since then.

    Returns:
        What was found wrong; empty when all was well.
    """
    wrong = []
    for job in jobs:
        entries = catalogue.entries(store, job)
        wrong += [f"{job}/{entry.name}: {entry.refused}" for entry in entries if entry.manifest is None]
        manifests = [entry.manifest for entry in entries if entry.manifest]
        known = [(item, marks.checks(store, job, item.name, item.attempt)) for item in manifests]
        damaged = set()
        for manifest in wanted(known, moment, fresh):
            try:
                verify(store, job, manifest.name, say)
            except NotFoundError:
                continue  # removed meanwhile
            except SnapshotRefusedError as error:
                wrong.append(str(error))
                damaged.add(manifest.name)
        for manifest in wanted(known, moment, fresh, "state") if with_state else ():
            if manifest.name in damaged:
                continue  # that is known, and Spark's words for it are worse
            try:
                verify_state(store, job, manifest.name, say)
            except NotFoundError:
                continue
            except SnapshotRefusedError as error:
                wrong.append(str(error))
    return wrong
