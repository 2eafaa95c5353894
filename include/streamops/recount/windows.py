"""Expected windows of one stage, computed from events in the order of the ledger.

Windows are ``[start, end)``, aligned to the epoch; a point stands at the window's end. Events are summed in
*panes* (the largest slices of which every window is made), so that an event costs the same whatever the window.

An event is *possibly late* when its pane ends at or before the newest event time that came earlier, less the
stage's watermark delay: a job may have dropped it, depending on where its batches ended. Once a job drops one
event of a window it drops all later ones, so the values it may have written are those with the first 0, 1, 2 ...
of the late events, and each of them is accepted. Where several panes of a window have late events, a job may
have stopped counting each at another time; then anything between the extremes is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamops.model.conditions import parse
from streamops.model.definitions import Recount, milliseconds
from streamops.model.values import Value, equal
from streamops.recount.events import Events, Firsts

Tags = tuple[str, ...]
_NEVER = -(1 << 62)


@dataclass(frozen=True)
class Expected:
    """What one point should be. ``others`` are further values that late events explain; None is no point."""

    value: Value | None
    others: tuple[Value, ...] = ()
    between: tuple[Value, Value] | None = None

    def shown(self) -> str:
        """What is accepted, for people."""
        if self.between:
            return f"between {self.between[0]} and {self.between[1]}"
        return " or ".join(str(value) for value in (self.value, *self.others[:3]) if value is not None)

    def accepts(self, value: Value) -> bool:
        """Whether the written value is right."""
        if self.between and not isinstance(value, str) and self.between[0] - 1e-9 <= value <= self.between[1] + 1e-9:
            return True
        return any(own is not None and equal(own, value) for own in (self.value, *self.others))


def tags_of(parts: Iterable[Any]) -> Tags:
    """The values of a point's tags as text."""
    return tuple(part if isinstance(part, str) else str(part) for part in parts)


@dataclass(frozen=True)
class Window:
    """A closed window with its points; ``partial`` if it may have begun before the first event read."""

    end_ms: int
    partial: bool
    points: dict[Tags, Expected]


@dataclass
class Windows:
    """The state of one stage. Memory: the panes of one window and of ``horizon_ms`` more."""

    spec: Recount
    bound_ms: int  # windows that end later are of no interest
    from_the_beginning: bool = True  # whether the first event read is the first there ever was
    horizon_ms: int = 60_000  # how long after its time an event still counts
    late: int = 0
    beyond: int = 0  # later than the horizon
    newest_us: int = _NEVER
    _codes: dict[Any, int] = field(default_factory=dict)
    _tags: list[Tags] = field(default_factory=list)
    _firsts: Firsts = field(default_factory=Firsts)
    _panes: dict[int, dict[int, list[Value]]] = field(default_factory=dict)  # pane -> code -> [sum, count]
    _late: dict[int, list[tuple[int, int, Value]]] = field(default_factory=dict)  # pane -> (order, code, value)
    _total: dict[int, list[Value]] = field(default_factory=dict)
    _added: int = _NEVER  # panes before this one are in the total or gone
    _removed: int = _NEVER
    _end: int | None = None  # of the next window, in panes

    def __post_init__(self) -> None:
        window, slide = self.spec.reach_ms, self.spec.step_ms
        self._pane_ms = math.gcd(window, slide)
        self._width, self._step = window // self._pane_ms, slide // self._pane_ms
        self._delay_us = milliseconds(self.spec.delay) * 1000
        self._floats = False
        self._where = parse(self.spec.where) if self.spec.where else None

    @property
    def begun_us(self) -> int | None:
        """The time before which the events read are not all there were; None before any event."""
        return self._firsts.all_after_us(self._delay_us)

    def first_whole_end_ms(self) -> int:
        """End of the first window that began after the first event read."""
        slide = self._step * self._pane_ms
        return ((self.begun_us or 0) // 1000 // slide + 1) * slide + self._width * self._pane_ms

    def add(self, events: Events) -> None:
        """Count events, which follow those counted before."""
        if not len(events.times):
            return
        self._firsts.take(events)
        running = np.maximum.accumulate(np.maximum(events.times, self.newest_us))
        before = np.concatenate(([self.newest_us], running[:-1]))
        self.newest_us = int(running[-1])
        panes = events.times // (self._pane_ms * 1000)
        late = (panes + 1) * self._pane_ms * 1000 <= before - self._delay_us
        gone = panes < (_NEVER if self._end is None else self._end - self._width)
        wanted = (panes + 1) * self._pane_ms <= self.bound_ms
        if self._where:  # what it leaves out moves the clock as well: more may then be late, never less
            wanted &= self._where.kept(events.columns)
        codes, values = self._coded(events), self._values(events)
        self.beyond += int(((panes < self._added) & wanted).sum())
        self._add_sure(panes, codes, values, wanted & ~late & ~gone)
        for index in np.flatnonzero(wanted & late & ~gone).tolist():
            self.late += 1
            self._late.setdefault(int(panes[index]), []).append((self.late, int(codes[index]), values.item(index)))

    def close(self, until_ms: int) -> Iterator[Window]:
        """The next windows that end at or before ``until_ms`` (and the bound), in order, without empty ones."""
        last = min(until_ms, self.bound_ms) // self._pane_ms
        while (end := self._next(last)) is not None:
            self._move(end)
            points = self._points(end)
            start_us = (end - self._width) * self._pane_ms * 1000
            partial = not self.from_the_beginning and start_us <= (self.begun_us or 0)
            if points:
                yield Window(end * self._pane_ms, partial, points)
            self._end = end + self._step

    def due_ms(self) -> int:
        """Windows that end by this time can be closed: no event that still counts will touch them."""
        return self.newest_us // 1000 - self.horizon_ms

    def _coded(self, events: Events) -> np.ndarray:
        by = [events.columns[name] for name in self.spec.by]
        keys = by[0] if len(by) == 1 else list(zip(*by, strict=True)) if by else [()] * len(events.times)
        codes = self._codes
        try:
            return np.array([codes[key] for key in keys], np.int64)
        except KeyError:
            for key in keys:
                if key not in codes:
                    codes[key] = len(codes)
                    parts = (key,) if len(by) == 1 else key
                    self._tags.append(tags_of(parts))
            return np.array([codes[key] for key in keys], np.int64)

    def _values(self, events: Events) -> np.ndarray:
        if self.spec.aggregate == "count" or self.spec.column is None:
            return np.ones(len(events.times), np.int64)
        values = events.columns[self.spec.column]
        self._floats = self._floats or isinstance(values[0], float)
        return np.array(values, np.float64 if self._floats else np.int64)

    def _add_sure(self, panes: np.ndarray, codes: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
        if not mask.all():
            panes, codes, values = panes[mask], codes[mask], values[mask]
        if not len(panes):
            return
        order = np.lexsort((codes, panes))
        panes, codes = panes[order], codes[order]
        first = np.flatnonzero(np.r_[True, (panes[1:] != panes[:-1]) | (codes[1:] != codes[:-1])])
        sums = np.add.reduceat(values[order], first).tolist()
        counts = np.diff(np.r_[first, len(panes)]).tolist()
        for pane, code, total, count in zip(panes[first].tolist(), codes[first].tolist(), sums, counts, strict=True):
            slot = self._panes.setdefault(pane, {}).setdefault(code, [0, 0])
            slot[0] += total
            slot[1] += count

    def _next(self, last: int) -> int | None:
        """End of the next window to look at, in panes; holes in time are leapt over."""
        if self._end is not None and (self._end > last or self._total or self._holds(self._end)):
            return self._end if self._end <= last else None
        known = [pane for pane in (*self._panes, *self._late) if self._end is None or pane >= self._end - self._width]
        if not known:
            return None
        after = min(known) + 1
        end = after + (self._width - after) % self._step
        end = max(end, self._end) if self._end is not None else end
        return end if end <= last else None

    def _holds(self, end: int) -> bool:
        return any(pane in self._panes or pane in self._late for pane in range(end - self._width, end))

    def _move(self, end: int) -> None:
        """Bring the total from the window before to the one that ends at ``end``."""
        start = end - self._width
        if self._floats or start >= self._added:  # floats do not survive being added and taken away again
            self._total = {}
            self._added = start
        else:
            for pane in range(self._removed, start):
                for code, (total, count) in self._panes.get(pane, {}).items():
                    slot = self._total[code]
                    slot[0] -= total
                    slot[1] -= count
                    if not slot[1]:
                        del self._total[code]
        for pane in range(self._added, end):
            for code, (total, count) in self._panes.get(pane, {}).items():
                slot = self._total.setdefault(code, [0, 0])
                slot[0] += total
                slot[1] += count
        self._added, self._removed = end, start
        for pane in [pane for pane in self._panes if pane < start]:
            del self._panes[pane]
        for pane in [pane for pane in self._late if pane < start]:
            del self._late[pane]

    def _points(self, end: int) -> dict[Tags, Expected]:
        points = {self._tags[code]: Expected(self._value(*slot)) for code, slot in self._total.items()}
        late: dict[int, list[tuple[int, int, Value]]] = {}
        for pane in range(end - self._width, end):
            for order, code, value in self._late.get(pane, ()):
                late.setdefault(code, []).append((order, pane, value))
        for code, items in late.items():
            tags = self._tags[code]
            points[tags] = self._with_late(points.get(tags), self._total.get(code, [0, 0]), sorted(items))
        return points

    def _with_late(self, sure: Expected | None, slot: list[Value], items: list[tuple[int, int, Value]]) -> Expected:
        """A point whose window has late events, each as (order, pane, value), in their order."""
        total, count = slot
        others = []
        panes: dict[int, list[tuple[Value, Value]]] = {}
        for _, pane, value in items:
            total, count = total + value, count + 1
            others.append(self._value(total, count))
            steps = panes.setdefault(pane, [(0, 0)])
            steps.append((steps[-1][0] + value, steps[-1][1] + 1))
        between = None
        if len(panes) > 1:
            begun = list(panes.values())
            between = (self._extreme(slot, begun, -1), self._extreme(slot, begun, 1))
        return Expected(sure.value if sure else None, tuple(others), between)

    def _extreme(self, slot: list[Value], panes: list[list[tuple[Value, Value]]], sign: int) -> Value:
        """The largest (``sign`` 1) or smallest (-1) value that a job may have written.

        Of each pane it has counted the first 0, 1, 2 ... late events: ``panes`` hold the (sum, count) of each such
        beginning. What is best for an average in one pane depends on the others; Dinkelbach's method takes from
        each what gains most over a level, and makes the average of that the next level, until nothing is gained.
        """
        if not slot[1] and all(len(steps) > 1 and not steps[0][1] for steps in panes):
            # A point has at least one event: the first late one of some pane was counted.
            forced = ([*panes[:at], steps[1:], *panes[at + 1 :]] for at, steps in enumerate(panes))
            return max((self._extreme(slot, choice, sign) for choice in forced), key=lambda value: sign * value)
        level = self._together(slot, [steps[-1] for steps in panes])
        for _ in range(50):  # it takes a handful; the limit is for floats that do not settle
            best = [max(steps, key=lambda step: sign * self._gain(step, level)) for steps in panes]
            found = self._together(slot, best)
            if sign * (found - level) <= 0:
                return level
            level = found
        return level

    def _together(self, slot: list[Value], steps: list[tuple[Value, Value]]) -> Value:
        total, count = (sum(part) for part in zip(slot, *steps, strict=True))
        return self._value(total, count)

    def _gain(self, step: tuple[Value, Value], level: Value) -> Value:
        """What a beginning adds over so many times the level as it has events."""
        if self.spec.aggregate == "average":
            return step[0] - level * step[1]
        return step[1] if self.spec.aggregate == "count" else step[0]

    def _value(self, total: Value, count: Value) -> Value:
        if self.spec.aggregate == "average":
            return total / count
        return count if self.spec.aggregate == "count" else total
