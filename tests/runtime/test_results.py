"""What of a real-time stage's results is written when, and where reading continues after a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from pyspark.sql import Row, SparkSession

from streamops.model.definitions import InfluxSink
from streamops.model.errors import DefinitionError
from streamops.model.results import columns
from streamops_runtime.result_records import check_tags, encoded
from streamops_runtime.results import Results
from streamops_runtime.waiting_points import MOST_WAITING, WaitingPoints

SECOND = 1000


def held(*points: tuple[int, str, int]) -> WaitingPoints:
    """Points as (time, tag, value), in the order in which they came."""
    found = WaitingPoints()
    for offset, (at, tag, value) in enumerate(points):
        found.add(f"{at}\x01{tag}".encode(), offset, str(value).encode())
    return found


def test_a_window_is_written_once_a_later_one_has_begun() -> None:
    points = held((SECOND, "a", 1), (SECOND, "a", 2))
    assert points.due(None) == []
    points.add(b"2000\x01b", 2, b"3")
    assert points.due(None) == [b"2"]  # the newest value, once
    assert points.count == 1


def test_what_comes_late_is_written_again() -> None:
    points = held((SECOND, "a", 1), (2 * SECOND, "a", 5))
    assert points.due(None) == [b"1"]
    points.add(b"1000\x01a", 2, b"2")
    assert points.due(None) == [b"2"]


def test_a_quiet_source_has_its_last_window_written_when_the_clock_has_passed_its_end() -> None:
    points = held((SECOND, "a", 1))
    assert points.due(SECOND - 1) == []
    assert points.due(SECOND) == [b"1"]


def test_a_point_without_tags_has_its_time_alone_as_key() -> None:
    points = WaitingPoints()
    points.add(b"1000", 0, b"1")
    assert points.due(SECOND) == [b"1"]


def test_everything_is_written_in_the_order_of_time_at_the_end_of_a_query() -> None:
    points = held((3 * SECOND, "a", 3), (SECOND, "a", 1), (2 * SECOND, "b", 2))
    assert points.due(None, everything=True) == [b"1", b"2", b"3"]
    assert points.count == 0


def test_reading_goes_on_at_the_first_result_that_is_not_written() -> None:
    points = held((SECOND, "a", 1), (2 * SECOND, "a", 1), (2 * SECOND, "b", 1), (2 * SECOND, "a", 2))
    assert points.first_offset(4) == 0
    assert points.due(None) == [b"1"]
    assert points.first_offset(4) == 2  # an older value of the same point need not be read again
    points.due(None, everything=True)
    assert points.first_offset(4) == 4


def test_memory_is_bounded_when_no_window_ends() -> None:
    points = WaitingPoints()
    for number in range(MOST_WAITING):
        points.add(f"1000\x01{number}".encode(), number, b"1")
    assert len(points.due(None)) == MOST_WAITING


def test_a_sliding_window_is_over_once_an_event_after_it_has_come() -> None:
    """The newest window of a minute has begun at its end less a minute."""
    points = WaitingPoints(ahead_ms=60 * SECOND)
    for end in range(100, 161):
        points.add(f"{end * SECOND}\x01a".encode(), end, str(end).encode())
    assert points.due(None) == [b"100"]
    assert points.over_ms == 100 * SECOND


def test_what_is_made_of_panes_is_over_with_its_last_pane_a_look_later() -> None:
    """A pane of a second comes whole: the window that ends with it lacks nothing once all of its rows are through."""
    points = WaitingPoints(ahead_ms=59 * SECOND, patient=True)
    for end in range(100, 160):
        points.add(f"{end * SECOND}\x01a".encode(), end, b"a")
    assert points.due(None) == []
    points.add(b"100000\x01b", 200, b"b")
    assert points.due(None) == [b"a", b"b"]


def test_what_has_just_come_is_not_said_to_be_written_although_it_is_passed() -> None:
    points = WaitingPoints(patient=True)
    points.add(b"1000\x01a", 0, b"1")
    points.add(b"2000\x01a", 1, b"2")
    assert points.due(None) == []
    points.add(b"9000\x01a", 2, b"9")
    assert points.due(None) == [b"1"]
    assert points.over_ms == 2 * SECOND - 1  # what the next version may let go of
    assert points.holds(points.reached[0] - 1)  # by how far its query has come, the second point would be of that


def test_what_waits_is_not_over_for_those_who_read_the_stage() -> None:
    points = held((SECOND, "a", 1), (3 * SECOND, "a", 1))
    assert (points.holds(None), points.holds(SECOND - 1), points.holds(SECOND)) == (False, False, True)
    points.due(None)
    assert not points.holds(2 * SECOND)


def test_a_run_that_begins_again_writes_nothing_of_before_until_its_own_windows_are_over() -> None:
    """It reads again what another had read further: its first values are of parts of windows that were whole."""
    points = held((5 * SECOND, "a", 50), (6 * SECOND, "a", 9))
    assert points.due(None) == [b"50"]
    points.begin_again(points.reached)
    points.add(b"5000\x01a", 2, b"20")
    points.add(b"6000\x01b", 3, b"1")  # as far as the run before, which may have been further within that second
    assert points.due(None) == []
    assert points.first_offset(4) == 1
    points.add(b"5000\x01a", 4, b"50")
    points.add(b"7000\x01a", 5, b"1")
    assert points.due(None) == [b"50", b"9", b"1"]  # what was given again, and what was not


def test_each_state_partition_has_to_pass_what_it_had_given() -> None:
    points = WaitingPoints()
    for partition, key in ((0, b"5000\x01a"), (1, b"6000\x01b")):
        points.add(key, partition, b"whole", partition)
    points.begin_again(points.reached)
    points.add(b"5000\x01a", 2, b"a part", 0)
    points.add(b"9000\x01b", 3, b"-", 1)  # far ahead of the other one
    assert points.due(None) == []
    assert points.reached == {0: 5000, 1: 9000}
    points.add(b"5000\x01a", 4, b"whole again", 0)
    points.add(b"6000\x01a", 5, b"-", 0)
    assert points.due(None)[0] == b"whole again"


def test_a_partition_that_gives_nothing_any_more_holds_nothing_up_after_a_commit() -> None:
    points = held((5 * SECOND, "a", 50))
    points.begin_again({7: 4 * SECOND, 0: 4 * SECOND})
    points.add(b"5000\x01a", 1, b"50")
    points.add(b"6000\x01a", 2, b"1")
    assert points.due(None) == []
    points.pass_on()
    assert points.due(None) == [b"50"]


class Rows:
    """A sink that keeps what it is given."""

    refused = 0

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        self.rows += rows


def test_results_of_an_earlier_version_with_other_columns_are_left_out() -> None:
    """They waited for their windows' end over an upgrade; what cannot be written must not end the job."""
    sink = Rows()
    results = Results(
        "j", "s", "127.0.0.1:1", cast(Any, None), [sink], lambda: None, cast(Any, None), needs={"time", "value"}
    )
    results._write([b'1.1:0 {"time": 1000, "mean": 5}', b'2.1:0 {"time": 2000, "value": 6}'])
    assert sink.rows == [Row(time=2000, value=6)]


def test_what_is_compared_or_written_from_a_topic_is_what_a_batch_would_write(spark: SparkSession) -> None:
    """The digits of a float are those of a row, and a tag that Spark writes as another text is refused."""
    sink = InfluxSink(measurement="m", tags=("symbol", "side"), fields=("*",))
    rows = spark.sql(
        "select timestamp_millis(5) time, 'A' symbol, 1 side, cast(0.1 as float) small, float('nan') none, 2 whole,"
        " cast(1.50 as decimal(9, 2)) exact"
    )
    check_tags(rows.schema, sink, "")
    (record,) = encoded(rows, sink, 3, 1).collect()
    (row,) = rows.collect()
    given = columns(record.value.encode())
    assert (given["small"], given["exact"], given["whole"]) == (row.small, float(row.exact), row.whole)
    assert given["none"] is None
    assert given["time"] == 5
    with pytest.raises(DefinitionError, match=r"it cannot: tag time is timestamp; make it a string\."):
        check_tags(rows.schema, InfluxSink(measurement="m", tags=("time",)), "it cannot:")
