"""How triggers ask servers without holding up the triggerer's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def apart(call: Callable[[], T]) -> asyncio.Future[T]:
    """Call in a thread of its own, which no one waits for at the end: a triggerer with such a look still stops."""
    done: Future[T] = Future()

    def work() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    # In the context of whoever asks, as asyncio.to_thread does it: Airflow's logs go by that.
    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    return asyncio.wrap_future(done)
