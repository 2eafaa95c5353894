"""Watches for what the DAGs that act by themselves have to do, and starts them only then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.upkeep import scheduled
from streamops.upkeep.watching import Finding, Found, Memory
from streamops_airflow import runs
from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.triggers.threads import apart

_LOOKER = Owner(kind="airflow")  # owns nothing: it only looks
SHARE = 0.05  # of a processor that looking may take, on an installation with many jobs


class WatchTrigger(BaseEventTrigger):
    """Looks every few seconds, and fires when it is worth a run: ``{"found": [a line for each thing]}``.

    It never ends by itself, since Airflow would only start it again, without its memory. Looking happens in a thread
    of its own: neither the triggerer's loop nor other triggers wait for it. A look that does not end in time is given
    up; its thread ends when the clients' own deadlines are over.

    An event that is lost with the triggerer does no harm: what it told is found again. One too many neither: Airflow
    makes one run of all that wait, and a run looks itself before it acts.

    Args:
        dag_id: the DAG that it starts; while a run of it is queued or running, it does not fire.
        streamops_conn_id: the installation.
    """

    every_s = 5.0
    within_s = 60.0

    def __init__(self, dag_id: str, streamops_conn_id: str = StreamOpsHook.default_conn_name) -> None:
        super().__init__()
        self.dag_id, self.streamops_conn_id = dag_id, streamops_conn_id
        self._hook: StreamOpsHook | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What it needs to watch in another triggerer."""
        kept = {"dag_id": self.dag_id, "streamops_conn_id": self.streamops_conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", kept

    def look(self, hook: StreamOpsHook) -> Found:
        """What there is to do. Called in a thread; nothing may be touched."""
        raise NotImplementedError

    def pending(self) -> bool:
        """Whether a run has yet to begin or to end."""
        return runs.under_way(self.dag_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, fire, wait, for ever; what keeps it from looking is logged when it changes."""
        memory, said = Memory(), ""
        while True:
            due, cost, trouble = tuple[Finding, ...](), 0.0, ""
            try:
                found, pending, cost = await asyncio.wait_for(apart(self._look), self.within_s)
                due = memory.worth(found, time.monotonic(), pending=pending)
            except TimeoutError:
                trouble = f"a look did not end in {self.within_s:g} s and is given up"
            except Exception as error:  # whatever it is, the next look may be spared it
                trouble = str(error) or type(error).__name__
            if trouble and trouble != said:
                self.log.warning("%s is not watched for: %s", self.dag_id, trouble)
            said = trouble
            if due:
                yield TriggerEvent({"found": [str(item) for item in due]})
            await asyncio.sleep(max(self.every_s, cost / SHARE))

    def _look(self) -> tuple[Found, bool, float]:
        """What was found, whether a run may deal with it already, and the seconds of processor that it took."""
        began = time.thread_time()
        hook, self._hook = self._hook or StreamOpsHook(self.streamops_conn_id), None
        found = self.look(hook)
        pending = bool(found.findings) and self.pending()
        self._hook = hook  # kept while it works; after an error its connections are read again
        return found, pending, time.thread_time() - began


class ReconcileTrigger(WatchTrigger):
    """Watches for what should run and does not."""

    def look(self, hook: StreamOpsHook) -> Found:
        """The decisions of a pass, without the pass."""
        from streamops.upkeep.reconciler import Reconciler

        return Reconciler(hook.watcher(), _LOOKER, lambda line: None).look()


class DueSnapshotsTrigger(WatchTrigger):
    """Watches for snapshots that are due by their jobs' schedules."""

    every_s = 15.0

    def look(self, hook: StreamOpsHook) -> Found:
        """The jobs whose snapshot is due."""
        return scheduled.look(hook.store, now())


def to_do(trigger: WatchTrigger) -> Asset:
    """What there is to do for the trigger's DAG, as the asset that is the DAG's schedule."""
    return Asset(f"streamops-{trigger.dag_id}", watchers=[AssetWatcher(name=trigger.dag_id, trigger=trigger)])
