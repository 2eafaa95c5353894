"""Requests to the object store carry a time, and one that is a quarter of an hour off is refused.

A node whose clock is wrong must not stop a job: order comes from epochs, never from clocks. So the time that requests
are signed with follows the server's clock once it has refused one, as the SDK for Java does by itself. Only those of
clients that ask for it: others of the process, such as Airflow's own, talk to other servers.
"""

from __future__ import annotations

import email.utils
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
from botocore.compat import get_current_datetime

_REFUSED = "RequestTimeTooSkewed"
SAME = timedelta(seconds=5)  # a difference that no server minds
_ahead = timedelta(0)  # of this machine's clock, the server's is
_signing = threading.local()  # whether this thread signs a request of a client that follows the server


def _now(remove_tzinfo: bool = True) -> datetime:
    moment: datetime = get_current_datetime(remove_tzinfo)
    return moment + _ahead if getattr(_signing, "follows", False) else moment


# The one place where the SDK reads the clock to sign; it has no setting for it.
botocore.auth.get_current_datetime = _now  # type: ignore[attr-defined]


def follow(client: Any) -> None:
    """Let a client try again with the server's time when its own was refused."""
    client.meta.events.register_first("needs-retry.s3", _again)
    client.meta.events.register_first("before-sign.s3", _begin)
    client.meta.events.register_first("before-send.s3", _end)


def _begin(**_: Any) -> None:
    _signing.follows = True


def _end(**_: Any) -> None:
    _signing.follows = False


def _again(response: Any = None, **_: Any) -> int | None:
    """0 for another try at once; None leaves the decision to the SDK's own rules."""
    global _ahead
    if response is None:
        return None
    http, parsed = response
    if parsed.get("Error", {}).get("Code") != _REFUSED:
        return None
    said = email.utils.parsedate_to_datetime(http.headers["date"])
    ahead = said - datetime.now(UTC)
    if abs(ahead - _ahead) < SAME:
        return None  # it was signed with this time already
    _ahead = ahead
    return 0
