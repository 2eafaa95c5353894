"""Requests to the object store carry a time, and one that is a quarter of an hour off is refused.

A node whose clock is wrong must not stop a job: order comes from epochs, never from clocks. So the time that requests
are signed with follows the server's clock once it has refused one, as the SDK for Java does by itself.
"""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
from botocore.compat import get_current_datetime

_REFUSED = "RequestTimeTooSkewed"
_SAME = timedelta(seconds=5)  # a difference that no server minds
_ahead = timedelta(0)  # of this machine's clock, the server's is


def _now(remove_tzinfo: bool = True) -> datetime:
    moment: datetime = get_current_datetime(remove_tzinfo)
    return moment + _ahead


# The one place where the SDK reads the clock to sign; it has no setting for it.
botocore.auth.get_current_datetime = _now  # type: ignore[attr-defined]


def follow(client: Any) -> None:
    """Let a client try again with the server's time when its own was refused."""
    client.meta.events.register_first("needs-retry.s3", _again)


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
    if abs(ahead - _ahead) < _SAME:
        return None  # it was signed with this time already
    _ahead = ahead
    return 0
