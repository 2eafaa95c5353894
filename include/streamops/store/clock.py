"""Requests to the object store carry a time, and one that is a quarter of an hour off is refused.

A node whose clock is wrong must not stop a job: order comes from epochs, never from clocks. So requests are signed with
the server's time, as its answers tell it, where this machine's is another, as the SDK for Java does by itself. That
holds for one client: others of the process, such as Airflow's own, talk to other servers.
"""

from __future__ import annotations

import email.utils
import threading
from datetime import datetime, timedelta
from typing import Any

import botocore.auth
from botocore.compat import get_current_datetime

_REFUSED = "RequestTimeTooSkewed"
_SAME = timedelta(seconds=5)  # a difference that no server minds
_RIGHT = timedelta(0)
_signing = threading.local()  # how far the server's clock is ahead for which this thread signs a request


def _signed_at(remove_tzinfo: bool = True) -> datetime:
    moment: datetime = get_current_datetime(remove_tzinfo)
    return moment + getattr(_signing, "ahead", _RIGHT)


# The one place where the SDK reads the clock to sign; it has no setting for it.
botocore.auth.get_current_datetime = _signed_at  # type: ignore[attr-defined]


class ServerClock:
    """How far a server's clock is ahead of this machine's, as its last answer said; a few seconds count as nothing.

    Args:
        client: of that server; its requests are signed by this clock from now on.
    """

    def __init__(self, client: Any) -> None:
        self.ahead = _RIGHT
        self._used = threading.local()  # by this thread's last request
        client.meta.events.register_first("before-sign.s3", self._begin)
        client.meta.events.register_first("before-send.s3", self._end)
        client.meta.events.register_first("needs-retry.s3", self._answered)

    def _begin(self, **_: Any) -> None:
        self._used.ahead = _signing.ahead = self.ahead

    def _end(self, **_: Any) -> None:
        _signing.ahead = _RIGHT

    def _answered(self, response: Any = None, **_: Any) -> int | None:
        """0 for another try at once; None leaves the decision to the SDK's own rules."""
        if response is None or "date" not in response[0].headers:
            return None
        http, parsed = response
        ahead = email.utils.parsedate_to_datetime(http.headers["date"]) - get_current_datetime(remove_tzinfo=False)
        self.ahead = ahead if abs(ahead) > _SAME else _RIGHT
        refused = parsed.get("Error", {}).get("Code") == _REFUSED
        return 0 if refused and abs(self.ahead - self._used.ahead) > _SAME else None  # else it was signed with this
