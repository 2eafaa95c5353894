"""The watcher in the triggerer: it blocks nobody, outlives whatever goes wrong, and fires when there is something."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from airflow.triggers.base import TriggerEvent

from streamops.upkeep.watching import Finding, Found
from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.triggers.watching import DueSnapshotsTrigger, ReconcileTrigger, WatchTrigger

GONE = Found((Finding("sums", "start", "its driver is gone"),))
TOLD = {"found": ["sums: its driver is gone"]}


class Watcher(WatchTrigger):
    """Looks at what a test says, as often as it can."""

    every_s = 0.01
    within_s = 30.0

    def __init__(self, see: Callable[[int], Found], pending: Callable[[], bool] = lambda: False) -> None:
        super().__init__("reconcile")
        self.see, self.pending, self.looks, self.threads = see, pending, 0, set[str]()  # type: ignore[method-assign]
        self.hooks: list[StreamOpsHook] = []

    def look(self, hook: StreamOpsHook) -> Found:
        self.looks += 1
        self.hooks.append(hook)
        self.threads.add(threading.current_thread().name)
        return self.see(self.looks)


async def first(watcher: WatchTrigger) -> TriggerEvent:
    """What it fires first; it is ended then, as Airflow does when its DAG is paused."""
    events = watcher.run()
    event = await anext(events)
    await events.aclose()
    return event


def fired(watcher: WatchTrigger, within_s: float = 60) -> object:
    return asyncio.run(asyncio.wait_for(first(watcher), within_s)).payload


def test_it_fires_with_what_was_found_and_not_before() -> None:
    watcher = Watcher(lambda look: GONE if look == 3 else Found())
    assert fired(watcher) == TOLD
    assert watcher.looks == 3


def test_it_does_not_fire_while_a_run_has_yet_to_begin_or_to_end() -> None:
    pending = iter([True, True, False])
    watcher = Watcher(lambda look: GONE, lambda: next(pending))
    assert fired(watcher) == TOLD
    assert watcher.looks == 3


def test_the_loop_goes_on_while_it_looks() -> None:
    let_go = threading.Event()
    watcher = Watcher(lambda look: GONE if let_go.wait(60) else Found())

    async def beside() -> object:
        waiting = asyncio.ensure_future(first(watcher))
        while not watcher.looks:
            await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert not waiting.done()
        let_go.set()  # only this loop does, so the look ends only if the loop continued
        return (await asyncio.wait_for(waiting, 60)).payload

    assert asyncio.run(beside()) == TOLD
    assert threading.main_thread().name not in watcher.threads


def test_an_error_ends_neither_it_nor_the_next_look_and_connections_are_read_again() -> None:
    def see(look: int) -> Found:
        if look < 3:
            raise ConnectionError("the object store is away")
        return GONE if look > 4 else Found()

    watcher = Watcher(see)
    assert fired(watcher) == TOLD
    assert len({id(hook) for hook in watcher.hooks[:3]}) == 3
    assert len({id(hook) for hook in watcher.hooks[2:]}) == 1


def test_a_look_that_hangs_is_given_up_and_keeps_no_one_from_ending() -> None:
    for_ever = threading.Event()
    watcher = Watcher(lambda look: GONE if look > 1 or for_ever.wait(3600) else Found())
    watcher.within_s = 0.2
    began = time.monotonic()
    assert fired(watcher) == TOLD  # of the second look
    assert time.monotonic() - began < 60
    assert [thread.daemon for thread in threading.enumerate() if thread.name in watcher.threads] == [True]
    for_ever.set()


def test_looking_takes_a_small_share_of_a_processor_however_long_it_takes() -> None:
    def see(look: int) -> Found:
        while time.thread_time() < 0.1:  # of the thread, which is a new one each time
            pass
        return GONE if look > 1 else Found()

    began = time.monotonic()
    assert fired(Watcher(see)) == TOLD
    assert time.monotonic() - began > 2


def test_another_triggerer_can_take_it_over() -> None:
    for kind in (ReconcileTrigger, DueSnapshotsTrigger):
        path, kept = kind("a_dag", "second").serialize()
        assert path == f"{kind.__module__}.{kind.__name__}"
        assert kind(**kept).serialize() == (path, kept)
