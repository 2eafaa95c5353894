"""Which snapshots stay, and the reason given for each: compared with files that a person has read.

``python tests/snapshots/test_retention.py`` writes the files again; read the difference before you commit it.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamops.model.definitions import Keep
from streamops.snapshots.retention import Candidate, Verdict, decide

NOW = datetime(2026, 3, 16, 12, 30, tzinfo=UTC)  # a Monday
GOLDEN = Path(__file__).parent / "golden"


def every(hours: float, count: int, start: datetime = NOW, **more: dict) -> list[Candidate]:
    """Snapshots backwards from ``start``; ``more`` gives some of them other fields, by name."""
    times = [start - timedelta(hours=hours * number) for number in range(count)]
    made = [Candidate(f"s-{time:%m%d-%H%M}", time) for time in times]
    return [Candidate(**{**item.__dict__, **more.get(item.name.replace("-", "_"), {})}) for item in made]


CASES = {
    "last-only": (every(1, 6), Keep(last=2)),
    "hourly-daily-weekly": (every(5, 60), Keep(last=2, hourly=3, daily=4, weekly=3)),
    "several-in-one-hour": (every(0.2, 14), Keep(last=1, hourly=2)),
    "after-a-long-stop": (every(24, 5, NOW - timedelta(days=60)), Keep(last=1, daily=2, weekly=2)),
    "held": (
        every(
            24, 8,
            s_0312_1230={"pinned": "before the release"},
            s_0310_1230={"used_by": ("deployment 4 of sums, which started from it", "operation upgrade_job-1")},
            s_0309_1230={"refused": "is not signed"},
        ),
        Keep(last=1),
    ),
    "the-newest-are-damaged": (
        every(
            24, 6,
            s_0316_1230={"damaged": "a.sst is missing"},
            s_0315_1230={"damaged": "b.sst is missing"},
            s_0313_1230={"damaged": "c.sst is missing", "pinned": "evidence"},
        ),
        Keep(last=1, daily=2),
    ),
    "only-a-damaged-one": ([Candidate("s", NOW, damaged="a.sst is missing")], Keep()),
    "from-the-future": ([Candidate("ahead", NOW + timedelta(days=3)), *every(24, 3)], Keep(last=1)),
    "none": ([], Keep()),
}  # fmt: skip


def rendered(candidates: list[Candidate], keep: Keep) -> str:
    lines = [f"# {keep}, at {NOW:%Y-%m-%d %H:%M}"]
    for verdict in decide(candidates, keep, NOW):
        what = "keep  " if verdict.keep else "remove"
        lines.append(f"{verdict.created:%a %Y-%m-%d %H:%M}  {what}  {verdict.name}: {verdict.why}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_verdicts_and_reasons_are_those_of_the_golden_file(case: str) -> None:
    assert rendered(*CASES[case]) == (GOLDEN / f"{case}.txt").read_text()


def by_name(candidates: list[Candidate], keep: Keep) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in decide(candidates, keep, NOW)}


def test_whatever_happens_something_good_stays_and_nothing_held_goes(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        candidates = [
            Candidate(
                f"s{number}",
                NOW - timedelta(minutes=chance.randrange(60 * 24 * 90)),
                pinned="x" * (chance.random() < 0.1),
                used_by=("y",) * (chance.random() < 0.1),
                damaged="z" * (chance.random() < 0.3),
                refused="r" * (chance.random() < 0.1),
            )
            for number in range(chance.randrange(40))
        ]
        keep = Keep(last=chance.randrange(1, 4), hourly=chance.randrange(5), daily=chance.randrange(5))
        found = by_name(candidates, keep)
        assert set(found) == {item.name for item in candidates}
        assert all(verdict.reasons for verdict in found.values())
        assert all(found[item.name].keep for item in candidates if item.pinned or item.used_by or item.refused)
        good = [item for item in candidates if not item.damaged and not item.refused]
        if good:
            assert found[max(good, key=lambda item: (item.created, item.name)).name].keep
        shuffled = candidates[:]
        chance.shuffle(shuffled)
        assert by_name(shuffled, keep) == found
        # What was decided once is decided again: a second run removes nothing more.
        kept = [item for item in candidates if found[item.name].keep]
        assert all(verdict.keep for verdict in decide(kept, keep, NOW))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, (candidates, keep) in CASES.items():
        (GOLDEN / f"{name}.txt").write_text(rendered(candidates, keep))
