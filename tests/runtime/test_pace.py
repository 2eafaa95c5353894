"""How long a stage waits for its next window."""

from __future__ import annotations

from streamops_runtime.pace import ARRIVAL_MS, LONGEST_MS, Pace

SECOND = 1000


def test_after_a_window_the_next_batch_begins_when_the_following_one_has_ended() -> None:
    pace = Pace()
    assert pace.wait_ms([7 * SECOND], 7 * SECOND + 400) == 600 + ARRIVAL_MS
    assert pace.wait_ms([8 * SECOND], 8 * SECOND + 400) == 600 + ARRIVAL_MS


def test_shorter_windows_are_waited_for_as_long_as_they_take() -> None:
    pace = Pace()
    assert pace.wait_ms([7000, 7250, 7500], 7600) == 150 + ARRIVAL_MS
    assert pace.wait_ms([7750], 7800) == 200 + ARRIVAL_MS


def test_events_may_be_as_late_as_the_watermark_allows() -> None:
    assert Pace(delay_ms=300).wait_ms([7 * SECOND], 7 * SECOND + 400) == 900 + ARRIVAL_MS


def test_nobody_waits_longer_than_a_second_for_a_long_window() -> None:
    pace = Pace()
    pace.wait_ms([3600 * SECOND], 3600 * SECOND + 100)
    assert pace.wait_ms([7200 * SECOND], 7200 * SECOND + 100) <= LONGEST_MS


def test_a_stage_that_is_behind_or_writes_nothing_does_not_wait() -> None:
    pace = Pace()
    assert pace.wait_ms([], 7 * SECOND) == 0
    assert pace.wait_ms([7 * SECOND], 60 * SECOND) == 0
    assert pace.wait_ms([], 8 * SECOND) == 0
