"""When what a watcher finds is worth a run: at once, then more and more seldom, and never given up."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from streamops.upkeep.watching import FIRST_S, LONGEST_S, REPORT_S, WELL_S, Finding, Found, Memory

GONE = Finding("sums", "start", "its driver is gone")
DOWN = Finding("node-2", "start", "its program did not run")
DAMAGED = Finding("other", "trouble", "its record cannot be read", mends=False)
EVERY_S = 5
WELL, BUSY = Found(), Found(busy=frozenset({"sums"}))


def found(*findings: Finding) -> Found:
    return Found(findings)


def runs(memory: Memory, looks: Iterable[Found], since: int = 0) -> list[int]:
    """When a run was begun, of a watcher that looks every five seconds."""
    times = ((since + EVERY_S * at, look) for at, look in enumerate(looks))
    return [at for at, look in times if memory.worth(look, at)]


def test_what_is_new_is_worth_a_run_at_once_and_nothing_is_worth_none() -> None:
    memory = Memory()
    assert memory.worth(WELL, 0) == ()
    assert memory.worth(found(GONE), 5) == (GONE,)
    assert memory.worth(found(GONE), 10) == ()
    assert memory.worth(found(GONE, DOWN), 15) == (DOWN,)  # the run for the one deals with the other as well
    assert memory.worth(found(GONE, DOWN), 15 + FIRST_S) == (DOWN,)


def test_what_stays_is_tried_again_after_twice_the_wait_and_never_given_up() -> None:
    begun = runs(Memory(), [found(GONE)] * 1000)
    waits = [after - before for before, after in pairwise(begun)]
    assert waits[:5] == [15, 30, 60, 120, 240]
    assert set(waits[5:]) == {LONGEST_S}
    assert len(waits) > 15


def test_what_no_run_can_mend_is_told_at_once_and_then_each_hour() -> None:
    begun = runs(Memory(), [found(DAMAGED)] * 5000)
    assert begun[0] == 0
    assert begun[-1] - begun[-2] == REPORT_S
    assert max(after - before for before, after in pairwise(begun)) == REPORT_S


def test_no_run_is_begun_for_what_a_pending_one_may_deal_with_and_it_is_not_forgotten() -> None:
    memory = Memory()
    assert memory.worth(found(GONE), 0, pending=True) == ()
    assert memory.worth(found(GONE), 5) == (GONE,)
    assert memory.worth(found(GONE), 200, pending=True) == ()
    assert memory.worth(found(GONE), 205) == (GONE,)
    assert memory.worth(found(GONE), 205 + FIRST_S) == ()  # it waits for twice as long by now


def test_a_start_that_fails_again_and_again_is_tried_more_and_more_seldom() -> None:
    """Each takes some minutes, in which an operation holds the job: that is no sign of its being well."""
    attempt = [found(GONE), *[BUSY] * 20]
    begun = runs(Memory(), [*attempt, *attempt, *attempt, *attempt, *[found(GONE)] * 100])
    assert begun[:4] == [0, 105, 210, 315]  # the waits, of 15, 30, 60 seconds, are over when it has failed
    assert begun[4] - begun[3] == 120
    assert begun[5] - begun[4] == 240


@pytest.mark.full
def test_what_was_well_for_a_minute_is_new_when_it_is_found_again() -> None:
    memory = Memory()
    assert runs(memory, [found(GONE)] * 20) == [0, 15, 45]
    assert memory.worth(WELL, 100) == ()
    assert memory.worth(found(GONE), 102) == ()  # not for a minute yet
    assert memory.worth(WELL, 102 + WELL_S) == ()
    assert memory.worth(WELL, 103 + WELL_S) == ()
    assert memory.worth(found(GONE), 104 + WELL_S) == (GONE,)
    assert memory.worth(found(GONE), 104 + WELL_S + FIRST_S) == (GONE,)
