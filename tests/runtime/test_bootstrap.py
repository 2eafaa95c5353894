"""The bootstrap: when a launch that cannot work gives up, and how it says so."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from streamops.model.records import DriverStatus, State
from streamops_runtime import bootstrap
from streamops_runtime.bootstrap import MOST_STARTS, RELAUNCH, Starts

ARGS = argparse.Namespace(job="clicks", launch="one", deployment="3", status=None)


def begun(directory: Path) -> Starts:
    starts = Starts(directory)
    starts.begin()
    return starts


def failing(monkeypatch, error: BaseException) -> None:
    def main(args: argparse.Namespace, starts: Starts) -> int:
        raise error

    monkeypatch.setattr(bootstrap, "main", main)


def test_starts_that_come_to_nothing_are_given_up_after_some(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, ValueError("no such key\nmore"))
    codes = [bootstrap.end(ARGS, Starts(tmp_path)) for _ in range(MOST_STARTS)]
    assert codes == [RELAUNCH] * (MOST_STARTS - 1) + [0]


def test_a_start_that_is_killed_counts_until_one_comes_to_its_work(tmp_path: Path) -> None:
    assert [begun(tmp_path).number for _ in range(3)] == [1, 2, 3]
    begun(tmp_path).clear()
    assert begun(tmp_path).number == 1
    (tmp_path / "starts").write_text("")  # killed while it counted
    assert begun(tmp_path).number == 1


def test_a_driver_that_worked_for_days_may_end_like_any_other(monkeypatch, tmp_path: Path) -> None:
    """Although four starts before it had been killed."""
    for _ in range(MOST_STARTS - 1):
        begun(tmp_path)

    def main(args: argparse.Namespace, starts: Starts) -> int:
        starts.clear()
        raise ValueError

    monkeypatch.setattr(bootstrap, "main", main)
    assert bootstrap.end(ARGS, Starts(tmp_path)) == RELAUNCH


def test_a_full_disk_is_no_reason_to_end(tmp_path: Path) -> None:
    assert begun(tmp_path / "is not there").number == 1


def test_a_store_that_is_away_is_waited_for_without_end(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, bootstrap._AwayError("s3a://b/artifact"))
    assert {bootstrap.end(ARGS, Starts(tmp_path)) for _ in range(3 * MOST_STARTS)} == {RELAUNCH}


def test_what_is_altered_is_given_up_at_once(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, bootstrap._CannotWorkError("it was altered"))
    assert bootstrap.end(ARGS, Starts(tmp_path)) == 0


def test_its_last_words_are_a_drivers_status() -> None:
    status = DriverStatus.model_validate_json(json.dumps(bootstrap.status(ARGS, "it was altered")))
    assert (status.job, status.launch, status.deployment, status.state) == ("clicks", "one", 3, State.FAILED)
    assert status.reason == "it was altered"
    assert "hunter2" not in bootstrap.status(ARGS, "no answer from http://ada:hunter2@pings.example")["reason"]
