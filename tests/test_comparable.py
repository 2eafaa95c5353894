"""Which stages in batches a rehearsal can compare, and when a point of theirs is final."""

from __future__ import annotations

import pytest

from fakes.driver import WINDOW
from fakes.rig import SUM, WINDOWED, definition
from streamops.model.definitions import parse
from streamops.operations.comparable import Comparable, why_not
from streamops.versions.fingerprints import Fingerprint, Operator

PLAIN = definition("v1", ("a",)).model_dump_json(by_alias=True, exclude_defaults=True)
SINK, SOURCE = '{"influxdb":{"measurement":"a"}}', '"kafka":{"topic":"events"}'
'{"influxdb":{"measurement":"a","secret":"theirs"}}'
STAGES = f'"stages":{{"a":{{"sinks":[{SINK}]'
LOG = '"guarantee":"at-least-once","stages":{"a":{"sinks":[{"log":{}}]'
ELSEWHERE = '{"influxdb":{"measurement":"a","secret":"theirs"}}'
FILES = '"csv_tail":{"directory":"/d"}'
LIVE = '{"mode":"realtime","output":"update","sinks":['


def side(plan: Fingerprint | None = WINDOWED, old: str = SINK, new: str = SINK) -> Comparable:
    """A version with one stage in batches, with one text of its definition changed."""
    assert old in PLAIN
    return Comparable(parse(PLAIN.replace(old, new)), {"a": plan})


def windowed(**window: object) -> Fingerprint:
    """Another window of it."""
    (operator,) = WINDOWED.operators
    (key,) = operator.keys
    assert key.window
    keys = (key.model_copy(update={"window": key.window.model_copy(update=window)}),)
    return WINDOWED.model_copy(update={"operators": (operator.model_copy(update={"keys": keys}),)})


JOINED = WINDOWED.model_copy(update={"operators": (Operator(kind="join"), *WINDOWED.operators)})
OTHER_TIME, LONG = windowed(time="events.other"), windowed(size_us=60_000_000)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (side(), side(), ""),
        (side(), side(old='{"sinks":[', new=LIVE), ""),
        (side(old='{"sinks":[', new=LIVE), side(), ""),
        (side(SUM), side(old='{"sinks":[', new=LIVE), "a of v1 has no windows that its watermark alone closes"),
        (side(SUM), side(), "a of v1 has no windows that its watermark alone closes"),
        (side(), side(None), "what a of v1 computes is not known"),
        (side(), side(old=STAGES, new=LOG), "a of v1 writes no points to InfluxDB"),
        (side(new=ELSEWHERE), side(), "a of v1 writes to another InfluxDB"),
        (side(), side(old=SOURCE, new=FILES), "a of v1 reads events, and it is not known where that ends"),
        (side(old='"a":', new='"other":'), side(old='"a":', new='"b":'), ""),  # no stage in both
        (side(), side(new=f'{{"log":{{}}}},{SINK}'), ""),
        (side(), side(new=f"{SINK},{SINK}".replace('"a"', '"b"', 1)), "a of v1 writes points by more than one sink"),
        (side(), side(JOINED), "a of v1 has no windows that its watermark alone closes"),
        (side(), side(OTHER_TIME), "a of v1 has no windows that its watermark alone closes"),
        (side(), side(old='"version"', new='"trigger":"2 minutes","version"'), "a of v1 begins a batch only every 2"),
        (side(), side(old='"version"', new='"trigger":"10 seconds","version"'), ""),
        (side(), side(LONG), "a point of a of v1 may change for 60 s"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(old: Comparable, new: Comparable, says: str) -> None:
    why = why_not(old, new, 60)
    assert why.startswith(says)
    assert bool(why) == bool(says)


def test_a_session_has_no_size_by_which_it_would_be_closed() -> None:
    assert "no windows" in why_not(side(windowed(kind="session", gap="5 seconds")), side(), 60)


def test_a_point_may_change_for_as_long_as_its_window_unless_its_time_is_the_end_of_it() -> None:
    recount = '{"recount":{"source":"events","aggregate":"count","window":"1 second"},"sinks":['
    assert side().open_ms("a") == WINDOW * 25
    assert side(old='{"sinks":[', new=recount).open_ms("a") == 0
    assert side(old='{"sinks":[', new=LIVE).open_ms("a") == 0
