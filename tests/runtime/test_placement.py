"""When queries are started again because executors have joined, and when lost executors are replaced."""

from __future__ import annotations

from streamops_runtime.placement import MISSED_S, REST_S, STABLE_S, Alone, Placement, Warm

ONE, TWO, THREE = frozenset("1"), frozenset("12"), frozenset("123")


def placed(executors: frozenset[str], moment: float = 0.0) -> Placement:
    found = Placement()
    assert not found.due(executors, True, moment)
    return found


def test_nothing_happens_before_every_query_has_committed() -> None:
    found = Placement()
    assert not found.due(ONE, False, 0)
    assert not found.due(TWO, False, 100)
    assert not found.due(TWO, True, 101)  # these are the ones to begin with
    assert found.size == 2


def test_state_is_placed_anew_once_when_executors_have_joined_and_no_more_come() -> None:
    found = placed(ONE)
    assert not found.due(TWO, True, 10)
    assert not found.due(THREE, True, 10 + STABLE_S - 0.1)  # another one came
    assert not found.due(THREE, True, 10 + STABLE_S)
    moment = 10 + 2 * STABLE_S
    assert found.due(THREE, True, moment)
    found.placed(THREE, moment)
    assert not found.due(THREE, True, moment + 100)


def test_lost_executors_are_no_reason() -> None:
    found = placed(THREE)
    assert not found.due(ONE, True, 50)
    assert not found.due(ONE, True, 50 + STABLE_S)


def test_a_replaced_executor_is_no_reason_but_one_beside_it_is() -> None:
    found = placed(ONE)
    assert not found.due(frozenset("2"), True, 10)
    assert not found.due(frozenset("2"), True, 10 + STABLE_S)
    assert not found.due(frozenset("23"), True, 20)
    assert found.due(frozenset("23"), True, 20 + STABLE_S)


def test_placements_are_kept_apart() -> None:
    found = placed(ONE)
    found.placed(TWO, 100)
    assert not found.due(THREE, True, 101)
    assert not found.due(THREE, True, 101 + STABLE_S)
    assert found.due(THREE, True, 100 + REST_S)


def test_a_second_driver_has_lost_executors_replaced_after_the_takeover() -> None:
    live, asked = [2], []
    warm = Warm(lambda: live[0], asked.append, 0.0)
    assert asked == [1]  # so that a lost one is not replaced
    live[0] = 1
    warm.look(1.0)
    assert asked == [1]
    warm.end()
    warm.end()
    assert len(asked) == 2
    assert asked[1] > 1000


def test_a_second_driver_that_is_not_needed_gets_its_executors_back() -> None:
    live, asked = [2], []
    warm = Warm(lambda: live[0], asked.append, 0.0)
    live[0] = 1
    warm.look(MISSED_S - 1)
    assert asked == [1]
    warm.look(MISSED_S + 1)
    assert len(asked) == 2
    live[0] = 2
    warm.look(MISSED_S + 5)
    assert asked[2] == 1  # and the next loss is no more replaced than the first was


def test_a_driver_that_lost_its_executors_is_alone_and_one_that_waits_for_its_first_is_not() -> None:
    alone = Alone()
    for executors, moment, seconds in ((0, 100, 0), (1, 200, 0), (0, 230, 30), (2, 240, 0), (0, 250, 10)):
        alone.look(executors, moment)
        assert alone.seconds == seconds
