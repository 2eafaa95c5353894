"""What InfluxDB does not take is found and put aside; everything else is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import Row

from streamops.model.definitions import InfluxSink
from streamops.model.errors import DataRefusedError, LeaseLostError, UnreachableError
from streamops.model.records import RefusedPoint
from streamops_runtime.sinks import MOST_REFUSED, InfluxWriter

SINK = InfluxSink(measurement="m", tags=("symbol",))


class Picky:
    """Takes every line but those that say so."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.requests = 0

    def write_lines(self, lines: Iterable[str]) -> None:
        self.requests += 1
        if bad := [text for text in lines if "bad" in text]:
            raise DataRefusedError(f"cannot take {bad[0]}")
        self.lines.update(lines)


def row(symbol: str, value: Any = 1.5) -> Row:
    return Row(symbol=symbol, value=value, time=datetime(2026, 1, 1))


def written(rows: Sequence[Row], target: Picky | None = None) -> tuple[Picky, list[RefusedPoint]]:
    target, aside = target or Picky(), []
    InfluxWriter(SINK, target, aside.extend, lambda: None).write(rows, 7)  # type: ignore[arg-type]
    return target, aside


def test_bad_rows_are_put_aside_with_the_reason_and_the_others_are_written() -> None:
    rows = [row("bad" if number in (0, 17, 1999) else "good", float(number)) for number in range(2000)]
    target, aside = written(rows)
    assert [item.fields["value"] for item in aside] == [0.0, 17.0, 1999.0]
    assert all(item.reason.startswith("cannot take m,symbol=bad") for item in aside)
    assert len(target.lines) == 1997
    assert target.requests < 100  # halves, not one by one


@pytest.mark.parametrize(
    ("symbol", "value", "reason"),
    [
        ("A\\", 1.5, "tag symbol ends in a backslash"),
        ("a\tb", 1.5, "tag symbol holds a tab or a line break"),
        ("a\nb", 1.5, "tag symbol holds a tab or a line break"),
        ("x" * 70_000, 1.5, "tag symbol is longer than 65,535 bytes"),
        ("A", 1 << 63, "field value is an integer beyond 64 bits"),
    ],
)
def test_what_line_protocol_cannot_express_is_not_even_sent(symbol: str, value: Any, reason: str) -> None:
    target, aside = written([row(symbol, value), row("good")])
    assert [item.reason.startswith(reason) for item in aside] == [True]
    assert target.requests == 1


def test_a_sink_that_takes_nothing_does_not_fit_and_stays_an_error() -> None:
    with pytest.raises(DataRefusedError):
        written([row("bad", float(number)) for number in range(2 * MOST_REFUSED)])


def test_nothing_counts_as_put_aside_before_it_is() -> None:
    def away(points: Sequence[RefusedPoint]) -> None:
        raise UnreachableError("the store is away")

    writer = InfluxWriter(SINK, Picky(), away, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(UnreachableError):
        writer.write([row("bad")], 7)
    assert writer.refused == 0


def test_a_driver_that_loses_its_lease_while_it_looks_for_bad_rows_sends_no_more() -> None:
    target, asked = Picky(), itertools.count(1)

    def check() -> None:
        if next(asked) == 3:
            raise LeaseLostError("another one writes")

    writer = InfluxWriter(SINK, target, [].extend, check)  # type: ignore[arg-type]
    with pytest.raises(LeaseLostError):
        writer.write([row("bad" if number % 2 else "good", float(number)) for number in range(100)], 7)
    assert target.requests == 3  # the whole, and two halves
