"""Points that wait to be written: results of open windows, each with its newest value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamops.model.results import time_ms

MOST_WAITING = 200_000  # points; beyond that they are written, over or not
NEVER = -(1 << 62)  # earlier than any time, in milliseconds


class _Newest(NamedTuple):
    """The newest value of a point that was not written yet."""

    offset: int
    value: bytes


class WaitingPoints:
    """Points that wait to be written: the newest value of each. Times in milliseconds since the epoch.

    Args:
        ahead_ms: how far the newest point lies beyond the points that are over. A window that is open stands at an
            end that is ahead by its size; one that reads what others hand on takes whole panes, and is over with the
            last of them.
        patient: what has just come is over at the next look only, so that what comes together is written together.
    """

    def __init__(self, ahead_ms: int = 1, *, patient: bool = False) -> None:
        self.count = 0
        self.over_ms = NEVER  # points up to then were over at the last look
        self._ahead_ms, self._patient = ahead_ms, patient
        self._newest = self._before = NEVER  # time of the newest point that this run gave
        self._given: dict[int, int] = {}  # the same for each state partition
        self._forgotten_ms = NEVER  # points up to then may have been dropped
        self._again: dict[int, int] = {}  # the same of the runs before
        self._points: dict[int, dict[bytes, _Newest]] = {}  # time -> key -> its newest value

    def add(self, key: bytes, offset: int, value: bytes, partition: int = 0) -> None:
        """Take in a value; ``key`` begins with the point's time. ``partition`` is the one of the state."""
        at = time_ms(key)
        points = self._points.setdefault(at, {})
        self.count += key not in points
        points[key] = _Newest(offset, value)
        self._newest = max(self._newest, at)
        self._given[partition] = max(self._given.get(partition, NEVER), at)

    @property
    def reached(self) -> dict[int, int]:
        """State partition -> time of the newest point that it gave, in whatever run."""
        every = self._again.keys() | self._given.keys()
        return {part: max(self._again.get(part, NEVER), self._given.get(part, NEVER)) for part in every}

    @property
    def behind(self) -> tuple[int, ...]:
        """State partitions that in this run have not come further yet than in those before."""
        return tuple(part for part, at in self._again.items() if self._given.get(part, NEVER) <= at)

    def begin_again(self, reached: Mapping[int, int]) -> None:
        """What comes next is of another run, which reads again what another had read further.

        What waits keeps waiting, and nothing is over before every state partition, which gives its points in the
        order of time, has passed its last one: until then values are of parts of windows that were written whole.
        """
        self._newest = self._before = NEVER
        self._given, self._again = {}, dict(reached)

    def forget(self, until_ms: int) -> None:
        """Drop the points up to a time."""
        self._forgotten_ms = max(self._forgotten_ms, until_ms)
        for at in [at for at in self._points if at <= until_ms]:
            self.count -= len(self._points.pop(at))

    def keys_since(self, offset: int) -> set[bytes]:
        """The points whose newest value is that result or a later one."""
        every = (item for points in self._points.values() for item in points.items())
        return {key for key, newest in every if newest.offset >= offset}

    def has_all(self, keys: Iterable[bytes]) -> bool:
        """Whether each of these points waits to be written, or was never given and is yet to come; none was dropped."""
        times = ((time_ms(key), key) for key in keys)
        return all(at > self._forgotten_ms or key in self._points.get(at, ()) for at, key in times)

    def take_in(self, others: WaitingPoints, before: float = float("inf")) -> None:
        """Take in the points of others whose newest value is a result before that one, over those that wait."""
        for at, given in others._points.items():
            points = self._points.setdefault(at, {})
            known = len(points)
            points.update((key, newest) for key, newest in given.items() if newest.offset < before)
            self.count += len(points) - known

    def go_on(self, others: WaitingPoints) -> None:
        """Take in all points of others, which are of the present run, and how far it has come."""
        self.take_in(others)
        self._given, self._newest = dict(others._given), others._newest

    def pass_on(self) -> None:
        """All that was read before is read again, whatever came of it."""
        self._again = {}

    def due(self, present_ms: int | None, *, everything: bool = False) -> list[bytes]:
        """Take out the values that are to be written now: of points before the newest one, which has just begun.

        Args:
            present_ms: what the clock says, where it decides as well: points up to it are over.
            everything: whatever is over or not.
        """
        newest = self._before if self._patient else self._newest
        self._before = self._newest
        latest = NEVER if self.behind else newest - self._ahead_ms
        latest = max(latest, NEVER if present_ms is None else present_ms)
        self.over_ms = max(self.over_ms, latest)
        times = [at for at in sorted(self._points) if everything or at <= latest or self.count >= MOST_WAITING]
        values = [newest.value for at in times for newest in self._points.pop(at).values()]
        self.count -= len(values)
        return values

    def holds(self, until_ms: int | None) -> bool:
        """Whether points up to a time wait to be written."""
        return until_ms is not None and any(at <= until_ms for at in self._points)

    def first_offset(self, following: int) -> int:
        """The first result that must be read again if what is held is lost; ``following`` if nothing is held."""
        held = (newest.offset for points in self._points.values() for newest in points.values())
        return min(held, default=following)
