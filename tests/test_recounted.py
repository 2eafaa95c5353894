"""What a runbook makes of a recount: what is not enough ends it, and what more can be said of later is waited for."""

from __future__ import annotations

import pytest

from streamops.operations.facts import Recounted
from streamops.recount.report import Measured, verdict

GOOD = Measured(stage="a", measurement="a", expected=3)


@pytest.mark.parametrize(
    ("measured", "damaged", "enough", "waits"),
    [
        ((GOOD,), {}, True, False),
        ((Measured(stage="a", measurement="a", expected=3, wrong=1),), {}, False, False),
        ((GOOD, Measured(stage="b", measurement="b", unexpected=1)), {}, False, False),
        ((GOOD,), {"b": "a file is missing"}, False, False),
        ((), {"b": "a file is missing"}, False, False),
        ((Measured(stage="a", measurement="a", nothing="no event"),), {}, False, True),
        ((Measured(stage="a", measurement="a", nothing="no closed window", young=True),), {}, False, True),
        ((GOOD, Measured(stage="b", measurement="b", nothing="no closed window", young=True)), {}, True, True),
        ((GOOD, Measured(stage="b", measurement="b", nothing="no closed window")), {}, False, True),
        ((GOOD, Measured(stage="b", measurement="b", nothing="short range")), {}, True, False),
        ((), {}, True, True),  # no stage of it can be recounted, which the reason says
    ],
)
def test_nothing_compared_is_a_failure_of_the_whole_and_of_each_stage_that_was_there_before(
    measured: tuple[Measured, ...], damaged: dict[str, str], enough: bool, waits: bool
) -> None:
    clean, reason = verdict(measured, damaged, {"c": "it writes no points"})
    told = [item.model_dump(mode="json") for item in measured]
    found = Recounted.model_validate({"clean": clean, "reason": reason, "measurements": told, "damaged": damaged})
    assert (found.enough, found.waits) == (enough, waits)
