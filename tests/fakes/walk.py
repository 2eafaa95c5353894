"""Kills whoever carries an operation out, at one point or at each, and lets the next process continue."""

from __future__ import annotations

import random
from collections.abc import Callable

from fakes import checks
from fakes.rig import JOB, Killed, Rig
from streamops.operations import runbooks
from streamops.operations.engine import Engine
from streamops.operations.operation import Request

Point = tuple[str, str]


def points_of(asked: Request) -> list[Point]:
    """Where an operation can be killed: before and after the effect of each step of its plan."""
    return [(step.name, when) for step in runbooks.of(asked).plan(asked) for when in ("before", "after")]


def killer(*point: str) -> Callable[[str, str], None]:
    """Dies at one point."""

    def at_point(step: str, when: str) -> None:
        if (step, when) == point:
            raise Killed(f"{when} {step}")

    return at_point


class Walk:
    """One operation, killed at every point that it reaches for the first time, and continued.

    So each step is met by a process that finds it recorded and without effect, and by one that finds its effect and no
    word of it. With a seed above 1 the kills are drawn, half of the points: then most steps before one were not
    disturbed themselves.

    Args:
        scope: the job, or CLUSTER.
        undo: whether it is the way back that is walked.
    """

    def __init__(self, rig: Rig, seed: int = 1, scope: str = JOB, *, undo: bool = False) -> None:
        self.rig, self.scope, self.undo = rig, scope, undo
        self.points: list[Point] = []
        self.killed: list[Point] = []
        self._draw = random.Random(seed).random if seed > 1 else lambda: 0.0

    def run(self, attempt: Callable[[Engine], object], operation_id: str = "op") -> None:
        """Call ``attempt`` with the engine of a new process each time, until one comes to the end."""
        while True:
            try:
                attempt(self._engine())
                return
            except Killed:
                self._recorded(operation_id)

    def _engine(self) -> Engine:
        if self.killed and self.killed[-1][1] == "before":  # nothing was submitted, so nothing will report
            return self.rig.engine(self._at_point, adopt_wait_s=0.2)
        return self.rig.engine(self._at_point)

    def _at_point(self, step: str, when: str) -> None:
        if (step, when) in self.points:
            return
        self.points.append((step, when))
        if self._draw() < 0.5:
            self.killed.append((step, when))
            raise Killed(f"{when} {step}")

    def _recorded(self, operation_id: str) -> None:
        """A step is recorded before its effect and not called done before the end; nothing is doubled or lost."""
        operation = self.rig.engine().find(self.scope, operation_id)
        assert operation is not None
        step = self.killed[-1][0].removeprefix("undo:")
        found = (operation.undo if self.undo else operation.steps)[step]
        assert found.finished is None
        checks.submitted_once(self.rig)
        self.rig.recount("a")
