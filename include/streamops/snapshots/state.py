"""Reading the state of a stage: by key, or only how many rows there are.

Spark's own state data source reads it, on local Spark in a process of its own: the core stays free of it. What it
needs of one checkpoint, or of one stage of a snapshot, is brought into a private directory that is removed afterwards.
Nothing is written to the bucket, and a running query is not disturbed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from streamops.model.errors import CheckpointError, RefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.snapshots import integrity
from streamops.spark import checkpoints, local_spark
from streamops.store import keys
from streamops.store.object_store import ObjectStore

READ_S = 1800  # local Spark's time for one answer; a store of some gigabytes takes minutes
_NEEDED = ("metadata", "commits/", "offsets/", "state/")  # sources/ only matters to a query


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Place(_Model):
    """A stage's checkpoint on this machine, after ``batch``; ``partitions`` is in how many its state lies."""

    stage: str
    directory: str
    batch: int
    partitions: int


class StateStore(_Model):
    """One state store of a stage, in the words of Spark's ``state-metadata``.

    ``variables`` are the state variables of transformWithState, each of which is read by its name.
    """

    operator: int
    operator_name: str
    name: str
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        variables = f", --variable {' or '.join(self.variables)}" if self.variables else ""
        return f"--operator {self.operator} --store {self.name} ({self.operator_name}){variables}"


class Choice(_Model):
    """Which rows of a stage's state are wanted. ``keys`` are pairs of a key column and its value as text."""

    operator: int = 0
    store: str = "default"
    variable: str | None = None
    keys: tuple[tuple[str, str], ...] = ()
    limit: int = 20


class Query(_Model):
    """What the reading process is asked: rows of the one place, how two differ, or how many rows all places hold."""

    kind: Literal["rows", "differences", "count"]
    places: tuple[Place, ...]
    choice: Choice = Choice()


class Found(_Model):
    """Rows of one state store; ``total`` is how many match, of which ``rows`` are the first by key.

    Each row is a mapping with ``key``, ``value`` (or what a state variable has instead) and ``partition``.
    """

    store: StateStore
    variable: str | None = None
    total: int
    rows: tuple[dict[str, Any], ...]

    @property
    def more(self) -> int:
        """How many match and are not among the rows."""
        return self.total - len(self.rows)


class Differences(_Model):
    """Two states of one store by key: ``equal`` keys have the same in both, ``changed`` ones not.

    Each row is a mapping with ``key`` and what either has for it under ``first`` and ``second``: None, or a list with
    each thing that the store keeps for the key, without the partition, which says nothing about the state.
    """

    store: StateStore
    variable: str | None = None
    equal: int
    changed: int
    only_first: int
    only_second: int
    rows: tuple[dict[str, Any], ...]

    @property
    def differing(self) -> int:
        """Keys that are not the same in both."""
        return self.changed + self.only_first + self.only_second


class Count(_Model):
    """How many rows one partition of a state store (or of one of its variables) holds."""

    stage: str
    operator: int
    operator_name: str
    store: str
    variable: str | None = None
    partition: int
    rows: int


class Counts(_Model):
    """What was counted, and what is wrong with the stages that could not be read, by stage."""

    counts: tuple[Count, ...]
    problems: dict[str, str]


def choose(stores: Sequence[StateStore], choice: Choice) -> StateStore:
    """The state store that was asked for. Raises RefusedError, with all that there are."""
    found = next((item for item in stores if (item.operator, item.name) == (choice.operator, choice.store)), None)
    wrong = ""
    if found is None:
        wrong = f"There is no store {choice.store!r} of operator {choice.operator}"
    elif found.variables and choice.variable is None:
        wrong = f"Operator {choice.operator} keeps its state in variables"
    elif choice.variable is not None and choice.variable not in found.variables:
        wrong = f"Operator {choice.operator} has no state variable {choice.variable!r}"
    if found is None or wrong:
        raise RefusedError(f"{wrong}; choose {'; or '.join(map(str, stores))}.")
    return found


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can read, gone afterwards: state may hold anything that events hold."""
    with tempfile.TemporaryDirectory(prefix="streamops-state-") as name:
        yield Path(name)


def bring_live(store: ObjectStore, job: str, deployment: int, stage: str, into: Path) -> Place:
    """The last committed batch of a deployment's stage; its query may run on.

    Raises:
        CheckpointError: no batch is committed, or the checkpoint cannot be read.
        RefusedError: the stage is stateless, or there is no room.
    """
    epoch = checkpoints.current_epoch(store, job, deployment)
    if epoch is None:
        raise CheckpointError(f"Deployment {deployment} of {job} has no checkpoint yet; wait until it is healthy.")
    prefix = keys.stage(job, deployment, epoch, stage)

    def brought() -> Place:
        tail = checkpoints.tail(store, prefix)
        wanted = {tail.path(info): info for info in tail.objects if tail.path(info).startswith(_NEEDED)}
        _require_state(wanted, f"{job}/{stage}")
        _require_room(into, sum(info.size for info in wanted.values()))
        shutil.rmtree(into, ignore_errors=True)
        _bring(wanted, into, lambda path, target: _fetch(store, prefix + path, target))
        return _place(stage, into, tail.batch)

    return checkpoints.persist(brought, f"{prefix} changes faster than it can be read")


def bring_snapshot(store: ObjectStore, manifest: Manifest, stage: str, into: Path) -> Place:
    """One stage of a snapshot, each object in the version and with the hash that the signed manifest names.

    Raises:
        SnapshotRefusedError: an object is missing or altered.
        CheckpointError: the stage had no committed batch.
        RefusedError: the snapshot has no such stage, the stage is stateless, or there is no room.
    """
    described = manifest.stages.get(stage)
    name = f"{manifest.job}/{manifest.name}"
    if described is None:
        raise RefusedError(f"Snapshot {name} has no stage {stage!r}; it has {', '.join(manifest.stages)}.")
    if described.batch < 0:
        raise CheckpointError(f"Stage {stage} had no committed batch when snapshot {name} was taken.")
    items = {item.path: item for item in manifest.objects if item.stage == stage and item.path.startswith(_NEEDED)}
    _require_state(items, f"{stage} of snapshot {name}")
    _require_room(into, sum(item.size for item in items.values()))

    def fetch(path: str, target: Path) -> None:
        with target.open("wb") as file:
            wrong = integrity.read(store, items[path], file.write)
        if wrong:
            raise integrity.refusal(store, manifest, items[path], wrong)

    _bring(items, into, fetch)
    return _place(stage, into, described.batch)


def rows(place: Place, choice: Choice) -> Found:
    """Rows of one state store, with local Spark.

    Raises:
        RefusedError: there is no such store or key column; says what there is.
        CheckpointError: Spark cannot read the state.
        UnhealthyError: local Spark does not work here.
    """
    head, found = _rows_of(Query(kind="rows", places=(place,), choice=choice))
    return Found(store=head["store"], variable=choice.variable, total=head["total"], rows=found)


def differences(first: Place, second: Place, choice: Choice) -> Differences:
    """Two states of one stage compared by key, with local Spark.

    Raises:
        RefusedError: one of them has no such store or key column; says what there is.
        CheckpointError: Spark cannot read the state.
        UnhealthyError: local Spark does not work here.
    """
    head, found = _rows_of(Query(kind="differences", places=(first, second), choice=choice))
    return Differences(**head, variable=choice.variable, rows=found)


def _rows_of(query: Query) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    answers = _ask(query)
    for answer in answers:
        if "refused" in answer:
            raise RefusedError(str(answer["refused"]))
        if "problem" in answer:
            raise CheckpointError(f"The state of stage {query.places[0].stage} cannot be read: {answer['problem']}")
    head = next(answer for answer in answers if "store" in answer)
    return head, tuple(answer["row"] for answer in answers if "row" in answer)


def count(places: Sequence[Place]) -> Counts:
    """How many rows each partition of each state store holds; one process of local Spark reads every row of all.

    Raises:
        UnhealthyError: local Spark does not work here, which says nothing about the state.
    """
    answers = _ask(Query(kind="count", places=tuple(places))) if places else []
    return Counts(
        counts=tuple(Count.model_validate(answer["count"]) for answer in answers if "count" in answer),
        problems={str(answer["stage"]): str(answer["problem"]) for answer in answers if "problem" in answer},
    )


def partitions_of(commit: str) -> int:
    """In how many partitions state lies, from the text of an entry of the commit log; 0 without state."""
    ids = json.loads(commit.split("\n", 1)[1]).get("stateUniqueIds") or {}
    return max((len(partitions) for partitions in ids.values()), default=0)


def _place(stage: str, directory: Path, batch: int) -> Place:
    partitions = partitions_of((directory / "commits" / str(batch)).read_text())
    return Place(stage=stage, directory=str(directory), batch=batch, partitions=partitions)


def _require_state(paths: Iterable[str], what: str) -> None:
    if not any(path.startswith("state/") for path in paths):
        raise RefusedError(f"{what} is stateless: it keeps nothing between its batches.")


def _require_room(directory: Path, size: int) -> None:
    """Local Spark unpacks a copy of its own, so three times the size leaves room for others."""
    place = next(parent for parent in (directory, *directory.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < 3 * size:
        raise RefusedError(
            f"The state takes {size:,} bytes and {place} has {free:,} free; three times the size must be "
            "free. Make room, or set TMPDIR to a larger place."
        )


def _bring(paths: Iterable[str], into: Path, fetch: Callable[[str, Path], object]) -> None:
    places = {path: into / path for path in paths}
    for path, place in places.items():
        if not place.resolve().is_relative_to(into.resolve()):
            raise CheckpointError(f"{path} is no path inside a checkpoint.")
        place.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        for _ in pool.map(fetch, places.keys(), places.values()):
            pass


def _fetch(store: ObjectStore, key: str, target: Path) -> None:
    """Write an object to a file. Raises NotFoundError."""
    with target.open("wb") as file:
        file.writelines(store.chunks(key))


def _ask(query: Query) -> list[dict[str, Any]]:
    """Every line that the reading process answered; the last one says that it is complete."""
    try:
        asked = local_spark.ask("state", query.model_dump_json(), timeout_s=READ_S, gives_way=True)
    except TimeoutError:
        raise UnhealthyError(
            f"Local Spark took longer than {READ_S} s to read the state; try on a free machine."
        ) from None
    if not asked.answers or "done" not in asked.answers[-1]:
        raise UnhealthyError(f"Local Spark could not read the state (exit code {asked.code}): {asked.error}")
    return asked.answers
