"""When a batch is worth planning: a window is written by the second batch after its end, and by none before."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

LONGEST_MS = 1000
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
