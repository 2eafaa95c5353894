"""The second driver of a launch: when it warms up, and how it notices that the first has gone.

A process that ended closes its ports at once, so its web interface refuses connections long before its silence says
anything. A host that is lost refuses nothing; there only the silence is left.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from streamops.model.records import DriverStatus, State

SPEAKS_S = 3.0  # a driver that works says so every second
SILENT_S = 4.0
RESTED_S = 20.0
MOST_REST_S = 120.0
_ANSWER_S = 0.3


def listens(url: str) -> bool | None:
    """Whether something accepts connections at the URL's port; None when no one can say."""
    place = urlsplit(url)
    if not place.hostname or not place.port:
        return None
    try:
        socket.create_connection((place.hostname, place.port), timeout=_ANSWER_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


class Watch:
    """What the second driver has seen of the first.

    Args:
        first: the first driver's status when watching begins.
        moment: when that is, in seconds of a clock that only goes forward, as in ``gone``.
    """

    def __init__(self, first: DriverStatus | None, moment: float) -> None:
        self._heard = self._looked = moment
        self._last = first
        self._answered = False  # whether its port has ever accepted a connection

    def gone(self, first: DriverStatus | None, listening: bool | None, moment: float) -> str | None:
        """Why the first driver counts as gone; None as long as it does not.

        Args:
            first: its status, read after ``listening`` was found out: a driver that ends in order says so first.
            listening: whether its web interface accepts connections. A refusal counts only where one was accepted
                before, because a network may be made to refuse them.
            moment: seconds.
        """
        same = first is not None and self._last is not None and first.holder == self._last.holder
        if not same or first.updated != self._last.updated or moment - self._looked > SPEAKS_S:
            self._heard = moment  # what could not be looked at meanwhile is no silence
        self._answered = same and (self._answered or listening is True)
        self._last, self._looked = first, moment
        if self._answered and listening is False:
            return "its port is closed"
        if moment - self._heard > SILENT_S:
            return f"it says nothing for {moment - self._heard:.1f} s"
        return None


class Rest:
    """Whether the first driver has worked for a while: one that has just taken over needs the processors itself.

    Args:
        moment: when waiting begins, in seconds of a clock that only goes forward, as in ``over``.
    """

    def __init__(self, moment: float) -> None:
        self._begun = self._since = moment

    def over(self, first: DriverStatus | None, moment: float) -> bool:
        """Whether it is time to warm up; at last also beside a driver that never works for long."""
        if first is None or first.state is not State.RUNNING:
            self._since = moment
        return moment - self._since >= RESTED_S or moment - self._begun >= MOST_REST_S
