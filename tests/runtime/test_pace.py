"""How long a stage waits for its next window."""

from __future__ import annotations

from streamops_runtime.pace import ARRIVAL_MS, LONGEST_MS, LONGEST_REST_MS, GivingWay, Pace

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


def test_a_stage_that_fills_itself_rests_as_long_as_it_works_until_it_is_where_the_others_stood() -> None:
    pace = GivingWay(100 * SECOND, None)
    assert pace.wait_ms([1 * SECOND], 200 * SECOND) == 0  # nobody knows when its first batch began
    assert pace.wait_ms([50 * SECOND], 204 * SECOND) == 4 * SECOND
    assert pace.wait_ms([100 * SECOND], 209 * SECOND) == 1 * SECOND  # since its rest was over
    assert pace.wait_ms([101 * SECOND], 240 * SECOND) == 0
    assert pace.wait_ms([], 250 * SECOND) == 0


def test_a_rest_is_ten_seconds_at_most() -> None:
    pace = GivingWay(100 * SECOND, None)
    pace.wait_ms([1 * SECOND], 0)
    assert pace.wait_ms([2 * SECOND], 60 * SECOND) == LONGEST_REST_MS


def test_once_it_is_filled_it_has_the_pace_of_the_others() -> None:
    pace, other = GivingWay(100 * SECOND, Pace()), Pace()
    for written in ([101 * SECOND], [102 * SECOND]):
        assert pace.wait_ms(written, 102 * SECOND) == other.wait_ms(written, 102 * SECOND)
