"""What is not a sum: aggregates that keep values, and stages in which every event is a point.

``Kept`` are windows of the smallest, largest, first or last value, or of how many different ones there are. Nothing
can be taken out of these again, so each window puts its panes together again. ``Each`` has no windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streamops.model.conditions import parse
from streamops.model.definitions import Recount, milliseconds
from streamops.model.values import Value
from streamops.recount.events import Events, Firsts
from streamops.recount.windows import Expected, Tags, Window, Windows, tags_of

Slot = Any
_NEVER = -(1 << 62)


class _Way(NamedTuple):
    """How an aggregate is made: of items, of slots, and which values are right for a slot, the likeliest first."""

    lift: Callable[[Sequence[Any]], Slot]
    merge: Callable[[Sequence[Slot]], Slot]
    values: Callable[[Slot], list[Value]]


def _end(choose: Callable[[Iterable[int]], int]) -> _Way:
    """The first or last value: a slot is its time with all values of events at that time."""

    def lift(items: Sequence[Any]) -> Slot:
        when = choose(time for time, _ in items)
        return when, tuple(dict.fromkeys(value for time, value in items if time == when))

    def merge(slots: Sequence[Slot]) -> Slot:
        when = choose(time for time, _ in slots)
        return when, tuple(dict.fromkeys(value for time, values in slots if time == when for value in values))

    return _Way(lift, merge, lambda slot: list(slot[1]))


_WAYS: dict[str, _Way] = {
    "min": _Way(min, min, lambda slot: [slot]),
    "max": _Way(max, max, lambda slot: [slot]),
    "first": _end(min),
    "last": _end(max),
    "count distinct": _Way(frozenset, lambda slots: frozenset().union(*slots), lambda slot: [len(slot)]),
}


class Kept(Windows):
    """Windows of an aggregate that keeps values. A late event's item is its value, or its time and value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._way = _WAYS[str(self.spec.aggregate)]
        self._slots: dict[int, dict[int, Slot]] = self._panes

    def _values(self, events: Events) -> np.ndarray:
        values = events.columns[str(self.spec.column)]
        items = zip(events.times.tolist(), values, strict=True) if self.spec.aggregate in ("first", "last") else values
        return np.fromiter(items, object, len(values))

    def _add_sure(self, panes: np.ndarray, codes: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
        panes, codes, values = panes[mask], codes[mask], values[mask]
        if not len(panes):
            return
        order = np.lexsort((codes, panes))
        panes, codes, items = panes[order], codes[order], values[order].tolist()
        begins = np.flatnonzero(np.r_[True, (panes[1:] != panes[:-1]) | (codes[1:] != codes[:-1])]).tolist()
        lift, merge = self._way.lift, self._way.merge
        for begin, end in zip(begins, [*begins[1:], len(items)], strict=True):
            slots, code = self._slots.setdefault(int(panes[begin]), {}), int(codes[begin])
            slot = lift(items[begin:end])
            slots[code] = merge((slots[code], slot)) if code in slots else slot

    def _move(self, end: int) -> None:
        start = end - self._width
        found: dict[int, list[Slot]] = {}
        for pane in range(start, end):
            for code, slot in self._slots.get(pane, {}).items():
                found.setdefault(code, []).append(slot)
        self._total = {code: slots[0] if len(slots) == 1 else self._way.merge(slots) for code, slots in found.items()}
        self._added, self._removed = end, start
        for known in (self._slots, self._late):
            for pane in [pane for pane in known if pane < start]:
                del known[pane]

    def _points(self, end: int) -> dict[Tags, Expected]:
        points = {}
        for code, slot in self._total.items():
            value, *others = self._way.values(slot)
            points[self._tags[code]] = Expected(value, tuple(others))
        late: dict[int, list[tuple[int, int, Any]]] = {}
        for pane in range(end - self._width, end):
            for order, code, item in self._late.get(pane, ()):
                late.setdefault(code, []).append((order, pane, item))
        for code, items in late.items():
            points[self._tags[code]] = self._of_late(points.get(self._tags[code]), self._total.get(code), items)
        return points

    def _of_late(self, sure: Expected | None, slot: Slot, items: list[tuple[int, int, Any]]) -> Expected:
        """A point whose window has late events: of each pane a job has counted the first 0, 1, 2 ... of them.

        What comes of several panes is what comes of one of them, for all but the number of different values, which
        only grows with each.
        """
        lift, merge, values = self._way
        by_pane: dict[int, list[Any]] = {}
        for _, pane, item in sorted(items, key=lambda entry: entry[0]):
            by_pane.setdefault(pane, []).append(item)
        found: list[Value] = list(sure.others) if sure else []
        for of_pane in by_pane.values():
            for count in range(1, len(of_pane) + 1):
                late = lift(of_pane[:count])
                found += values(late if slot is None else merge((slot, late)))
        between = None
        if self.spec.aggregate == "count distinct":
            everything = lift([item for _, _, item in items])
            least = values(slot)[0] if slot is not None else 1
            between = (least, values(everything if slot is None else merge((slot, everything)))[0])
        return Expected(sure.value if sure else None, tuple(dict.fromkeys(found)), between)


class Straggler(NamedTuple):
    """An event whose time had been compared before it came."""

    time_ms: int
    tags: Tags
    value: Value


@dataclass
class Each:
    """Every event a point at its own time, in the way of ``Windows``: a stage without state has no late events."""

    spec: Recount
    bound_ms: int
    from_the_beginning: bool = True
    horizon_ms: int = 60_000
    late: int = 0
    beyond: int = 0
    newest_us: int = _NEVER
    stragglers: list[Straggler] = field(default_factory=list)  # whoever compares takes them from here
    _firsts: Firsts = field(default_factory=Firsts)
    _points: dict[int, dict[Tags, list[Value]]] = field(default_factory=dict)
    _closed_ms: int = _NEVER

    def __post_init__(self) -> None:
        self._delay_us = milliseconds(self.spec.delay) * 1000
        self._where = parse(self.spec.where) if self.spec.where else None

    @property
    def begun_us(self) -> int | None:
        """The time before which the events read are not all there were; None before any event."""
        return self._firsts.all_after_us(self._delay_us)

    def first_whole_end_ms(self) -> int:
        """The first time of which all events were read."""
        return (self.begun_us or 0) // 1000 + 1

    def add(self, events: Events) -> None:
        """Take events, which follow those taken before."""
        if not len(events.times):
            return
        self._firsts.take(events)
        self.newest_us = max(self.newest_us, int(events.times.max()))
        for time_ms, tags, value in self.rows(events):
            if time_ms <= self._closed_ms:
                self.stragglers.append(Straggler(time_ms, tags, value))
            else:
                self._points.setdefault(time_ms, {}).setdefault(tags, []).append(value)

    def rows(self, events: Events) -> Iterator[tuple[int, Tags, Value]]:
        """The points of events."""
        if self._where:
            events = events.cut(np.array(self._where.kept(events.columns), bool))
        by = [events.columns[name] for name in self.spec.by]
        tags = map(tags_of, zip(*by, strict=True)) if by else [()] * len(events.times)
        yield from zip((events.times // 1000).tolist(), tags, events.columns[str(self.spec.column)], strict=True)

    def close(self, until_ms: int) -> Iterator[Window]:
        """The times at or before ``until_ms`` that have a point, in order."""
        for time_ms in sorted(time_ms for time_ms in self._points if time_ms <= until_ms):
            points = {}
            for tags, values in self._points.pop(time_ms).items():
                *others, value = dict.fromkeys(values)  # of several events with one identity, whichever was last
                points[tags] = Expected(value, tuple(others))
            yield Window(time_ms, False, points)
        self._closed_ms = max(self._closed_ms, min(until_ms, self.newest_us // 1000))

    def due_ms(self) -> int:
        """Times at or before this one can be compared."""
        return self.newest_us // 1000 - self.horizon_ms


def counted(spec: Recount, bound_ms: int, from_the_beginning: bool) -> Windows | Each:
    """What counts as a specification says."""
    if spec.aggregate is None:
        return Each(spec, bound_ms, from_the_beginning)
    return (Kept if spec.aggregate in _WAYS else Windows)(spec, bound_ms, from_the_beginning)
