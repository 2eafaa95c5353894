"""What a recount found, and the comparison of expected points with written ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as field_
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from streamops.model.values import Value, equal
from streamops.recount.windows import Expected, Tags, Window

EXAMPLES = 5
Read = Callable[[int, int], Iterator[tuple[int, Tags, Value]]]  # points with start <= time < end, in ms


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


Nothing = Literal["not begun", "no event", "no closed window", "short range", "no event counts", "too many events"]
WORDS: dict[Nothing, str] = {
    "not begun": "it has not committed anything yet",
    "no event": "no event was accepted between its offsets",
    "no closed window": "no window of it is closed yet",
    "short range": "the range is too short: no window that began since then is closed, or it joins events before it",
    "no event counts": "none of its events counts",
    "too many events": "it has read more than the job's own function can be run over; recount since a later time",
}


class Measured(_Model):
    """One stage. ``expected`` points of closed windows were compared; ``partial`` of them are partial.

    ``nothing`` says why no point was compared. ``young`` is a stage whose state began with the present deployment.
    ``by`` is what computed the points again: words of the recount's own, or the job's functions as a batch query.
    """

    stage: str
    measurement: str
    field: str = "value"
    by: Literal["words", "functions"] = "words"
    young: bool = False
    nothing: Nothing | None = None
    problem: str = ""  # why it could not be recounted, although it should have been
    expected: int = 0
    missing: int = 0
    wrong: int = 0
    unexpected: int = 0
    partial: int = 0
    refused: int = 0  # expected, refused by InfluxDB, and put aside: in the quarantine, not missing
    late: int = 0  # events that the job may have dropped as late; points with and without them are accepted
    beyond: int = 0  # events so late that their windows had been compared before
    first_window: datetime | None = None  # ends of the first and last window compared
    last_window: datetime | None = None
    closed_until: datetime | None = None
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def off(self) -> int:
        """Points that are not as they should be."""
        return self.missing + self.wrong + self.unexpected


class Report(_Model):
    """The whole recount; ``offsets`` are source -> partition -> [first, end).

    ``left_out`` says of each stage that was not recounted why, and ``damaged`` of those that should have been.
    """

    job: str
    version: str
    deployment: int
    events: int
    malformed: int
    ahead: int
    offsets: dict[str, dict[str, tuple[int, int]]]
    measurements: tuple[Measured, ...]
    seconds: float
    clean: bool
    reason: str
    left_out: dict[str, str] = {}
    damaged: dict[str, str] = {}

    @property
    def wrong(self) -> bool:
        """Whether a fault was found, and not only nothing to compare."""
        return bool(self.damaged) or any(item.off for item in self.measurements)


def labels(measurements: Sequence[Measured]) -> list[str]:
    """What each is called: by its measurement, with the field where several are compared."""
    several = Counter(item.stage for item in measurements)
    return [
        f"{item.measurement}.{item.field}" if several[item.stage] > 1 else item.measurement for item in measurements
    ]


def verdict(
    measurements: tuple[Measured, ...],
    damaged: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> tuple[bool, str]:
    """Whether a recount is clean, and why or why not.

    A stage of which nothing was compared is not clean, but where whoever asked chose a range that is too short for it
    and something of another stage was compared.

    Args:
        damaged: of each stage that should have been recounted and could not be, why.
        left_out: of each stage that cannot be recounted, why.
    """
    named = zip(labels(measurements), measurements, strict=True)
    off = [f"{name} has {item.off:,} points that are off" for name, item in named if item.off]
    off += [f"{stage} could not be recounted: {why}" for stage, why in (damaged or {}).items()]
    if off:
        return False, "; ".join(off)
    of_stages: dict[str, tuple[int, int]] = {}  # a point has all fields of its stage
    for item in measurements:
        of_stages[item.stage] = max(of_stages.get(item.stage, (0, 0)), (item.expected, item.refused))
    compared, refused = (sum(numbers) for numbers in zip(*of_stages.values(), strict=True)) if of_stages else (0, 0)
    nothing = {item.stage: WORDS[item.nothing] for item in measurements if item.nothing}
    if not compared:
        why = nothing or dict(left_out or {})
        told = "; ".join(f"{stage}: {reason}" for stage, reason in why.items())
        return False, f"nothing was compared ({told})"
    if missed := [item for item in measurements if item.nothing and item.nothing != "short range"]:
        told = "; ".join(f"{item.stage}: {nothing[item.stage]}" for item in missed)
        return False, f"nothing of some stages was compared ({told}); the {compared:,} points of the others are right"
    aside = f"; {refused:,} were refused by InfluxDB and are in the quarantine" if refused else ""
    return True, f"all {compared - refused:,} points are as the ledger says{aside}"


def moment(time_ms: int) -> datetime:
    """An instant for people, within what a calendar can show."""
    return datetime.fromtimestamp(min(max(time_ms, -62_135_596_800_000), 253_402_300_799_000) / 1000, UTC)


@dataclass
class Comparison:
    """Collects expected windows and compares them with written points, range by range, in bounded memory."""

    stage: str
    measurement: str
    read: Read
    put_aside: Collection[tuple[int, Tags]] = frozenset()
    from_ms: int = 0  # points before are not looked at
    chunk_ms: int = 60_000
    most: int = 200_000  # points kept before they are compared
    explained: bool = False  # whether points that no event gives may still be explained by later ones
    field: str = "value"
    _expected: dict[tuple[int, Tags], Expected] = field_(default_factory=dict)
    _counts: dict[str, int] = field_(default_factory=lambda: dict.fromkeys(("missing", "wrong", "unexpected"), 0))
    _examples: dict[str, list[str]] = field_(default_factory=dict)
    _surplus: dict[tuple[int, Tags], list[Value]] = field_(default_factory=dict)
    _compared: int = 0
    _partial: int = 0
    _refused: int = 0
    _first_ms: int | None = None
    _last_ms: int | None = None

    def add(self, window: Window) -> None:
        """Take in one window; windows come in order of their end."""
        if window.end_ms < self.from_ms:
            return
        for tags, expected in window.points.items():
            self._expected[window.end_ms, tags] = expected
            if expected.value is not None:
                self._compared += 1
                self._partial += window.partial
        self._first_ms = window.end_ms if self._first_ms is None else self._first_ms
        self._last_ms = window.end_ms

    def settle(self, until_ms: int, *, now: bool = False) -> None:
        """Compare all windows that end at or before ``until_ms``, if there are enough of them, or ``now``."""
        stop = until_ms + 1
        if stop <= self.from_ms:
            return
        if not now and stop - self.from_ms < self.chunk_ms and len(self._expected) < self.most:
            return
        for time_ms, tags, value in self.read(self.from_ms, stop):
            expected = self._expected.pop((time_ms, tags), None)
            if expected is None:
                self._unexplained(time_ms, tags, value)
            elif not expected.accepts(value):
                self._note("wrong", time_ms, tags, f"is {value} and should be {expected.shown()}")
        for key in [key for key in self._expected if key[0] < stop]:
            expected = self._expected.pop(key)
            if expected.value is not None and key in self.put_aside:
                self._refused += 1
            elif expected.value is not None:
                self._note("missing", *key, f"is missing and should be {expected.value}")
        self.from_ms = stop

    @property
    def compared(self) -> int:
        """How many points were expected."""
        return self._compared

    def straggler(self, time_ms: int, tags: Tags, value: Value) -> None:
        """An event that came so late that its time may have been compared before."""
        if time_ms >= self.from_ms:
            there = self._expected.get((time_ms, tags))
            others = () if there is None or there.value is None else (there.value, *there.others)
            self.add(Window(time_ms, False, {tags: Expected(value, others)}))
            return
        self._compared += 1
        if not self.explain(time_ms, tags, value):
            self._note("missing", time_ms, tags, f"is missing and should be {value}")

    def explain(self, time_ms: int, tags: Tags, value: Value) -> bool:
        """Whether there is a point, found with no event for it, that an event gives after all."""
        found = self._surplus.get((time_ms, tags), [])
        if any(equal(value, there) for there in found):
            del self._surplus[time_ms, tags]
            return True
        return False

    @property
    def unexplained(self) -> bool:
        """Whether there are points that later events may explain."""
        return bool(self._surplus)

    def _unexplained(self, time_ms: int, tags: Tags, value: Value) -> None:
        if self.explained and len(self._surplus) < self.most:
            self._surplus.setdefault((time_ms, tags), []).append(value)
        else:
            self._note("unexpected", time_ms, tags, f"has {value}, and no event gives it")

    def result(self, **more: object) -> Measured:
        """What was found; to be called once, at the end."""
        self.explained = False
        for (time_ms, tags), values in self._surplus.items():
            for value in values:
                self._unexplained(time_ms, tags, value)
        return Measured.model_validate(
            {
                "stage": self.stage,
                "measurement": self.measurement,
                "field": self.field,
                "expected": self._compared,
                "partial": self._partial,
                "refused": self._refused,
                "first_window": None if self._first_ms is None else moment(self._first_ms),
                "last_window": None if self._last_ms is None else moment(self._last_ms),
                "examples": tuple(text for kind in self._examples.values() for text in kind),
                **self._counts,
                **more,
            }
        )

    def _note(self, kind: str, time_ms: int, tags: Tags, text: str) -> None:
        self._counts[kind] += 1
        shown = self._examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(f"{self.measurement}{list(tags) if tags else ''} at {moment(time_ms).isoformat()} {text}")
