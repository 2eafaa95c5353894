"""Waits for a step of an operation without holding a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from streamops.model.errors import StreamOpsError, UnreachableError
from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.triggers.threads import apart


class StepTrigger(BaseTrigger):
    """Looks at a waiting step until it is done, cannot succeed any more, or the deadline has passed.

    Fires once: ``{"done": bool, "why": str}``. ``why`` is a sentence for the task's log.

    Args:
        job: the job.
        operation_id: the operation.
        step: the name of the waiting step.
        deadline: seconds since the epoch; absolute, so a restarted triggerer does not wait again.
        streamops_conn_id: the installation.
        every_s: seconds between two looks.
    """

    def __init__(
        self,
        job: str,
        operation_id: str,
        step: str,
        deadline: float,
        streamops_conn_id: str = StreamOpsHook.default_conn_name,
        every_s: float = 1.0,
    ) -> None:
        super().__init__()
        self.job, self.operation_id, self.step = job, operation_id, step
        self.deadline, self.streamops_conn_id, self.every_s = deadline, streamops_conn_id, every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything needed to continue in another triggerer."""
        names = ("job", "operation_id", "step", "deadline", "streamops_conn_id", "every_s")
        kept = {name: getattr(self, name) for name in names}
        return f"{StepTrigger.__module__}.{StepTrigger.__qualname__}", kept

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll; a server that does not answer is waited for until the deadline."""
        hook = StreamOpsHook(self.streamops_conn_id)
        engine = await apart(hook.watcher)
        shown = ""
        while True:
            try:
                done, why = await apart(lambda: engine.poll(self.job, self.operation_id, self.step))
            except UnreachableError as error:
                done, why = False, str(error)
            except StreamOpsError as error:
                yield TriggerEvent({"done": False, "why": str(error)})
                return
            if why != shown:
                self.log.info("%s: %s", self.step, why)
                shown = why
            if done:
                yield TriggerEvent({"done": True, "why": why})
                return
            if datetime.now(UTC).timestamp() >= self.deadline:
                yield TriggerEvent({"done": False, "why": f"The deadline passed while waiting: {why}"})
                return
            await asyncio.sleep(self.every_s)
