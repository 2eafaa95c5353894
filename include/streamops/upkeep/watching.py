"""What a look found that is worth a run, and when it is worth another one: pure decisions. Nothing here looks or acts.

A run is begun at once for what is new. What is still there after a run is tried again, each time after twice the wait:
never given up, and never a run every few seconds for something that cannot be mended now.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamops.model.names import label

FIRST_S = 15.0
LONGEST_S = 300.0
REPORT_S = 3600.0  # between two runs that can only say what is wrong
WELL_S = 60.0  # for which something must be as it should be before it is forgotten that it was not


@dataclass(frozen=True)
class Finding:
    """One thing to do.

    Args:
        scope: the job, the node, or the cluster that it concerns.
        what: with the scope, what makes it the same thing in the next look.
        why: a sentence for the log; not compared.
        mends: whether a run can do something about it, or only say it.
    """

    scope: str
    what: str
    why: str
    mends: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same thing in any look."""
        return self.scope, self.what

    def __str__(self) -> str:
        return f"{label(self.scope)}: {self.why}"


@dataclass(frozen=True)
class Found:
    """What one look found.

    Args:
        busy: scopes that an operation holds: whether all is well there cannot be said now.
    """

    findings: tuple[Finding, ...] = ()
    busy: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Tried:
    at: float  # when a run was last begun for it
    wait: float  # until it is worth another one
    seen: float  # when it was last found, or could not be told


class Memory:
    """What runs were begun for. Times are seconds of a clock that only goes forward."""

    def __init__(self) -> None:
        self._tried: dict[tuple[str, str], _Tried] = {}

    def worth(self, found: Found, at: float, *, pending: bool = False) -> tuple[Finding, ...]:
        """What is worth a run now. It is remembered as tried, with all else that the run will find.

        Args:
            pending: a run has yet to begin or to end; it may deal with what is found, so nothing is worth another one.
        """
        self._age(found, at)
        due = () if pending else tuple(item for item in found.findings if self._due(item, at))
        if due:
            for item in found.findings:
                before, longest = self._tried.get(item.key), LONGEST_S if item.mends else REPORT_S
                self._tried[item.key] = _Tried(at, min(2 * before.wait, longest) if before else FIRST_S, at)
        return due

    def _due(self, item: Finding, at: float) -> bool:
        tried = self._tried.get(item.key)
        return tried is None or at >= tried.at + tried.wait

    def _age(self, found: Found, at: float) -> None:
        there = {item.key for item in found.findings}
        for key, tried in list(self._tried.items()):
            if key in there or key[0] in found.busy:
                self._tried[key] = _Tried(tried.at, tried.wait, at)
            elif at - tried.seen > WELL_S:
                del self._tried[key]
