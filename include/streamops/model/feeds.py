"""What a stage hands on to others: by how much each of its points has changed.

A point is known by its tags and its time. Whole numbers are handed on as differences to what was handed on before, so
that whoever adds them up has what the stage says, however often a point is corrected. A record carries the total as
well: so the topic itself remembers what was handed on, and after a crash nothing is handed on twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

TOTAL = "streamops_total"  # in a record: what the differences add up to
FOR = "streamops_for"  # in a record that the deployment before had handed on: the stages that had not read it


class _Known(NamedTuple):
    totals: tuple[int, ...]
    offset: int  # of the newest record that tells them


class Handed:
    """What was handed on of the points that may still change.

    Args:
        tags, time: the columns that a point is known by; times are milliseconds since the epoch.
        add: the columns whose differences are handed on.
    """

    def __init__(self, tags: Iterable[str], time: str, add: Iterable[str]) -> None:
        self.tags, self.time, self.add = tuple(tags), time, tuple(add)
        self.left_out = 0  # changes of points that were forgotten
        self.next = 0  # offset after the newest record
        self.closed_ms: int | None = None
        self._known: dict[tuple[Any, ...], _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def change(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record that hands on what is new in a result; None if nothing is."""
        if self._is_closed(row[self.time]):  # whether that was handed on already, nobody remembers
            self.left_out += 1
            return None
        totals = tuple(int(row[column] or 0) for column in self.add)
        known = self._known.get(self._key(row))
        before = known.totals if known else (0,) * len(totals)
        if totals == before:
            return None
        point = {column: row[column] for column in (*self.tags, self.time)}
        changes = {column: now - then for column, now, then in zip(self.add, totals, before, strict=True)}
        return {**point, **changes, TOTAL: list(totals)}

    def note(self, record: Mapping[str, Any], offset: int) -> None:
        """Remember a record that is in the topic."""
        self.next = max(self.next, offset + 1)
        if not self._is_closed(record[self.time]):
            self._known[self._key(record)] = _Known(tuple(record[TOTAL]), offset)

    def forget(self, until_ms: int | None) -> None:
        """Forget the points up to a time, which do not change any more."""
        if until_ms is None:
            return
        if not self._is_closed(until_ms):
            self.closed_ms = until_ms
            self._known = {key: known for key, known in self._known.items() if key[0] > until_ms}

    @property
    def since(self) -> int:
        """The first offset that tells of what is remembered."""
        return min((known.offset for known in self._known.values()), default=self.next)

    def _is_closed(self, time_ms: int) -> bool:
        return self.closed_ms is not None and time_ms <= self.closed_ms

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return (row[self.time], *("" if row[tag] is None else str(row[tag]) for tag in self.tags))


def encoded(record: Mapping[str, Any]) -> str:
    """A record as it stands in the topic."""
    return json.dumps(record, separators=(",", ":"))


def continued(records: Iterable[tuple[int, str]], since: int, read: Mapping[str, int]) -> tuple[str, ...]:
    """Of a feed's records, with their offsets, those that the next deployment's feed begins with.

    Args:
        since: the first offset that tells of a point that may still change.
        read: for each stage that reads the feed, the first offset that its state does not hold.
    """
    found = []
    for offset, text in records:
        record = json.loads(text)
        unread = [reader for reader, first in sorted(read.items()) if offset >= first]
        unread = [reader for reader in unread if reader in record.get(FOR, unread)]
        if unread or offset >= since:
            found.append(encoded({**record, FOR: unread}))
    return tuple(found)
