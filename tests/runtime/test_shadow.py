"""When a version that may not write yet goes live, and when it is level with what comes."""

from __future__ import annotations

from streamops.versions.fingerprints import Window
from streamops_runtime.shadow import another_round, is_few, is_level


def rounds(*seconds: float) -> int:
    """How many rounds of batches are begun, of which each takes so long."""
    for number in range(1, len(seconds) + 1):
        if not another_round(seconds[:number]):
            return number
    return len(seconds) + 1


def test_rounds_of_batches_follow_each_other_while_they_grow_shorter() -> None:
    assert rounds(3) == 1
    assert rounds(52, 32, 20, 13, 7.5) == 5


def test_one_round_that_was_disturbed_is_not_the_last() -> None:
    assert rounds(41.6, 27.4, 18.0, 24.8, 12.0, 7.9) == 6


def test_the_second_round_in_vain_is_the_last() -> None:
    assert rounds(40, 40, 38, 20) == 3
    assert rounds(52, 40, 41, 37, 20) == 4


def test_where_few_results_come_one_round_is_enough() -> None:
    assert is_few(14_412, 15.6, 1)  # the average of a second, of 1,000 trades a second
    assert is_few(2_175, 22.2, 1)  # of its panes, 100 a second
    minute = Window(kind="sliding", time="t", size_us=60_000_000, slide_us=1_000_000)
    assert minute.overlap == 60
    assert not is_few(2_175, 22.2, minute.overlap)  # each in the windows of a minute
    assert not is_few(168_561, 17.6, 1)  # of 10,000 trades a second


def test_a_stage_is_level_once_a_commit_leaves_some_seconds_to_read() -> None:
    assert is_level(15_000, 10_000, 2)
    assert not is_level(21_000, 10_000, 2)
    assert is_level(21_000, 10_000, 5)


def test_few_rows_are_no_lag_where_little_comes() -> None:
    assert is_level(100, 0, 2)
    assert not is_level(101, 0, 2)
