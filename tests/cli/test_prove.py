"""What the recount's command says."""

from __future__ import annotations

import pytest

from streamops.cli.prove import label
from streamops.recount.report import Measured, Report, verdict


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Measured(stage="s", measurement="m", expected=3), "[bold green]clean[/]"),
        (Measured(stage="s", measurement="m", expected=3, missing=1), "[bold red]NOT CLEAN[/]"),
        (Measured(stage="s", measurement="m", unexpected=1), "[bold red]NOT CLEAN[/]"),
        (Measured(stage="s", measurement="m"), "[bold yellow]no verdict yet[/]"),
    ],
)
def test_a_job_without_a_closed_window_is_not_said_to_be_wrong(measured: Measured, expected: str) -> None:
    clean, reason = verdict((measured,))
    report = Report(
        job="clicks", version="v1", deployment=1, events=8, malformed=0, ahead=0, offsets={}, measurements=(measured,),
        seconds=0.4, clean=clean, reason=reason,
    )  # fmt: skip
    assert label(report) == expected
