"""When a stage is filled again from the ledger, and from where on it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamops.model.definitions import parse
from streamops.model.errors import RefusedError
from streamops.model.records import StageStart
from streamops.operations import refilling
from streamops.operations.refilling import Stood
from streamops.versions import refill
from streamops.versions.compatibility import continued, verdicts
from streamops.versions.fingerprints import Aggregate, Fingerprint, Key, Operator, Slot, Watermark, Window

MINUTE, SECOND = 60_000, 1000
LEDGER = {"trades": "time"}
AT = 1_700_000_000_000


def window(size_s: int, slide_s: int | None = None, kind: Any = None) -> Window:
    slide = slide_s or size_s
    kind = kind or ("tumbling" if slide == size_s else "sliding")
    return Window(kind=kind, time="trades.time", size_us=size_s * 1_000_000, slide_us=slide * 1_000_000)


def operator(found: Window | None, kind: Any = "aggregation") -> Operator:
    total = Aggregate(function="sum", text="sum(trades.price)", buffer=(Slot(type="bigint", nullable=True),))
    key = Key(text=str(found), type="struct<start:timestamp,end:timestamp>", window=found)
    return Operator(kind=kind, keys=(key,), aggregates=(total,))


def stage(*windows: Window | None, output: str = "append", time: str = "trades.time", **more: Any) -> Fingerprint:
    values: dict[str, Any] = {"spark": "4.3.0", "output": output, "provider": "rocksdb", "partitions": 2}
    watermarks = (Watermark(column=time, delay="0 seconds"),)
    operators = tuple(operator(found) for found in windows)
    return Fingerprint(**{**values, "sources": ("trades",), "watermarks": watermarks, "operators": operators, **more})


def test_windows_over_windows_reach_as_far_as_both() -> None:
    assert refill.reach_ms(stage(window(1), window(60, 1)), LEDGER) == 61 * SECOND


@pytest.mark.parametrize(
    "found",
    [
        stage(),
        stage(None),
        stage(window(60, kind="session")),
        stage(window(16 * 60)),  # longer than anyone would wait for
        stage(window(1), time="trades.received"),  # not the time that max_ahead binds to the record's
        stage(window(1), operators=(operator(window(1)), operator(None, "deduplication"))),
    ],
    ids=["no state", "no window", "session", "long", "another time", "deduplication"],
)
def test_what_cannot_be_filled_again(found: Fingerprint) -> None:
    assert refill.reach_ms(found, LEDGER) is None


def test_a_source_that_cannot_be_read_from_a_time_on_cannot_fill_a_stage() -> None:
    assert refill.reach_ms(stage(window(1)), {}) is None


def test_results_that_end_with_their_window_are_whole_from_the_watermark_on() -> None:
    found = refill.plan(AT, MINUTE, stands_at_end=True)
    assert (found.since_ms, found.whole_after_ms) == (AT - MINUTE, AT)


def test_results_that_may_stand_at_their_window_s_begin_are_written_again_for_one_window() -> None:
    found = refill.plan(AT, MINUTE, stands_at_end=False)
    assert (found.since_ms, found.whole_after_ms) == (AT - 2 * MINUTE, AT - MINUTE)


def test_another_window_or_early_results_are_filled_again_and_need_no_yes() -> None:
    for old, new in (
        (stage(window(60, 1)), stage(window(30, 1))),
        (stage(window(60, 1)), stage(window(60, 1), output="update")),
    ):
        found = continued("s", old, new, LEDGER)
        assert (found.outcome, found.lost) == ("refilled", False)
        assert continued("s", old, new).lost  # without a ledger, what was open at the switch is lost


def test_an_incompatible_change_beside_it_stays_incompatible() -> None:
    other = stage(window(30, 1), provider="hdfs")
    assert continued("s", stage(window(60, 1)), other, LEDGER).outcome == "incompatible"


def test_early_results_off_keep_their_state() -> None:
    assert continued("s", stage(window(1), output="update"), stage(window(1)), LEDGER).outcome == "kept"


class Topic:
    """A record each second since ``AT``, of which the first are gone."""

    def __init__(self, kept_from: int = 0) -> None:
        self.kept_from = kept_from

    def beginning_offsets(self, topic: str) -> dict[str, int]:
        return {"0": self.kept_from}

    def offsets_at(self, topic: str, time_ms: int) -> dict[str, int]:
        return {"0": max(self.kept_from, (time_ms - AT) // SECOND)}


DEFINITION = """
job: trades
version: v2
code: trades.py
sources: {trades: {kafka: {topic: trades}, schema: "price bigint, time bigint", event_time: time, max_ahead: 5 seconds}}
stages:
  avg:
    output: append
    sinks: [{influxdb: {measurement: avg}}]
    recount: {source: trades, aggregate: average, column: price, window: 30 seconds, slide: 1 second}
"""


def begin(topic: Topic, started: int = 0, watermark_ms: int | None = AT + 100 * SECOND) -> StageStart:
    plans = {"avg": stage(window(30, 1)).model_dump(mode="json", exclude_defaults=True)}
    version: Any = SimpleNamespace(definition=parse(DEFINITION), fingerprints=plans)
    own = StageStart(since_deployment=1, offsets={"trades": {"0": started}} if started else {})
    stood = {"avg": Stood({"trades": {"0": 102}}, watermark_ms, own)}
    return refilling.starts(topic, version, {"avg"}, stood, {"trades": "trades"}, 2)["avg"]  # type: ignore[arg-type]


def test_a_stage_begins_one_window_before_the_watermark_and_as_much_as_events_may_be_ahead() -> None:
    found = begin(Topic())
    assert found == StageStart(since_deployment=2, offsets={"trades": {"0": 65}}, whole_after_ms=AT + 100 * SECOND)


def test_it_does_not_begin_before_its_own_first_event() -> None:
    assert begin(Topic(), started=80).offsets == {"trades": {"0": 80}}


def test_before_anything_was_finished_it_begins_where_it_began() -> None:
    found = begin(Topic(), started=80, watermark_ms=None)
    assert (found.offsets, found.whole_after_ms) == ({"trades": {"0": 80}}, None)


def test_a_topic_that_no_longer_holds_the_window_is_refused_and_nothing_is_stopped() -> None:
    assert begin(Topic(kept_from=60)).offsets == {"trades": {"0": 65}}
    with pytest.raises(RefusedError, match=r"Stage avg .* topic trades, which no longer holds"):
        begin(Topic(kept_from=90))
    assert begin(Topic(kept_from=90), started=90).offsets == {"trades": {"0": 90}}  # there never was more


FILLING = (
    DEFINITION
    + """
  low:
    fill: 1 minute
    output: append
    sinks: [{influxdb: {measurement: low}}]
    recount: {source: trades, aggregate: min, column: price, window: 30 seconds, slide: 1 second}
"""
)


def fill(topic: Topic, watermark_ms: int | None = AT + 100 * SECOND) -> dict[str, StageStart]:
    plans = {name: stage(window(30, 1)).model_dump(mode="json", exclude_defaults=True) for name in ("avg", "low")}
    version: Any = SimpleNamespace(definition=parse(FILLING), fingerprints=plans)
    stood = {"avg": Stood({"trades": {"0": 102}}, watermark_ms, StageStart(since_deployment=1))}
    return refilling.starts(topic, version, {"low"}, stood, {"trades": "trades"}, 2)  # type: ignore[arg-type]


def test_a_new_stage_fills_itself_and_the_others_are_left_alone() -> None:
    """Results after 40 need events after 10, which may stand five seconds earlier."""
    start = StageStart(
        since_deployment=2,
        offsets={"trades": {"0": 5}},
        whole_after_ms=AT + 40 * SECOND,
        filled_to_ms=AT + 100 * SECOND,
    )
    assert fill(Topic()) == {"low": start}


def test_where_the_others_have_finished_nothing_yet_it_fills_itself_up_to_the_present() -> None:
    (start,) = fill(Topic(), watermark_ms=None).values()
    assert start.filled_to_ms
    assert start.whole_after_ms == start.filled_to_ms - MINUTE


def test_a_new_stage_is_refused_where_the_topic_no_longer_holds_what_fills_it() -> None:
    with pytest.raises(RefusedError, match=r"begin 1 minute before the others \(fill\), which topic trades no longer"):
        fill(Topic(kept_from=90))


def test_a_new_stage_is_filled_where_its_definition_says_so_and_else_begins_where_the_others_stand() -> None:
    old, new = {"avg": stage(window(30, 1))}, {"avg": stage(window(30, 1)), "low": stage(window(30, 1))}
    assert outcomes(old, new) == {"avg": "kept", "low": "starts empty"}
    _, found = verdicts(old, new, ledger=FEEDS, fill={"low": "1 minute"})
    assert (found.outcome, found.lost) == ("refilled", False)
    assert "1 minute before the other stages" in found.consequence


@pytest.mark.parametrize(
    "found",
    [stage(window(30, kind="session")), stage(window(30, 1), sources=("panes",), reads=("avg",)), None],
    ids=["a session", "reads another stage", "nothing is known of it"],
)
def test_a_new_stage_that_cannot_be_filled_as_it_asks_needs_a_yes(found: Fingerprint | None) -> None:
    _, verdict = verdicts(
        {"avg": stage(window(30, 1))},
        {"avg": stage(window(30, 1)), "low": found},
        ledger=FEEDS,
        fill={"low": "1 minute"},
    )
    assert (verdict.outcome, verdict.lost) == ("starts empty", True)


READING = """
job: trades
version: v3
code: trades.py
sources:
  trades: {kafka: {topic: trades}, schema: "price bigint, time bigint", event_time: time, max_ahead: 5 seconds}
  panes: {stage: {name: second, add: [cents]}, schema: "cents bigint, time bigint", event_time: time}
stages:
  second:
    mode: realtime
    output: update
    sinks: [{influxdb: {measurement: second}}]
    recount: {source: trades, aggregate: average, column: price, window: 1 second}
  minute:
    mode: realtime
    output: update
    sinks: [{influxdb: {measurement: minute}}]
    recount: {source: trades, aggregate: average, column: price, window: 30 seconds, slide: 1 second}
"""
PANES = {"sources": ("panes",), "reads": ("second",), "time": "panes.time - INTERVAL"}
FEEDS = {"trades": "time", "panes": "time"}


def test_a_stage_that_reads_another_is_filled_again_through_it() -> None:
    """The minute was made of trades; now it needs the panes of a minute, which the other stage gives again."""
    plans = {"second": stage(window(1)), "minute": stage(window(30, 1), **PANES)}
    dumped = {name: found.model_dump(mode="json", exclude_defaults=True) for name, found in plans.items()}
    version: Any = SimpleNamespace(definition=parse(READING), fingerprints=dumped)
    own, offsets = StageStart(since_deployment=1), {"trades": {"0": 102}}
    stood = {"second": Stood(offsets, AT + 101 * SECOND, own), "minute": Stood(offsets, AT + 100 * SECOND, own)}
    topics = {"trades": "trades"}
    found = refilling.starts(Topic(), version, {"second", "minute"}, stood, topics, 2)  # type: ignore[arg-type]
    # Windows after 100 need panes after 70, and these events from 69 on, which may stand five seconds earlier.
    assert found["second"] == StageStart(
        since_deployment=2, offsets={"trades": {"0": 64}}, whole_after_ms=AT + 70 * SECOND
    )
    assert found["minute"] == StageStart(
        since_deployment=2, offsets={"trades": {"0": 64}}, whole_after_ms=AT + 100 * SECOND
    )


def outcomes(old: dict[str, Fingerprint], new: dict[str, Fingerprint]) -> dict[str, str]:
    return {item.stage: item.outcome for item in verdicts(old, new, ledger=FEEDS)}


def test_stages_that_read_each_other_are_kept_or_filled_again_together() -> None:
    second, minute, panes = stage(window(1)), stage(window(1), window(60, 1)), stage(window(60, 1), **PANES)
    both = {"second": second, "minute": panes}
    assert outcomes(both, both) == {"second": "kept", "minute": "kept"}
    assert outcomes({"second": second, "minute": minute}, both) == {"second": "refilled", "minute": "refilled"}
    assert outcomes(both, {"second": second, "minute": minute}) == {"second": "kept", "minute": "refilled"}
    wider = {"second": stage(window(2)), "minute": panes}
    assert outcomes(both, wider) == {"second": "refilled", "minute": "refilled"}
    half = {"second": second, "minute": stage(window(30, 1), **PANES)}
    assert outcomes(both, half) == {"second": "refilled", "minute": "refilled"}


def test_all_readers_of_a_stage_are_filled_again_together() -> None:
    second, panes = stage(window(1)), stage(window(60, 1), **PANES)
    old = {"second": second, "one": panes, "other": panes}
    assert outcomes(old, old | {"other": stage(window(30, 1), **PANES)}) == dict.fromkeys(old, "refilled")


def test_a_reader_cannot_be_filled_again_beside_one_that_has_to_be_kept() -> None:
    second, panes, session = stage(window(1)), stage(window(60, 1), **PANES), stage(window(60, kind="session"), **PANES)
    old = {"second": second, "one": session, "other": panes}
    found = verdicts(old, old | {"other": stage(window(30, 1), **PANES)}, ledger=FEEDS)
    assert {item.stage: (item.outcome, item.lost) for item in found} == {
        "second": ("kept", False),
        "one": ("kept", False),
        "other": ("starts empty", True),
    }


def test_one_more_aggregate_is_filled_again_where_the_ledger_has_the_events_and_else_refused() -> None:
    more = Aggregate(function="count", text="count(1)", buffer=(Slot(type="bigint", nullable=False),))
    before, (found,) = stage(window(1)), stage(window(1)).operators
    wider = found.model_copy(update={"aggregates": (*found.aggregates, more)})
    after = stage(window(1), operators=(wider,))
    assert outcomes({"s": before}, {"s": after}) == {"s": "refilled"}
    assert [item.outcome for item in verdicts({"s": before}, {"s": after})] == ["incompatible"]
    another = stage(window(1), operators=(wider.model_copy(update={"kind": "deduplication"}),))
    assert outcomes({"s": before}, {"s": another}) == {"s": "incompatible"}
