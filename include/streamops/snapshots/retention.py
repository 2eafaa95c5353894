"""Which snapshots to keep, and why: a pure function of what there is, of the rule, and of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from streamops.model.definitions import Keep


@dataclass(frozen=True)
class Candidate:
    """A snapshot as retention sees it. ``pinned`` and ``damaged`` are reasons, empty for no."""

    name: str
    created: datetime
    pinned: str = ""
    used_by: tuple[str, ...] = ()
    damaged: str = ""
    refused: str = ""  # the manifest cannot be believed: no one knows what it holds


@dataclass(frozen=True)
class Verdict:
    """What becomes of a snapshot, and every reason for it."""

    name: str
    created: datetime
    keep: bool
    reasons: tuple[str, ...]

    @property
    def why(self) -> str:
        """The reasons as one text."""
        return "; ".join(self.reasons)


_PERIODS: dict[str, tuple[str, Callable[[datetime], str]]] = {
    "hourly": ("hour", lambda time: time.strftime("%Y-%m-%d %H:00")),
    "daily": ("day", lambda time: time.strftime("%Y-%m-%d")),
    "weekly": ("week", lambda time: time.strftime("%G-W%V")),
}


def decide(candidates: Iterable[Candidate], keep: Keep, now: datetime) -> list[Verdict]:
    """A verdict for each snapshot, the newest first.

    A period (hour, day, week) counts only when it has a good snapshot, so that a job that was stopped for a month
    does not lose its last ones by the mere passing of time. A damaged snapshot stands for nothing.
    """
    ordered = sorted(candidates, key=lambda item: (item.created, item.name), reverse=True)
    good = [item for item in ordered if not item.damaged and not item.refused and item.created <= now]
    reasons = {item.name: list(_own_reasons(item, now, any_good=bool(good))) for item in ordered}
    if good:
        reasons[good[0].name].append("the last good one")
    for item in good[: keep.last]:
        reasons[item.name].append(f"one of the last {keep.last}")
    stand_in: dict[tuple[str, str], str] = {}
    for rule, (period, bucket) in _PERIODS.items():
        count = getattr(keep, rule)
        for item in good:
            key = (rule, bucket(item.created.astimezone(UTC)))
            if key in stand_in or sum(known == rule for known, _ in stand_in) >= count:
                continue
            stand_in[key] = item.name
            reasons[item.name].append(f"the newest of {period} {key[1]}")
    return [
        Verdict(item.name, item.created, True, tuple(reasons[item.name]))
        if reasons[item.name]
        else Verdict(item.name, item.created, False, (_against(item, keep, stand_in),))
        for item in ordered
    ]


def _own_reasons(item: Candidate, now: datetime, *, any_good: bool) -> Iterator[str]:
    """Why a snapshot is kept, whatever the rule says."""
    if item.pinned:
        yield f"pinned ({item.pinned})"
    yield from (f"in use by {who}" for who in item.used_by)
    if item.refused:
        yield f"cannot be judged ({item.refused})"
    if item.created > now:
        yield "dated in the future, so it stands for nothing"
    if item.damaged and not any_good:
        yield f"it does not verify ({item.damaged}), but there is no good one"


def _against(item: Candidate, keep: Keep, stand_in: dict[tuple[str, str], str]) -> str:
    if item.damaged:
        return f"it does not verify ({item.damaged})"
    covered = []
    for rule, (period, bucket) in _PERIODS.items():
        if newer := stand_in.get((rule, bucket(item.created.astimezone(UTC)))):
            covered.append(f"{newer} stands for its {period}")
    rules = [f"last {keep.last}"] + [f"{rule} {getattr(keep, rule)}" for rule in _PERIODS if getattr(keep, rule)]
    return "; ".join([f"not kept by {', '.join(rules)}", *covered])
