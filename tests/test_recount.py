"""The recount's computation and comparison, on events and points in memory."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streamops.clients.kafka import Block
from streamops.model.definitions import InfluxSink, Recount, Source, milliseconds, parse
from streamops.model.errors import CheckpointError, DefinitionError, RefusedError
from streamops.model.records import Deployment, StageStart, now
from streamops.recount.held import Held
from streamops.recount.reach import Reach
from streamops.recount.recounting import Span, StagePlan, _Planner, recount_source, span
from streamops.recount.report import WORDS, Comparison, Measured, verdict
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.versions.fingerprints import Fingerprint

T0 = 1_800_000_000_000  # a whole minute
SOURCE = Source.model_validate(
    {
        "kafka": {"topic": "trades"},
        "schema": "symbol string, price bigint, quantity bigint, time bigint",
        "event_time": "time",
    }
)
AVG_1S = Recount(source="trades", aggregate="average", column="price", by=("symbol",), window="1 second")
AVG_5S = Recount(
    source="trades", aggregate="average", column="price", by=("symbol",), window="5 seconds", slide="1 second"
)
VOL_1S = Recount(source="trades", aggregate="sum", column="quantity", window="1 second")


def trade(at: int, price: int = 100, symbol: str = "A", quantity: int = 1) -> bytes:
    return json.dumps({"symbol": symbol, "price": price, "quantity": quantity, "time": T0 + at}).encode()


def block(values: list[bytes | None], first: int = 0, timestamps: list[int] | None = None, partition: int = 0) -> Block:
    stamps = timestamps or [T0 + 10**9] * len(values)
    return Block(partition, list(range(first, first + len(values))), stamps, values)


def recounted(
    spec: Recount,
    blocks: list[Block],
    points: dict[tuple[int, tuple[str, ...]], float] | list[tuple[int, tuple[str, ...], float]],
    *,
    bound: int = 10**9,
    start: int = 0,
    end: int = 10**9,
    from_the_beginning: bool = True,
    whole_only: bool = False,
    had_forerunner: bool = False,
    after: int | None = None,
    chunk_ms: int = 60_000,
    source: Source = SOURCE,
    later: list[Block] | None = None,
    young: bool = False,
) -> tuple[Measured, object]:
    """Recount one stage; point times and the bound count from T0."""
    rows = points if isinstance(points, list) else [(at, tags, value) for (at, tags), value in points.items()]

    def read(start_ms: int, end_ms: int):
        return iter([(T0 + at, tags, value) for at, tags, value in rows if start_ms <= T0 + at < end_ms])

    plan = StagePlan(
        "stage",
        spec,
        InfluxSink(measurement="m", tags=spec.by),
        Span({"0": start, "1": start}, {"0": end, "1": end}, whole_only, from_the_beginning),
        T0 + bound,
        had_forerunner,
        -1 if after is None else T0 + after,
        young,
    )
    reader, _, (measured,) = recount_source(
        source,
        [plan],
        blocks,
        lambda _: Comparison("stage", "m", read, chunk_ms=chunk_ms, explained=spec.aggregate is None),
        lambda _: later or [],
    )
    return measured, reader


def by_hand(spec: Recount, events: list[tuple[int, str, int, int]], bound: int) -> dict:
    """Every window by the book: all events against all windows, without panes."""
    width = milliseconds(spec.window)
    slide = milliseconds(spec.slide or spec.window)
    sums: dict = defaultdict(list)
    for at, symbol, price, quantity in events:
        start = at - at % slide
        while start > at - width:
            value = price if spec.column == "price" else quantity
            sums[start + width, (symbol,) if spec.by else ()].append((at, value))
            start -= slide
    return {key: MADE[spec.aggregate](found) for key, found in sums.items() if key[0] <= bound}


MADE: dict[str | None, Callable[[list[tuple[int, int]]], float]] = {
    "average": lambda found: sum(value for _, value in found) / len(found),
    "sum": lambda found: sum(value for _, value in found),
    "count": len,
    "min": lambda found: min(value for _, value in found),
    "max": lambda found: max(value for _, value in found),
    "first": lambda found: min(found, key=lambda item: item[0])[1],
    "last": lambda found: max(found, key=lambda item: item[0])[1],
    "count distinct": lambda found: len({value for _, value in found}),
}


def test_tumbling_average_is_compared_window_by_window() -> None:
    events = block([trade(0, 100), trade(999, 101), trade(1000, 7), trade(2500, 9)])
    result, _ = recounted(AVG_1S, [events], {(1000, ("A",)): 100.5, (2000, ("A",)): 7.0}, bound=2000)
    assert (result.expected, result.off) == (2, 0)
    assert result.first_window is not None
    assert result.first_window.timestamp() * 1000 == T0 + 1000
    assert result.last_window is not None
    assert result.last_window.timestamp() * 1000 == T0 + 2000


@pytest.mark.parametrize(
    ("window", "slide"),
    [
        ("1 second", None),
        ("5 seconds", "1 second"),
        ("5 seconds", "2 seconds"),
        ("3 seconds", "3 seconds"),
        ("1 second", "4 seconds"),
    ],
)
@pytest.mark.parametrize("aggregate", [name for name in MADE if name])
@pytest.mark.parametrize("by", [("symbol",), ()])
def test_every_shape_of_window_agrees_with_the_book(window, slide, aggregate, by) -> None:
    spec = Recount(source="trades", aggregate=aggregate, column="price", by=by, window=window, slide=slide)
    chance = random.Random(f"{window}{slide}{aggregate}")
    times = [*sorted(chance.randrange(0, 40_000) for _ in range(500)), 400_000, 401_500]  # with a hole in time
    most = 5 if aggregate == "count distinct" else 10**6
    events = [(at, chance.choice("ABC"), chance.randrange(most), chance.randrange(100)) for at in times]
    points = by_hand(spec, events, bound=401_000)
    values = [trade(at, price, symbol, quantity) for at, symbol, price, quantity in events]
    blocks = [block(values[first : first + 50], first) for first in range(0, len(values), 50)]
    result, _ = recounted(spec, blocks, points, bound=401_000, chunk_ms=10_000)
    assert (result.expected, result.missing, result.wrong, result.unexpected) == (len(points), 0, 0, 0)
    assert result.expected > 10
    (key, value), *_ = points.items()  # and any other value is wrong
    result, _ = recounted(spec, blocks, points | {key: value + 1}, bound=401_000, chunk_ms=10_000)
    assert result.wrong == 1


def test_each_kind_of_damage_is_noticed_once() -> None:
    values = [trade(at * 100, price=at, quantity=at) for at in range(100)]
    points = by_hand(AVG_1S, [(at * 100, "A", at, at) for at in range(100)], bound=9000)
    right, _ = recounted(AVG_1S, [block(values)], points, bound=9000)
    assert right.off == 0
    assert verdict((right,))[0]

    deleted = {key: value for key, value in points.items() if key[0] != 3000}
    result, _ = recounted(AVG_1S, [block(values)], deleted, bound=9000)
    assert (result.missing, result.wrong, result.unexpected) == (1, 0, 0)
    assert "is missing and should be 24.5" in result.examples[0]

    result, _ = recounted(AVG_1S, [block(values)], points | {(3000, ("A",)): 24.6}, bound=9000)
    assert (result.missing, result.wrong, result.unexpected) == (0, 1, 0)

    for extra in [(3000, ("B",)), (3500, ("A",)), (-5000, ("A",))]:
        result, _ = recounted(AVG_1S, [block(values)], points | {extra: 1.0}, bound=9000)
        assert (result.missing, result.wrong, result.unexpected) == (0, 0, 1), extra
    assert not verdict((result,))[0]

    doubled = [(at, tags, value) for (at, tags), value in points.items()] + [(3000, ("A",), 24.5)]
    result, _ = recounted(AVG_1S, [block(values)], doubled, bound=9000)
    assert result.unexpected == 1


def test_a_point_of_a_window_that_is_still_open_is_not_judged() -> None:
    events = block([trade(0), trade(1200), trade(2400)])
    result, _ = recounted(AVG_1S, [events], {(1000, ("A",)): 100.0, (2000, ("A",)): 1.0}, bound=1999)
    assert (result.expected, result.off) == (1, 0)


def test_events_after_the_committed_offset_do_not_count() -> None:
    events = block([trade(0, 100), trade(1, 200), trade(2, 900), trade(2000)])
    result, _ = recounted(AVG_1S, [events], {(1000, ("A",)): 150.0}, end=2, bound=1000)
    assert (result.expected, result.off) == (1, 0)


def test_windows_that_began_before_the_stage_count_only_its_own_events_and_are_partial() -> None:
    events = block([trade(at, at) for at in range(0, 8000, 250)], first=0)
    points = by_hand(AVG_5S, [(at, "A", at, 1) for at in range(2000, 8000, 250)], bound=7000)
    result, _ = recounted(AVG_5S, [events], points, start=8, bound=7000, from_the_beginning=False)
    assert (result.expected, result.off) == (5, 0)  # windows that end at 3, 4, 5, 6, 7 s
    assert result.partial == 5
    whole, _ = recounted(AVG_5S, [events], {}, bound=7000)
    assert (whole.expected, whole.partial) == (7, 0)


def test_a_recount_since_an_offset_leaves_out_windows_that_began_before_it() -> None:
    events = block([trade(at, at) for at in range(0, 20_000, 250)])
    points = by_hand(AVG_5S, [(at, "A", at, 1) for at in range(0, 20_000, 250)], bound=18_000)
    result, _ = recounted(AVG_5S, [events], points, start=10, bound=18_000, from_the_beginning=False, whole_only=True)
    assert (result.off, result.partial) == (0, 0)
    assert result.first_window is not None
    assert result.first_window.timestamp() * 1000 == T0 + 8000
    assert result.expected == 11
    lost = {key: value for key, value in points.items() if key[0] != 8000}
    result, _ = recounted(AVG_5S, [events], lost, start=10, bound=18_000, from_the_beginning=False, whole_only=True)
    assert result.missing == 1


@pytest.mark.parametrize(("written", "off"), [(None, 1), (100.0, 0), (150.0, 0), (200.0, 0), (250.0, 1), (300.0, 1)])
def test_late_events_explain_only_what_a_job_can_have_done_with_them(written: float | None, off: int) -> None:
    # 100 in time; then the clock passes the window's end; then 200 and 300 late: 100, (100+200)/2, (100+200+300)/3.
    events = block([trade(0, 100), trade(1500, 5), trade(900, 200), trade(950, 300), trade(3000)])
    points = {(2000, ("A",)): 5.0} | ({(1000, ("A",)): written} if written is not None else {})
    result, _ = recounted(AVG_1S, [events], points, bound=2000)
    assert (result.off, result.late) == (off, 2)


def test_late_events_in_several_panes_may_each_have_been_dropped_from_another_time_on() -> None:
    # 100 in time; an event ahead; then late events in two panes of the window that ends at 5 s.
    values = [trade(0, 100), trade(9000, 1), *(trade(1000 + at, 200) for at in (0, 1)), trade(2000, 300), trade(20_000)]
    for aggregate in filter(None, MADE):
        spec = AVG_5S.model_copy(update={"aggregate": aggregate})
        for first in range(3):
            for second in range(2):
                counted = [(0, "A", 100, 1), *[(1000, "A", 200, 1)] * first, *[(2000, "A", 300, 1)] * second]
                points = by_hand(spec, counted, bound=7000)
                result, _ = recounted(spec, [block(values)], points, bound=7000)
                assert result.off == 0, (aggregate, first, second, result.examples)
        result, _ = recounted(spec, [block(values)], points | {(5000, ("A",)): 1000}, bound=7000)
        assert result.wrong == 1


@pytest.mark.parametrize(
    ("aggregate", "right", "wrong"),
    [
        ("min", [100, 90, 80], [70, 95, 300]),
        ("max", [100, 300], [90, 80, 200]),
        ("first", [100, 90], [80, 300]),
        ("last", [100, 300], [90, 80]),
        ("count distinct", [1, 2, 3, 4], [0, 5]),
    ],
)
def test_late_events_explain_what_is_kept_of_them(aggregate: str, right: list[int], wrong: list[int]) -> None:
    # 100 in time at 500; then the clock passes the window's end; then late 90 at 400, 80 at 450 and 300 at 600.
    values = [trade(500, 100), trade(1500, 5), trade(400, 90), trade(450, 80), trade(600, 300), trade(3000)]
    spec = AVG_1S.model_copy(update={"aggregate": aggregate})
    second = 1 if aggregate == "count distinct" else 5
    for value in (*right, *wrong):
        result, _ = recounted(spec, [block(values)], {(1000, ("A",)): value, (2000, ("A",)): second}, bound=2000)
        assert (result.late, result.wrong) == (3, value in wrong), (value, result.examples)


@pytest.mark.parametrize("aggregate", ["first", "last"])
def test_of_several_events_at_the_same_time_each_may_be_the_first_or_the_last(aggregate: str) -> None:
    values = [trade(500, 100), trade(500, 200), trade(500, 300), trade(3000)]
    spec = AVG_1S.model_copy(update={"aggregate": aggregate})
    for value, wrong in ((100, 0), (200, 0), (300, 0), (400, 1)):
        result, _ = recounted(spec, [block(values)], {(1000, ("A",)): value}, bound=1000)
        assert (result.expected, result.wrong) == (1, wrong)


@pytest.mark.parametrize("aggregate", ["average", "max", None])
def test_only_events_that_the_condition_keeps_count(aggregate: str | None) -> None:
    values = [trade(100, 100), trade(200, 900, "B"), trade(300, 999), trade(3000, 900)]
    spec = Recount(
        source="trades", aggregate=aggregate, column="price", by=("symbol",), where="price < 999 and symbol = 'A'",
        window="1 second" if aggregate else None,
    )  # fmt: skip
    right = {(1000, ("A",)): 100.0} if aggregate else {(100, ("A",)): 100, (3000, ("A",)): 900}
    result, _ = recounted(spec, [block(values)], right, bound=3000)
    assert (result.expected, result.off) == (len(right), 0)
    none = spec.model_copy(update={"where": "price < 0"})
    result, _ = recounted(none, [block(values)], {}, bound=3000)
    assert (result.expected, result.nothing) == (0, "no event counts")
    mixed = spec.model_copy(update={"where": "price = 'A'"})
    result, _ = recounted(mixed, [block(values)], right, bound=3000)
    assert "cannot be compared" in result.problem


EACH = Recount(source="trades", column="price", by=("symbol",))


def test_where_each_event_is_a_point_each_damage_is_noticed_once() -> None:
    values = [trade(at * 10, at, "AB"[at % 2]) for at in range(200)]
    points = {(at * 10, ("AB"[at % 2],)): at for at in range(200)}
    right, _ = recounted(EACH, [block(values)], points, chunk_ms=500)
    assert (right.expected, right.off, right.nothing) == (200, 0, None)
    for damaged, found in (
        ({key: value for key, value in points.items() if key[0] != 1000}, (1, 0, 0)),
        (points | {(1000, ("A",)): 7}, (0, 1, 0)),
        (points | {(1005, ("A",)): 7}, (0, 0, 1)),
        (points | {(1000, ("B",)): 100}, (0, 0, 1)),
    ):
        result, _ = recounted(EACH, [block(values)], damaged, chunk_ms=500)
        assert (result.missing, result.wrong, result.unexpected) == found, result.examples


def test_events_with_one_identity_are_one_point_with_the_value_of_any() -> None:
    for value, wrong in ((1, 0), (2, 0), (3, 1)):
        result, _ = recounted(EACH, [block([trade(0, 1), trade(0, 2)])], {(0, ("A",)): value})
        assert (result.expected, result.wrong) == (1, wrong)


def test_points_of_events_that_are_written_and_not_committed_are_explained_by_these_events() -> None:
    """A batch is written before it is committed, and its events may be older than those that are."""
    values = [trade(0, 1), trade(100, 2), trade(50, 3), trade(60, 4)]
    points = {(0, ("A",)): 1, (100, ("A",)): 2, (50, ("A",)): 3}
    result, _ = recounted(EACH, [block(values[:2])], points, end=2, later=[block(values[2:], 2)])
    assert (result.expected, result.off) == (2, 0)
    result, _ = recounted(EACH, [block(values[:2])], points | {(70, ("A",)): 9}, end=2, later=[block(values[2:], 2)])
    assert result.unexpected == 1
    wrong = points | {(50, ("A",)): 4}
    result, _ = recounted(EACH, [block(values[:2])], wrong, end=2, later=[block(values[2:], 2)])
    assert result.unexpected == 1


def test_an_event_that_comes_minutes_late_is_still_a_point() -> None:
    old = [trade(at * 1000, at) for at in range(300)]
    points = {(at * 1000, ("A",)): at for at in range(300)} | {(500, ("A",)): 7}
    late = [block(old), block([trade(299_000, 299)] * 20_000, 300), block([trade(500, 7)], 20_300)]
    result, _ = recounted(EACH, late, points, chunk_ms=10_000)
    assert (result.expected, result.off) == (301, 0)
    del points[500, ("A",)]
    result, _ = recounted(EACH, late, points, chunk_ms=10_000)
    assert (result.missing, result.unexpected) == (1, 0)


def test_texts_may_be_points() -> None:
    spec = EACH.model_copy(update={"column": "symbol", "by": ()})
    values = [trade(0, symbol="A"), trade(1, symbol="B")]
    result, _ = recounted(spec, [block(values)], {(0, ()): "A", (1, ()): "C"})  # type: ignore[dict-item]
    assert (result.expected, result.wrong) == (2, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"column": "nothing"}, "no column nothing; it has symbol, price"),
        ({"by": ("nobody",)}, "no column nobody"),
        ({"where": "cost > 1"}, "no column cost"),
        ({"column": "symbol"}, "symbol is string, which has no average"),
    ],
)
def test_words_that_do_not_fit_the_source_are_the_stages_problem(change: dict[str, Any], says: str) -> None:
    result, _ = recounted(AVG_1S.model_copy(update=change), [block([trade(0), trade(2000)])], {}, bound=1000)
    assert says in result.problem


def test_an_event_within_the_watermark_delay_counts_for_certain() -> None:
    spec = AVG_1S.model_copy(update={"delay": "2 seconds"})
    events = block([trade(0, 100), trade(1500, 5), trade(900, 200), trade(9000)])
    good, _ = recounted(spec, [events], {(1000, ("A",)): 150.0, (2000, ("A",)): 5.0}, bound=2000)
    assert (good.off, good.late) == (0, 0)
    dropped, _ = recounted(spec, [events], {(1000, ("A",)): 100.0, (2000, ("A",)): 5.0}, bound=2000)
    assert dropped.wrong == 1


def test_a_window_of_late_events_alone_may_or_may_not_exist() -> None:
    events = block([trade(5000, 5), trade(900, 200), trade(9000)])
    for points in ({(6000, ("A",)): 5.0}, {(6000, ("A",)): 5.0, (1000, ("A",)): 200.0}):
        result, _ = recounted(AVG_1S, [events], points, bound=6000)
        assert (result.off, result.expected) == (0, 1)
    result, _ = recounted(AVG_1S, [events], {(6000, ("A",)): 5.0, (1000, ("A",)): 201.0}, bound=6000)
    assert result.wrong == 1


def test_events_later_than_the_horizon_are_reported() -> None:
    first = block([trade(0, 100), trade(100_000, 5)])
    second = block([trade(500, 7)] + [trade(100_001)] * 20_000, first=2)
    filler = block([trade(100_000, 5)] * 20_000, first=10**6)
    result, _ = recounted(AVG_1S, [first, filler, second], {(1000, ("A",)): 100.0}, bound=50_000)
    assert (result.beyond, result.off) == (1, 0)
    assert "60000 ms late" in result.notes[0]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"not json", b"[]", b"7", b'{"symbol":"A"}', b"\xff\xfe", trade(0)[:-5],
     b'{"symbol":"A","price":"12","quantity":1,"time":1800000000000}',
     b'{"symbol":null,"price":12,"quantity":1,"time":1800000000000}',
     b'{"symbol":"A","price":1.5,"quantity":1,"time":1800000000000}',
     b'{"symbol":"A","price":true,"quantity":1,"time":1800000000000}',
     b'{"symbol":"A","price":9223372036854775808,"quantity":1,"time":1800000000000}'],
)  # fmt: skip
def test_malformed_records_are_counted_and_left_out(value: bytes | None) -> None:
    events = block([trade(0, 100), value, trade(2000)])
    result, reader = recounted(AVG_1S, [events], {(1000, ("A",)): 100.0}, bound=1000)
    assert (result.off, result.expected) == (0, 1)
    assert (reader.malformed, reader.ahead) == (1, 0)


def test_what_spark_reads_leniently_is_read() -> None:
    values = [
        b' {"symbol":"A","price":100,"quantity":1,"time":1800000000000,"more":{"x":[1]}}',
        b'{"symbol":"B","symbol":"A","price":102,"quantity":1,"time":1800000000001} and more',
        b'{"symbol":5,"price":1,"quantity":1,"time":1800000000001}',
    ]
    result, reader = recounted(
        AVG_1S, [block([*values, trade(2000)])], {(1000, ("A",)): 101.0, (1000, ("5",)): 1.0}, bound=1000
    )
    assert (result.off, result.expected, reader.malformed) == (0, 2, 0)


@pytest.mark.parametrize(("ahead", "counted"), [(10_000, 0), (10_001, 1), (10**12, 1), (9 * 10**18 - T0, 1)])
def test_events_too_far_ahead_of_their_record_are_left_out_before_the_watermark(ahead: int, counted: int) -> None:
    values = [trade(0, 100), trade(ahead, 1), trade(20, 200)]
    result, reader = recounted(AVG_1S, [block(values, timestamps=[T0] * 3)], {(1000, ("A",)): 150.0}, bound=1000)
    assert reader.ahead == counted
    if counted:  # had it moved the watermark, the last event would have been late
        assert (result.off, result.late) == (0, 0)


def test_points_of_an_earlier_deployment_before_the_first_window_of_a_stage_that_began_anew_are_left_alone() -> None:
    written = {(-5000, ()): 7, (-1000, ()): 8, (1000, ()): 10, (2000, ()): 20}
    values = [trade(100, quantity=10), trade(1100, quantity=20)]
    result, _ = recounted(VOL_1S, [block(values)], written, bound=2000, from_the_beginning=False, had_forerunner=True)
    assert (result.off, result.expected) == (0, 2)
    alone, _ = recounted(VOL_1S, [block(values)], written, bound=2000, from_the_beginning=False)
    assert alone.unexpected == 2  # no one else ever wrote this measurement
    added = written | {(3000, ()): 9}
    later, _ = recounted(VOL_1S, [block(values)], added, bound=3000, from_the_beginning=False, had_forerunner=True)
    assert later.unexpected == 1


def test_after_going_back_what_stands_beyond_the_restored_position_is_judged_only_once_it_is_written_again() -> None:
    values = [trade(100, quantity=10), trade(1100, quantity=20), trade(2100, quantity=30), trade(3100, quantity=1)]
    newer = {(1000, ()): 10, (2000, ()): 21, (3000, ()): 31}  # a version that counted wrongly from the second window on
    behind, _ = recounted(VOL_1S, [block(values)], newer, end=2, bound=1000)
    assert (behind.off, behind.expected) == (0, 1)
    again, _ = recounted(VOL_1S, [block(values)], newer | {(2000, ()): 20}, end=3, bound=2000)
    assert (again.off, again.expected) == (0, 2)
    not_again, _ = recounted(VOL_1S, [block(values)], newer, end=4, bound=3000)
    assert not_again.wrong == 2  # nothing is excused: the old version should have written these again
    between = newer | {(2500, ()): 5}
    left, _ = recounted(VOL_1S, [block(values)], between | {(2000, ()): 20, (3000, ()): 30}, end=4, bound=3000)
    assert left.unexpected == 1  # a point that only the newer version writes stays, and is shown


def test_times_may_be_seconds_or_timestamps() -> None:
    for schema, value in [
        ("page string, time timestamp", {"page": "p", "time": "2027-01-15T08:00:00.250Z"}),
        ("page string, time timestamp", {"page": "p", "time": "2027-01-15 10:00:00.250+02:00"}),
        ("page string, time double", {"page": "p", "time": T0 / 1000 + 0.25}),
        ("page: string, time: int", {"page": "p", "time": T0 // 1000}),
    ]:
        source = Source.model_validate(
            {"kafka": {"topic": "c"}, "schema": schema, "event_time": "time", "event_time_unit": "seconds"}
        )
        spec = Recount(source="c", aggregate="count", by=("page",), window="1 minute")
        result, reader = recounted(
            spec, [block([json.dumps(value).encode()])], {(60_000, ("p",)): 1}, bound=60_000, source=source
        )
        assert (reader.malformed, result.off, result.expected) == (0, 0, 1), schema


def test_a_schema_that_cannot_be_recounted_is_refused() -> None:
    source = Source.model_validate(
        {"kafka": {"topic": "c"}, "schema": "a array<int>, time bigint", "event_time": "time"}
    )
    with pytest.raises(DefinitionError, match="cannot read the column 'a array<int>'"):
        recounted(VOL_1S, [], {}, source=source)


@pytest.mark.parametrize(
    ("values", "bound", "more", "nothing"),
    [
        ([trade(0)], 999, {}, "no closed window"),
        ([], 5000, {}, "no event"),
        ([b"not json"], 5000, {}, "no event"),
        ([trade(0), trade(900)], 1000, {"whole_only": True}, "short range"),
        ([], 5000, {"whole_only": True}, "short range"),
        ([trade(0), trade(1500)], 2000, {"after": 2000}, "no closed window"),
    ],
)
def test_nothing_compared_is_not_clean_and_says_why(
    values: list[bytes | None], bound: int, more: dict[str, Any], nothing: str
) -> None:
    result, _ = recounted(AVG_1S, [block(values)] if values else [], {}, bound=bound, **more)
    assert result.nothing == nothing
    clean, reason = verdict((result,))
    assert not clean
    assert f"nothing was compared (stage: {WORDS[result.nothing]})" in reason


def test_nothing_compared_of_one_stage_is_not_clean_unless_the_range_was_chosen_too_short() -> None:
    good = Measured(stage="good", measurement="good", expected=3)
    for nothing in WORDS:
        other = Measured(stage="other", measurement="other", nothing=nothing)
        clean, reason = verdict((good, other))
        assert clean == (nothing == "short range"), nothing
        assert clean or reason.startswith(f"nothing of some stages was compared (other: {WORDS[nothing]})")
    clean, reason = verdict((), {}, {"unsaid": "it writes no points"})
    assert (clean, reason) == (False, "nothing was compared (unsaid: it writes no points)")


STAGES = """
job: trades
version: v1
code: trades.py
sources: {trades: {kafka: {topic: trades}, schema: "price bigint, time bigint", event_time: time}}
stages:
  whole: {sinks: [{influxdb: {measurement: whole}}], recount: {source: trades, aggregate: count, window: 1 second}}
  fresh: {sinks: [{influxdb: {measurement: fresh}}], recount: {source: trades, aggregate: count, window: 1 second}}
  broken: {sinks: [{influxdb: {measurement: broken}}], recount: {source: trades, aggregate: count, window: 1 second}}
  unsaid: {sinks: [{influxdb: {measurement: unsaid}}]}
  whole_too: {sinks: [{influxdb: {measurement: whole_too}}]}
  apart:
    sinks: [{influxdb: {measurement: apart, secret: theirs}}]
    recount: {source: trades, aggregate: count, window: 1 second}
"""


def test_a_recount_says_what_it_left_out_and_a_damaged_checkpoint_is_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_tail(store: object, prefix: str) -> checkpoints.Tail | None:
        if prefix.endswith("broken/"):
            raise CheckpointError("a file is missing")
        return checkpoints.Tail(prefix, 3, {"trades": {"0": 9}}, 5000, "q", ()) if "/whole" in prefix else None

    monkeypatch.setattr(checkpoints, "find_tail", find_tail)
    monkeypatch.setattr(checkpoints, "current_epoch_prefix", lambda *_: "checkpoints/trades/d1/e1/")
    deployment = Deployment(
        job="trades", number=1, version="v1", artifact_sha256="a", runtime_sha256="r", created=now(), created_by="op",
        stages={"whole": StageStart(since_deployment=1)},
    )  # fmt: skip
    stateless = Fingerprint(spark="4", output="append", provider="R", partitions=1, sources=("trades",))
    ledger: Any = SimpleNamespace(beginning_offsets=lambda topic: {"0": 0})
    held = Held(ledger, parse(STAGES), deployment.topics)
    planner = _Planner(SimpleNamespace(), held, deployment, {}, {}, {"whole_too": stateless})  # type: ignore[arg-type]
    assert [plan.stage for plan in planner.plans(set())["trades"]] == ["whole"]
    assert planner.left_out == {
        "unsaid": "its definition does not say how (recount), and there is no fingerprint of its plan",
        "apart": "it writes to another InfluxDB (secret theirs), which is not read here",
    }
    ((own, reached),) = planner.functions
    assert (own.stage, own.records, reached) == ("whole_too", {"trades": ({"0": 0}, {"0": 9})}, Reach(None, None))
    assert [(item.stage, item.nothing, item.young) for item in planner.waiting] == [("fresh", "not begun", True)]
    good = Measured(stage="whole", measurement="whole", expected=3)
    assert verdict((good,), planner.damaged) == (False, "broken could not be recounted: a file is missing")
    assert verdict((good,)) == (True, "all 3 points are as the ledger says")


@pytest.mark.parametrize("whole_only", [False, True])
def test_windows_that_another_job_closed_are_not_looked_at_and_those_it_left_open_are(whole_only: bool) -> None:
    events = block([trade(-5000), trade(0, 100), trade(1000, 7), trade(1500, 9), trade(4000)])
    theirs, mine, extra = (1000, ("A",)), (2000, ("A",)), (1500, ("A",))
    good, _ = recounted(AVG_1S, [events], {mine: 8.0}, bound=2000, after=1000, whole_only=whole_only)
    assert (good.expected, good.off) == (1, 0)
    also, _ = recounted(AVG_1S, [events], {theirs: 0.0, mine: 8.0}, bound=2000, after=1000, whole_only=whole_only)
    assert also.off == 0
    skipped, _ = recounted(AVG_1S, [events], {mine: 9.0}, bound=2000, after=1000, whole_only=whole_only)
    assert skipped.wrong == 1
    surplus, _ = recounted(AVG_1S, [events], {mine: 8.0, extra: 1.0}, bound=2000, after=1000, whole_only=whole_only)
    assert surplus.unexpected == 1


def test_partitions_are_taken_together() -> None:
    blocks = [block([trade(0, 100)]), block([trade(10, 200)], partition=1), block([trade(2000)], first=1)]
    result, _ = recounted(AVG_1S, blocks, {(1000, ("A",)): 150.0}, bound=1000)
    assert (result.expected, result.off) == (1, 0)


def test_the_start_of_a_stage_comes_from_its_deployment_retention_and_the_request() -> None:
    def found(own: dict[str, int] | None, kept: int, since: int | None = None) -> Span:
        return span("s", own, {"0": kept}, {"0": 900}, {"0": since} if since is not None else None)

    assert found({}, 0) == Span({"0": 0}, {"0": 900}, from_the_beginning=True)
    assert found({"0": 500}, 0) == Span({"0": 500}, {"0": 900})
    overtaken = found({"0": 500}, 600)
    assert (overtaken.start, overtaken.whole_only) == ({"0": 600}, True)
    assert "retention" in overtaken.notes[0]
    assert found({"0": 500}, 0, 700) == Span({"0": 700}, {"0": 900}, whole_only=True)
    assert found({"0": 500}, 0, 300) == Span({"0": 500}, {"0": 900})
    assert found(None, 0, 300) == Span({"0": 300}, {"0": 900}, whole_only=True)
    with pytest.raises(RefusedError, match="no offset was recorded"):
        found(None, 0)


def test_what_another_code_has_written_is_not_recounted_with_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def deployed(number: int, code: str, **more: Any) -> Deployment:
        found = Deployment(
            job="trades", number=number, version="v", artifact_sha256=code, runtime_sha256="r", created=now(),
            created_by="op", from_deployment=number - 1 or None, **more,
        )  # fmt: skip
        return found.model_copy(update={"from_snapshot": f"trades/s{number}" if number > 1 else None})

    def begins(last: int, **changed: Deployment) -> dict[str, dict[str, int]]:
        codes = {1: "old", 2: "old", 3: "new", 4: "new"}
        there: dict[str, Any] = {
            keys.deployment("trades", number): changed.get(f"d{number}") or deployed(number, code)
            for number, code in codes.items()
        }
        for number in (2, 3, 4):
            stages = {"whole": SimpleNamespace(offsets={"trades": {"0": 100 * number}})}
            there[keys.manifest("trades", f"s{number}")] = SimpleNamespace(stages=stages)
        monkeypatch.setattr("streamops.recount.recounting.documents.find", lambda store, key, kind: there.get(key))
        held = Held(SimpleNamespace(), parse(STAGES), {})  # type: ignore[arg-type]
        return _Planner(SimpleNamespace(), held, there[keys.deployment("trades", last)], {}, {})._own_code("whole")  # type: ignore[arg-type]

    assert begins(4) == begins(3) == {"trades": {"0": 300}}
    assert begins(2) == {}  # since the first deployment
    brought = deployed(4, "new", library_since={"whole": {"trades": {"0": 450}}})
    assert begins(4, d4=brought) == {"trades": {"0": 450}}  # by a restart of the cluster, with another library
    assert begins(4, d4=deployed(4, "new", params={"size": 2})) == {"trades": {"0": 400}}
