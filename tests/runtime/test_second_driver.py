"""The second driver's judgement of the first: gone, or only slow."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

from streamops.model.records import DriverStatus, State
from streamops_runtime.second_driver import MOST_REST_S, RESTED_S, SILENT_S, SPEAKS_S, Rest, Watch, listens

BEGUN = datetime(2026, 11, 23, tzinfo=UTC)


def said(seconds: float, holder: str = "first") -> DriverStatus:
    return DriverStatus(
        job="trades", deployment=1, launch="launch", holder=holder, state=State.RUNNING, version="v1", host="here",
        pid=1, app_id="app", ui="http://127.0.0.1:4040", started=BEGUN, updated=BEGUN + timedelta(seconds=seconds),
    )  # fmt: skip


def test_a_driver_that_speaks_is_there_whatever_its_port_says_of_others():
    watch = Watch(said(0), 0.0)
    for moment in range(20):
        assert watch.gone(said(moment), None, float(moment)) is None


def test_a_port_that_answered_and_is_closed_now_is_enough():
    watch = Watch(said(0), 0.0)
    assert watch.gone(said(0), True, 0.0) is None
    assert watch.gone(said(1), True, 0.5) is None
    assert watch.gone(said(1), False, 1.0) == "its port is closed"


def test_a_network_that_always_refuses_says_nothing():
    watch = Watch(said(0), 0.0)
    for moment in range(20):
        assert watch.gone(said(moment), False, float(moment)) is None


def test_another_first_driver_has_to_answer_before_its_refusals_count():
    watch = Watch(said(0), 0.0)
    watch.gone(said(0), True, 0.0)
    watch.gone(said(0), True, 0.5)
    assert watch.gone(said(1, "other"), False, 1.0) is None
    assert watch.gone(said(2, "other"), False, 1.5) is None


def test_silence_counts_without_a_port():
    watch = Watch(said(0), 0.0)
    assert watch.gone(said(0), None, 0.0) is None
    assert watch.gone(said(0), None, SILENT_S / 2) is None
    assert "says nothing" in (watch.gone(said(0), None, SILENT_S + 0.1) or "")


def test_what_was_not_looked_at_is_no_silence():
    watch = Watch(said(0), 0.0)
    watch.gone(said(0), None, 0.0)
    late = SPEAKS_S + SILENT_S
    assert watch.gone(said(0), None, late) is None  # the machine was paused, and perhaps the first driver, too
    assert watch.gone(None, None, late + 1) is None


def test_a_real_port_listens_until_it_is_closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert listens(url) is True
    assert listens(url) is False
    assert listens("") is None


def test_it_warms_up_when_the_first_has_worked_for_a_while():
    rest = Rest(0.0)
    starting = said(0).model_copy(update={"state": State.STARTING})
    assert not rest.over(starting, RESTED_S)
    assert not rest.over(said(1), RESTED_S + 1)
    assert not rest.over(starting, RESTED_S + 2)
    assert not rest.over(said(2), 2 * RESTED_S)
    assert rest.over(said(3), 2 * RESTED_S + 2)
    assert rest.over(starting, MOST_REST_S)
