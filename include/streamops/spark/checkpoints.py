"""Spark's checkpoint directories: what of one is needed to continue, and copying exactly that.

The only module that knows Spark's layout (4.2, offset log version 2, RocksDB with changelog checkpointing, state
format version 2):

- ``commits/N`` exists once batch N is complete; it names, for each operator and partition, the unique id of the state
  version N+1 that the batch produced. ``offsets/N+1`` may exist before that, and is never copied: with it Spark 4.2
  does not even start again (``OfflineStateRepartitionUtils.isRepartitionBatch`` fails on this offset log version).
- ``state/OP/PARTITION[/STORE]/V_ID.changelog`` is what version V changed; ``V_ID.zip`` is a full version, whose content
  lies in ``SSTs/`` beside it and is shared between versions. Every file has a ``.crc`` sidecar.

So the state after batch N is the newest full version at or below N+1, and each changelog after it. The ids in
``commits/`` tell which of several files of one version counts: a task that ran twice leaves two.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from streamops.model.errors import CheckpointError, NotFoundError
from streamops.model.records import Offsets, now
from streamops.store import keys
from streamops.store.object_store import Copied, ObjectInfo, ObjectStore

R = TypeVar("R")

THREADS = 24  # for each stage
FEED = "streamops-feed.json"  # beside Spark's files, in a snapshot: the stage's ``FeedSlice``
_ATTEMPTS = 5  # of reading a checkpoint that a running query changes meanwhile

_STATE = re.compile(
    r"(?P<store>state/(?P<operator>\d+)/(?P<partition>\d+)/(?:[^/]+/)?)"
    r"(?P<version>\d+)_(?P<id>[0-9a-f-]{36})\.(?P<kind>zip|changelog)(?P<sidecar>\.crc)?"
)
_CONTENT = re.compile(r"state/\d+/\d+/(?:[^/]+/)?(?:SSTs|logs)/[^/]*[0-9a-f-]{36}[^/]*")
_PLAIN_STATE = re.compile(r"state/\d+/\d+/(?:[^/]+/)?\d+\.(zip|changelog|delta|snapshot)")
_METADATA = re.compile(r"state/\d+/(?:.*/)?(?:_metadata|_stateSchema)/.*?(?P<batch>\d+)?(?:_[0-9a-f-]{36})?(?:\.crc)?")


@dataclass(frozen=True)
class Tail:
    """What is needed to continue one stage after its last committed batch.

    ``offsets`` are the next to read; ``watermark_ms`` is the one that the last committed batch worked with: every
    window that ends at or before it has been written; None before any event. ``objects`` lie below ``prefix``.
    ``began_ms`` is when that batch began, in milliseconds since the epoch.
    """

    prefix: str
    batch: int
    offsets: Offsets
    watermark_ms: int | None
    query_id: str
    objects: tuple[ObjectInfo, ...]
    began_ms: int = 0

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(info.size for info in self.objects)

    def path(self, info: ObjectInfo) -> str:
        """Where the object stands inside the checkpoint."""
        return info.key.removeprefix(self.prefix)


@dataclass(frozen=True)
class CopiedFile:
    """One copied object: ``path`` inside the checkpoint, ``size`` in bytes."""

    path: str
    size: int
    copied: Copied


def tail(store: ObjectStore, prefix: str) -> Tail:
    """The tail of the checkpoint below ``prefix``; the query may continue writing meanwhile.

    Raises:
        CheckpointError: no batch is committed there, or a needed file is missing.
    """
    found = find_tail(store, prefix)
    if found is None:
        raise CheckpointError(f"{prefix} has no committed batch; there is nothing to continue from yet.")
    return found


def find_tail(store: ObjectStore, prefix: str) -> Tail | None:
    """Like ``tail``, but None when no batch is committed yet."""
    return persist(lambda: _Reader(store, prefix).tail(), f"{prefix} changes faster than it can be read")


def persist(act: Callable[[], R], otherwise: str) -> R:
    """Do something to a checkpoint again, as long as a running query removes files between listing and reading.

    Raises:
        CheckpointError: with the text ``otherwise``, when every attempt lacked a file.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return act()
        except NotFoundError as error:
            if not left:
                raise CheckpointError(f"{otherwise}: {error}") from error
    raise AssertionError("unreachable")


def position(store: ObjectStore, prefix: str) -> Tail | None:
    """Batch, offsets and watermark only, without looking at the state: three small reads."""
    return _Reader(store, prefix, below=("commits/", "metadata")).head()


class _Reader:
    """One listing of a checkpoint, and what follows from it.

    The listing is in key order: commits come before state, so that the state of a listed commit is listed too.
    """

    def __init__(self, store: ObjectStore, prefix: str, below: Iterable[str] = ("",)) -> None:
        self.store, self.prefix = store, prefix
        self.files = {
            info.key.removeprefix(prefix): info
            for part in below
            for info in store.list(prefix + part)
            if not info.key.endswith("/")
        }
        committed = _numbers(self.files, "commits/")
        self.batch = max(committed, default=-1)
        self.committed = set(committed)
        self.ids: dict[int, Mapping[str, Any] | None] = {}

    def last_ids(self) -> Mapping[str, Any]:
        """Operator -> partition -> ids of the state after the last committed batch; empty without state."""
        return self._ids(self.batch) or {}

    def head(self) -> Tail | None:
        if self.batch < 0:
            return None
        text = self._text(f"offsets/{self.batch}")
        offsets, watermark_ms = parse_offsets(text, f"{self.prefix}offsets/{self.batch}")
        began_ms = json.loads(text.split("\n")[1]).get("batchTimestampMs", 0)
        try:
            query_id = str(json.loads(self._text("metadata"))["id"])
        except NotFoundError:
            raise CheckpointError(
                f"{self.prefix} has no metadata file; Spark would take it for a new query and emit everything again."
            ) from None
        return Tail(self.prefix, self.batch, offsets, watermark_ms, query_id, (), began_ms)

    def tail(self) -> Tail | None:
        head = self.head()
        if head is None:
            return None
        files, oldest = self._state_files()
        last = range(max(self.batch - 1, 0), self.batch + 1)  # Spark reads the last one and its predecessor
        needed = {"metadata", *(f"offsets/{number}" for number in last)}
        if missing := sorted(needed - self.files.keys()):
            raise NotFoundError(f"{self.prefix}{missing[0]} is missing.")
        files |= needed | {f"commits/{number}" for number in range(max(oldest, 0), self.batch + 1)}
        files |= {path for path in self.files if path.startswith("sources/")}
        return replace(head, objects=tuple(self.files[path] for path in sorted(files) if path in self.files))

    def _state_files(self) -> tuple[set[str], int]:
        """The files of the state after the last batch, and the oldest commit that tells which of them count."""
        wanted: set[str] = set()
        stores: dict[str, list[re.Match[str]]] = defaultdict(list)
        for path in self.files:
            if match := _STATE.fullmatch(path):
                stores[match["store"]].append(match)
            elif (match := _METADATA.fullmatch(path)) and int(match["batch"] or 0) <= self.batch:
                wanted.add(path)
            elif _PLAIN_STATE.match(path):
                raise CheckpointError(f"{self.prefix}{path} is of state format 1; StreamOps writes format 2 only.")
        if not stores and self._ids(self.batch):
            raise CheckpointError(f"{self.prefix} has committed state but no state files; restore it from a snapshot.")
        used = {name: matches for name, matches in stores.items() if not self._left_over(matches[0])}
        self._prefetch(used)
        oldest = self.batch
        for name, matches in used.items():
            files, base = self._state(name, matches)
            wanted |= files
            oldest = min(oldest, base - 1)
        return wanted, oldest

    def _left_over(self, match: re.Match[str]) -> bool:
        """Whether a partition is one that the state had before it was brought into fewer."""
        partitions = (self._ids(self.batch) or {}).get(match["operator"])
        return partitions is not None and int(match["partition"]) >= len(partitions)

    def _state(self, name: str, matches: list[re.Match[str]]) -> tuple[set[str], int]:
        """The files of one store that version N+1 needs, and the version that they begin with."""
        needed = self.batch + 1
        versions: dict[int, list[re.Match[str]]] = defaultdict(list)
        for match in matches:
            versions[int(match["version"])].append(match)
        chosen: set[str] = set()
        for version in range(needed, 0, -1):  # older commits are not looked at: a running query may be removing them
            found = [match for match in versions[version] if self._counts(match)]
            if not any(not match["sidecar"] for match in found):
                raise CheckpointError(
                    f"{self.prefix}{name} has no state of version {version} although batch {self.batch} needs it; "
                    "restore the job from a snapshot."
                )
            chosen |= {match[0] for match in found}
            full = [match for match in found if match["kind"] == "zip" and not match["sidecar"]]
            known = self._ids(version - 1) is not None
            if full and (known or len(full) == 1):
                for match in full:
                    chosen |= self._content(name, match[0])
                return chosen, version
        return chosen, 1  # every changelog from the first on

    def _counts(self, match: re.Match[str]) -> bool:
        """Whether the file belongs to the committed history; unknown history counts, and the ids in it decide."""
        ids = self._ids(int(match["version"]) - 1)
        if ids is None:
            return True
        partitions = ids.get(match["operator"], [])
        number = int(match["partition"])
        return number < len(partitions) and match["id"] in partitions[number]

    def _content(self, name: str, path: str) -> set[str]:
        """The immutable files that a full version refers to."""
        with zipfile.ZipFile(io.BytesIO(self.store.get(self.prefix + path).body)) as archive:
            text = archive.read("metadata").decode()
        described = json.loads(text.split("\n", 1)[1])
        entries = [("SSTs/", entry["dfsSstFileName"]) for entry in described.get("sstFiles") or ()]
        entries += [("logs/", entry["dfsLogFileName"]) for entry in described.get("logFiles") or ()]
        files = {f"{name}{folder}{file}" for folder, file in entries}
        for file in files:
            if file not in self.files:
                raise NotFoundError(f"{self.prefix}{file} is missing, and {path} needs it.")
        return files | {f"{file}.crc" for file in files if f"{file}.crc" in self.files}

    def _ids(self, batch: int) -> Mapping[str, Any] | None:
        """The state ids that a commit names: none for a stage without state, None when the commit is gone."""
        if batch not in self.ids:
            self.ids[batch] = self._read_ids(batch)
        return self.ids[batch]

    def _read_ids(self, batch: int) -> Mapping[str, Any] | None:
        if batch not in self.committed:
            return None
        found: Mapping[str, Any] = json.loads(self._text(f"commits/{batch}").split("\n", 1)[1]).get(
            "stateUniqueIds", {}
        )
        return found or {}

    def _prefetch(self, stores: Mapping[str, list[re.Match[str]]]) -> None:
        """Read the commits that matter at once, instead of one by one."""
        full = [[int(m["version"]) for m in matches if m["kind"] == "zip"] for matches in stores.values()]
        newest = [max((v for v in versions if v <= self.batch + 1), default=1) for versions in full]
        wanted = [n for n in range(max(min(newest, default=self.batch) - 1, 0), self.batch + 1) if n in self.committed]
        with ThreadPoolExecutor(THREADS) as pool:
            self.ids.update(zip(wanted, pool.map(self._read_ids, wanted), strict=True))

    def _text(self, path: str) -> str:
        return self.store.get(self.prefix + path).body.decode()


def is_immutable(path: str) -> bool:
    """Whether a file is written once under a unique name: changelogs, full versions, and what these refer to."""
    return bool(_STATE.fullmatch(path) or _CONTENT.fullmatch(path))


def parse_offsets(text: str, where: str = "offset log") -> tuple[Offsets, int | None]:
    """Offsets and watermark of one entry of the offset log; None before any event, for which Spark says 0.

    Raises:
        CheckpointError: the entry is of another version than the one with named sources.
    """
    lines = text.split("\n")
    if lines[0] != "v2" or len(lines) < 2:
        raise CheckpointError(f"{where} is {lines[0]!r}, not version 2 with named sources; it is not StreamOps's.")
    offsets: Offsets = {}
    for line in lines[2:]:
        source, _, value = line.partition(":")
        described = json.loads(value) if value.startswith("{") else {}
        offsets[source] = {
            partition: int(number)
            for topic in described.values()
            if isinstance(topic, dict)
            for partition, number in topic.items()
        }
    return offsets, json.loads(lines[1]).get("batchWatermarkMs") or None


def copy_tail(store: ObjectStore, source: Tail, target: str, threads: int = THREADS) -> list[CopiedFile]:
    """Copy on the server to below ``target``; every hash comes from the copy itself.

    Raises:
        NotFoundError: the running query removed a file meanwhile; take the tail again.
    """
    with ThreadPoolExecutor(threads) as pool:
        pairs = [(info, source.path(info)) for info in source.objects]
        copies = pool.map(lambda pair: store.copy(pair[0].key, target + pair[1], pair[0].size), pairs)
        return [CopiedFile(path, info.size, done) for (info, path), done in zip(pairs, copies, strict=True)]


def copy_last(store: ObjectStore, prefix: str, target: str) -> tuple[Tail, list[CopiedFile]] | None:
    """Take the tail and copy it, again from the start when a running query removed a file; None without a commit."""

    def copied() -> tuple[Tail, list[CopiedFile]] | None:
        found = find_tail(store, prefix)
        return (found, copy_tail(store, found, target)) if found else None

    return persist(copied, f"{prefix} changes faster than it can be copied")


def is_ready(store: ObjectStore, job: str, deployment: int, epoch: int) -> bool:
    """Whether the epoch's checkpoints are completely in place."""
    key = keys.epoch_ready(job, deployment, epoch)
    return any(info.key == key for info in store.list(key))


def current_epoch(store: ObjectStore, job: str, deployment: int, below: int | None = None) -> int | None:
    """The highest ready epoch (under ``below``), or None: no driver of this deployment ever began."""
    names = store.prefixes(keys.checkpoints(job, deployment))
    numbers = sorted((int(name.rstrip("/").rsplit("/e", 1)[1]) for name in names), reverse=True)
    under = (number for number in numbers if below is None or number < below)
    return next((number for number in under if is_ready(store, job, deployment, number)), None)


def current_epoch_prefix(store: ObjectStore, job: str, deployment: int) -> str | None:
    """Prefix of the checkpoints that count now: those of the highest ready epoch."""
    number = current_epoch(store, job, deployment)
    return None if number is None else keys.epoch(job, deployment, number)


def prepare_epoch(
    store: ObjectStore,
    job: str,
    deployment: int,
    epoch: int,
    stages: Iterable[str],
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, int]:
    """Bring the last committed batch of each stage to where the holder of ``epoch`` writes.

    Killed anywhere, it can be run again: an epoch counts only from its ready mark on, which is written last.

    Returns:
        The batch that each stage continues after; stages that start with empty state are not in it.
    """
    key = keys.epoch_ready(job, deployment, epoch)
    if is_ready(store, job, deployment, epoch):
        return dict(json.loads(store.get(key).body)["stages"])
    names = list(stages)
    origin = current_epoch(store, job, deployment, below=epoch)
    copied: dict[str, int] = {}
    if origin is not None:
        place = partial(keys.stage, job, deployment)
        with ThreadPoolExecutor(max(len(names), 1)) as pool:
            done = pool.map(lambda name: copy_last(store, place(origin, name), place(epoch, name)), names)
            for name, result in zip(names, done, strict=True):
                if result is not None:
                    copied[name] = result[0].batch
                    say(f"{name}: batch {result[0].batch}, {len(result[1])} objects copied from epoch {origin}")
    mark_ready(store, key, copied, "nothing" if origin is None else f"epoch {origin}")
    return copied


def drop_planned(store: ObjectStore, prefix: str) -> int:
    """Remove batches that were planned and never committed. Only for the holder of the epoch, between two queries.

    Spark plans them again. Left in place, its 4.2 cannot start: with this offset log version it looks for a number of
    shuffle partitions in the planned batch, which it never writes there (``None.get`` in ``isRepartitionBatch``).

    Returns:
        The last batch that was committed; -1 for none.
    """
    paths = [info.key.removeprefix(prefix) for part in ("commits/", "offsets/") for info in store.list(prefix + part)]
    committed = max(_numbers(paths, "commits/"), default=-1)
    planned = _numbers(paths, "offsets/")
    store.delete(f"{prefix}offsets/{number}" for number in planned if number > committed)
    return committed


def state_partitions(store: ObjectStore, prefix: str) -> int | None:
    """In how many partitions the state after the last committed batch lies; None for a stage without state.

    Spark 4.2 records the number nowhere with this offset log version, but commits name the state of each partition.
    """
    reader = _Reader(store, prefix, below=("commits/",))
    ids = reader.last_ids()
    return max((len(partitions) for partitions in ids.values()), default=None)


def note_partitions(store: ObjectStore, prefix: str, number: int) -> None:
    """Write into the last committed batch in how many partitions its state lies.

    Only for the holder of the epoch, while no query runs. Spark's repartition looks for it there and fails without
    it (``None.get`` in ``OfflineStateRepartitionRunner``), because this offset log version leaves it out.
    """
    batch = _Reader(store, prefix, below=("commits/",)).batch
    key = f"{prefix}offsets/{batch}"
    first, metadata, *rest = store.get(key).body.decode().split("\n")
    described = json.loads(metadata)
    described.setdefault("conf", {})["spark.sql.shuffle.partitions"] = str(number)
    store.put(key, "\n".join((first, json.dumps(described, separators=(",", ":")), *rest)).encode())


def read_from(store: ObjectStore, prefix: str, batch: int, topics: Mapping[str, str]) -> None:
    """Let sources continue at the first record of a topic, where the last committed batch had read another one.

    Only for the holder of the epoch, while no query runs. Left alone, Spark 4.3 takes such a topic for one more: in
    real time it keeps reading the one before as well (``KafkaMicroBatchStream.planInputPartitions`` keeps what it
    calls deleted partitions), so that what both hold counts twice.

    Args:
        batch: the last committed one, as ``drop_planned`` says.
        topics: source -> the topic, of one partition, that it reads now.
    """

    def own(source: str, read: Mapping[str, Any]) -> Mapping[str, Any]:
        return {topic: read.get(topic, {"0": 0})} if (topic := topics.get(source)) else read

    _reposition(store, prefix, batch, own)


def move(store: ObjectStore, prefix: str, batch: int, places: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    """Let sources continue in another topic, after the last committed batch.

    Only before the epoch counts, while no query runs. Left alone, Spark takes records of the topic before for lost.

    Args:
        batch: the last committed one.
        places: source -> topic -> partition -> next offset to read.
    """
    _reposition(store, prefix, batch, lambda source, read: places.get(source, read))


def _reposition(
    store: ObjectStore, prefix: str, batch: int, to: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
) -> None:
    """Set where the sources stood after a committed batch, of those that had read anything by then.

    Args:
        to: what a source's entry becomes, by its name and what the entry is: topic -> partition -> offset.
    """
    if batch < 0:
        return
    key = f"{prefix}offsets/{batch}"
    first, metadata, *rest = before = store.get(key).body.decode().split("\n")
    found = dict(line.split(":", 1) for line in rest)
    for source, value in found.items():
        read = json.loads(value) if value.startswith("{") else {}  # "-" for one that has not read anything yet
        if read and (now := to(source, read)) != read:
            found[source] = json.dumps(now, separators=(",", ":"))
    after = [first, metadata, *(f"{source}:{value}" for source, value in found.items())]
    if after != before:
        store.put(key, "\n".join(after).encode())


def commit_times(store: ObjectStore, prefix: str) -> dict[int, datetime]:
    """When each retained batch was committed, by the object store's clock; a copied one when it was copied."""
    times = {}
    for info in store.list(f"{prefix}commits/"):
        number = info.key.rsplit("/", 1)[1]
        if number.isdigit():
            times[int(number)] = info.modified
    return times


def brought(store: ObjectStore, job: str, deployment: int, epoch: int) -> dict[str, int]:
    """The batch that each stage of a ready epoch continues after; those that started empty are not in it."""
    return dict(json.loads(store.get(keys.epoch_ready(job, deployment, epoch)).body)["stages"])


def mark_ready(store: ObjectStore, key: str, stages: Mapping[str, int], origin: str) -> None:
    """Say, at ``keys.epoch_ready``, that an epoch's checkpoints are completely in place."""
    body = {"from": origin, "stages": dict(stages), "created": now().isoformat()}
    store.put(key, json.dumps(body).encode())


def _numbers(paths: Iterable[str], folder: str) -> list[int]:
    rests = (path.removeprefix(folder) for path in paths if path.startswith(folder))
    return [int(rest) for rest in rests if rest.isdigit()]
