"""Waiting for something outside by looking at it again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

T = TypeVar("T")


def until(look: Callable[[], T], within_s: float, every_s: float, done: Callable[[T], object] = bool) -> T:
    """Look until what is seen is done, or the time is over; an error ends the wait.

    Returns:
        What was seen last. It is not ``done`` if the time was not enough.
    """
    looks = Retrying(
        retry=retry_if_result(lambda seen: not done(seen)),
        stop=stop_after_delay(within_s),
        wait=wait_fixed(every_s),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    return looks(look)
