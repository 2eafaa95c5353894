"""Two versions beside each other: their results of the same windows compared, and how late each gave them.

Both give the results of a stage into one topic; each result says who gives it. What a version says of a point is the
last value that it gave. A window is compared once both have closed it, as their watermarks say: neither changes it any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from streamops.clients.influx import obstacle
from streamops.model import results
from streamops.model.definitions import InfluxSink
from streamops.model.records import SHADOW_RUN, Shadow
from streamops.model.stored import Part
from streamops.model.values import equal

EXAMPLES = 5
MOST = 1_000_000  # points of a stage that are kept to be compared, of both versions together

Record = tuple[int, bytes, bytes]  # timestamp in ms, key, value
Columns = Mapping[str, Any]
Point = tuple[int, tuple[tuple[str, str], ...]]  # time in ms, and what identifies it besides


class Lateness(Part):
    """How long after the end of their windows results came, in milliseconds; of so many points."""

    points: int
    p50_ms: int
    p99_ms: int
    most_ms: int


@dataclass
class _Last:
    """The last value that a version gave of a point; ``rank`` is of the run that gave it."""

    rank: tuple[int, int]
    at_ms: int
    value: bytes


@dataclass
class Given:
    """What both versions gave of windows that end after ``from_ms`` and by ``until_ms``, read from a stage's topic.

    Args:
        shadow: which results are the new version's; those of other shadows, that were dismissed, are left out.
        most: where there are more points, the last windows are left out, and ``until_ms`` becomes earlier.
    """

    shadow: Shadow
    from_ms: int
    until_ms: int
    most: int = MOST
    count: int = 0
    _old: dict[int, dict[bytes, _Last]] = field(default_factory=dict)  # time -> key
    _new: dict[int, dict[bytes, _Last]] = field(default_factory=dict)
    _ranks: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def take(self, records: Iterable[Record]) -> Given:
        """Take in records, in the order of the topic."""
        own = (self.shadow.epoch, self.shadow.run)
        for at_ms, key, value in records:
            time_ms = results.time_ms(key)
            if not self.from_ms < time_ms <= self.until_ms:
                continue
            rank = self._rank(value)
            if rank != own and rank[0] >= self.shadow.epoch and rank[1] >= SHADOW_RUN:
                continue
            points = (self._new if rank == own else self._old).setdefault(time_ms, {})
            before = points.get(key)
            if before is None:
                self.count += 1
            elif before.rank > rank:  # of a query that has ended, or of a driver that is lost
                continue
            points[key] = _Last(rank, at_ms, value)
            while self.count > self.most:
                self._leave_out(max(*self._old, *self._new, time_ms))
        return self

    def _rank(self, value: bytes) -> tuple[int, int]:
        who = value[: value.index(b":")]
        if who not in self._ranks:
            epoch, run = who.split(b".")
            self._ranks[who] = int(epoch), int(run)
        return self._ranks[who]

    def _leave_out(self, time_ms: int) -> None:
        for side in (self._old, self._new):
            self.count -= len(side.pop(time_ms, ()))
        self.until_ms = time_ms - 1

    def old(self) -> Iterator[Columns]:
        """The columns of each point, as the version that runs gave them last."""
        return _columns(self._old)

    def new(self) -> Iterator[Columns]:
        """The same of the new version."""
        return _columns(self._new)

    def lateness(self) -> tuple[Lateness | None, Lateness | None]:
        """Of the old version and of the new one."""
        return _lateness(self._old), _lateness(self._new)


def _columns(given: Mapping[int, Mapping[bytes, _Last]]) -> Iterator[Columns]:
    return (results.columns(last.value) for points in given.values() for last in points.values())


def _lateness(given: Mapping[int, Mapping[bytes, _Last]]) -> Lateness | None:
    late = sorted(max(0, last.at_ms - time_ms) for time_ms, points in given.items() for last in points.values())
    if not late:
        return None
    return Lateness(points=len(late), p50_ms=late[len(late) // 2], p99_ms=late[len(late) * 99 // 100], most_ms=late[-1])


class Compared(Part):
    """What two versions gave of one stage's points; ``first`` and ``last`` are ends of windows."""

    equal: int = 0
    different: int = 0
    only_old: int = 0
    only_new: int = 0
    first: datetime | None = None
    last: datetime | None = None
    examples: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """How many there are in all."""
        return self.equal + self.different + self.only_old + self.only_new

    @property
    def differing(self) -> int:
        """How many are not the same in both."""
        return self.points - self.equal


def compare(
    old: Iterable[Columns], new: Iterable[Columns], old_sink: InfluxSink, new_sink: InfluxSink, examples: int = EXAMPLES
) -> Compared:
    """Compare the points of a stage as its sink would show them.

    Args:
        old, new: the columns of each point, with those that make its time and tags.
        examples: at most so many of each kind of difference.
    """
    before, after = _points(old, old_sink), _points(new, new_sink)
    counts = dict.fromkeys(("equal", "different", "only_old", "only_new"), 0)
    shown: dict[str, list[str]] = {kind: [] for kind in counts}
    every = sorted(before.keys() | after.keys())
    for point in every:
        mine, other = before.get(point), after.get(point)
        if mine is None or other is None:
            kind = "only_new" if mine is None else "only_old"
            said = f"{kind.replace('_', ' ')}, {_said(mine or other or {})}"
        elif mine.keys() == other.keys() and all(
            equal(mine[name], other[name]) or equal(other[name], mine[name]) for name in mine
        ):
            kind, said = "equal", ""
        else:
            kind, said = "different", f"old {_said(mine)}, new {_said(other)}"
        counts[kind] += 1
        if said and len(shown[kind]) < examples:
            shown[kind].append(f"{_named(point)}: {said}")
    return Compared(
        **counts,
        first=_moment(every[0][0]) if every else None,
        last=_moment(every[-1][0]) if every else None,
        examples=tuple(text for kind in shown.values() for text in kind),
    )


def _points(given: Iterable[Columns], sink: InfluxSink) -> dict[Point, dict[str, Any]]:
    """By what identifies a point in its sink: its fields, as far as they have a value. One that is refused is none."""
    found = {}
    for columns in given:
        tags = {tag: str(columns[tag]) for tag in sorted(sink.tags) if columns.get(tag) not in (None, "")}
        given_fields = ((name, columns.get(name)) for name in sink.columns(columns))
        fields: dict[str, Any] = {name: value for name, value in given_fields if value is not None}
        if fields and not obstacle(tags, fields):
            found[int(columns[sink.time]), tuple(tags.items())] = fields
    return found


def _said(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _named(point: Point) -> str:
    tags = " ".join(f"{name}={value}" for name, value in point[1])
    at = _moment(point[0]).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{at} {tags}".rstrip()


def _moment(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
