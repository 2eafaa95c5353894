"""When a batch is worth planning: a window is written by the second batch after its end, and by none before."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

LONGEST_MS = 1000
LONGEST_REST_MS = 10_000
ARRIVAL_MS = 30  # from an event's time until it can be read from the topic


class Pace:
    """How long a stage waits after a batch that wrote windows. Times in milliseconds since the epoch.

    The batch that reads the first events past a window's end moves the watermark, and the next one writes the window.
    All batches that come between cost as much as these two, and write nothing. A stage that is behind never waits.

    Args:
        delay_ms: by how much the stage's watermark stays behind the newest event.
    """

    def __init__(self, delay_ms: int = 0) -> None:
        self._delay_ms = delay_ms
        self._newest: int | None = None
        self._step: int | None = None  # between two windows that follow each other

    def wait_ms(self, written: Iterable[int], present_ms: float) -> float:
        """Until the next window's end has been read past, and ``LONGEST_MS`` at most; 0 when that has come.

        Args:
            written: times of the windows that the batch wrote.
        """
        new = set(written)
        if not new:
            return 0
        times = sorted(new if self._newest is None else {*new, self._newest})
        steps = [later - earlier for earlier, later in pairwise(times)]
        self._newest = times[-1]
        self._step = min([*steps, self._step or LONGEST_MS])
        due = self._newest + self._step + self._delay_ms + ARRIVAL_MS
        return max(0.0, min(due - present_ms, LONGEST_MS))


class GivingWay:
    """How long a stage that fills itself rests after a batch: as long as the batch took, so that others have the half.

    Args:
        until_ms: where the others stood. Once it has written a window that ends later, it is one of them.
        then: its pace from then on; None to continue at once.
    """

    def __init__(self, until_ms: int, then: Pace | None) -> None:
        self._until_ms = until_ms
        self._then = then
        self._filled = False
        self._begun_ms: float | None = None  # the batch

    def wait_ms(self, written: Iterable[int], present_ms: float) -> float:
        """As ``Pace.wait_ms``."""
        new = list(written)
        self._filled = self._filled or max(new, default=0) > self._until_ms
        if self._filled:
            return self._then.wait_ms(new, present_ms) if self._then else 0.0
        rest_ms = min(present_ms - self._begun_ms, LONGEST_REST_MS) if self._begun_ms is not None else 0.0
        self._begun_ms = present_ms + rest_ms
        return rest_ms
