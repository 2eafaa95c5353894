"""What a stage hands on to others: differences that add up to what it says, whatever comes twice or late."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import pytest

from streamops.model.feeds import FOR, TOTAL, Handed, continued, encoded
from streamops.model.records import EarlierRun, ResultsPosition


def handed() -> Handed:
    return Handed(("symbol",), "time", ("cents", "trades"))


def row(symbol: str, time: int, cents: int, trades: int) -> dict[str, Any]:
    return {"symbol": symbol, "time": time, "cents": cents, "trades": trades, "value": cents / (trades or 1)}


def test_the_first_value_of_a_point_is_handed_on_whole_and_then_what_changes() -> None:
    memory = handed()
    first = memory.change(row("A", 1000, 300, 3))
    assert first == {"symbol": "A", "time": 1000, "cents": 300, "trades": 3, TOTAL: [300, 3]}
    memory.note(first, 0)
    assert memory.change(row("A", 1000, 300, 3)) is None
    second = memory.change(row("A", 1000, 250, 4))
    assert second is not None
    assert (second["cents"], second["trades"], second[TOTAL]) == (-50, 1, [250, 4])


@pytest.mark.parametrize("number", range(200))
def test_differences_add_up_to_the_last_value_with_a_crash_anywhere(number: int) -> None:
    """After a crash the topic is read again from ``since``, and results are given again from anywhere before."""
    chance = random.Random(number)
    values = [
        (chance.choice("AB"), chance.randint(1, 3), chance.randint(-5, 5), chance.randint(0, 5))
        for _ in range(chance.randint(0, 12))
    ]
    crash = chance.randint(0, len(values))
    topic: list[dict[str, Any]] = []
    memory, sums = handed(), defaultdict[Any, list[int]](lambda: [0, 0])

    def hand_on(value: tuple[str, int, int, int]) -> None:
        change = memory.change(row(*value))
        if change:
            memory.note(change, len(topic))
            topic.append(change)
            sums[change["symbol"], change["time"]][0] += change["cents"]
            sums[change["symbol"], change["time"]][1] += change["trades"]

    for value in values[:crash]:
        hand_on(value)
    since, memory = memory.since, handed()
    for offset, record in enumerate(topic):
        if offset >= since:
            memory.note(record, offset)
    for value in values[chance.randint(0, crash) :]:
        hand_on(value)
    last = {(symbol, time): [cents, trades] for symbol, time, cents, trades in values}
    assert {key: total for key, total in sums.items() if any(total)} == {
        key: total for key, total in last.items() if any(total)
    }


def test_a_point_that_was_forgotten_is_not_handed_on_again() -> None:
    memory = handed()
    memory.note({"symbol": "A", "time": 1000, TOTAL: [1, 1]}, 0)
    memory.note({"symbol": "A", "time": 2000, TOTAL: [1, 1]}, 1)
    memory.forget(1000)
    assert (len(memory), memory.since) == (1, 1)
    assert memory.change(row("A", 1000, 2, 2)) is None
    assert memory.left_out == 1
    memory.forget(2000)
    assert memory.since == memory.next == 2


def test_the_next_deployment_s_feed_begins_with_what_is_unread_or_may_still_change() -> None:
    records = [(offset, encoded({"symbol": "A", "time": offset, "cents": 1, TOTAL: [1]})) for offset in range(6)]
    found = continued(records, since=4, read={"fast": 5, "slow": 3})
    told = {json.loads(text)["time"]: json.loads(text)[FOR] for text in found}
    assert told == {3: ["slow"], 4: ["slow"], 5: ["fast", "slow"]}


def test_what_a_reader_had_before_that_deployment_stays_read() -> None:
    old = encoded({"symbol": "A", "time": 1, "cents": 1, TOTAL: [1], FOR: ["slow"]})
    assert json.loads(continued([(0, old)], since=0, read={"fast": 0, "slow": 0})[0])[FOR] == ["slow"]
    assert json.loads(continued([(0, old)], since=0, read={"fast": 0, "slow": 1})[0])[FOR] == []


def test_results_of_a_run_before_count_up_to_where_it_ended() -> None:
    position = ResultsPosition(
        job="j", stage="s", epoch=3, run=2, offset=5, before=(EarlierRun(epoch=3, run=1, until=9),)
    )
    assert position.counts(8, b"3.1:0 {}")
    assert not position.counts(9, b"3.1:0 {}")  # what an ended query still sends
    assert position.counts(9, b"3.2:0 {}")
    assert not position.counts(8, b"2.7:0 {}")
    assert not position.counts(8, b"3.12:0 {}")


def test_what_a_run_gives_before_it_has_passed_the_one_before_is_of_parts() -> None:
    position = ResultsPosition(job="j", stage="s", epoch=3, run=2, behind=(1,))
    assert position.is_part(b"3.2:1 {}")
    assert not position.is_part(b"3.2:0 {}")
    assert not position.is_part(b"3.1:1 {}")  # whole, as the run before had given it
