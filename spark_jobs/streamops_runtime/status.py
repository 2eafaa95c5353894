"""What a driver publishes about itself, put together from Spark's progress events."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from streamops.model.records import Offsets, StageStatus, distance, now
from streamops_runtime.sources import observation

_KEPT_DURATIONS = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")


class StageProgress:
    """Collects the progress of one stage; events come from Spark's listener thread.

    Args:
        topics: source -> topic, as this stage reads them.
    """

    def __init__(self, topics: Mapping[str, str], started_from: Offsets) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self.status = StageStatus(started_from=started_from)

    def committed(self, progress: Mapping[str, Any], at: datetime, output_rows: int, waited_ms: int = 0) -> None:
        """Take in one batch's progress (Spark's JSON, as a mapping); it is posted after the commit.

        Args:
            waited_ms: how much of the batch was spent waiting for the next window (``pace``), which is no work.
        """
        with self._lock:
            old = self.status
            offsets, latest = dict(old.offsets), dict(old.latest)
            for source in progress.get("sources", ()):
                end = _by_source(source.get("endOffset"), self._topics)
                newest = _by_source(source.get("latestOffset"), self._topics) or end
                offsets.update(end)
                latest.update(newest)
            malformed, ahead = _observed(progress.get("observedMetrics") or {}, self._topics)
            operators = progress.get("stateOperators", ())
            durations = {name: int(ms) for name, ms in (progress.get("durationMs") or {}).items()}
            whole = durations.get("triggerExecution", 0)
            for name in {"triggerExecution", "addBatch"} & set(durations):
                durations[name] = max(0, durations[name] - waited_ms)
            worked = durations.get("triggerExecution", 0) / whole if whole else 1.0
            self.status = old.model_copy(
                update={
                    "batch_id": int(progress["batchId"]),
                    "commits": old.commits + 1,
                    "quiet": False,
                    "offsets": offsets,
                    "latest": latest,
                    "lag": distance(offsets, latest),
                    "input_rate": _rate(progress.get("inputRowsPerSecond")),
                    "processed_rate": _rate(progress.get("processedRowsPerSecond"), worked),
                    "batch_ms": durations.get("triggerExecution", 0),
                    "watermark_ms": _watermark(progress.get("eventTime") or {}) or old.watermark_ms,
                    "late_rows": old.late_rows
                    + sum(int(item.get("numRowsDroppedByWatermark", 0)) for item in operators),
                    "malformed_rows": old.malformed_rows + malformed,
                    "ahead_rows": old.ahead_rows + ahead,
                    "output_rows": output_rows,
                    "state_rows": sum(int(item.get("numRowsTotal", 0)) for item in operators),
                    "state_bytes": sum(int(item.get("memoryUsedBytes", 0)) for item in operators),
                    "last_commit": at,
                    "durations_ms": {name: durations[name] for name in _KEPT_DURATIONS if name in durations},
                }
            )

    def idle(self) -> None:
        """A trigger was completed and found no data."""
        with self._lock:
            self.status = self.status.model_copy(update={"quiet": True, "input_rate": 0.0, "processed_rate": 0.0})


class ProgressListener(StreamingQueryListener):
    """Hands Spark's events to the stage they belong to, found by the query's run id.

    An event crosses the gateway as one text. PySpark's own way reads each of its fields in a call, hundreds for a
    batch of three stages, and took a fifth of a core.
    """

    def __init__(self) -> None:
        self._stages: dict[str, tuple[StageProgress, Any]] = {}

    def watch(self, run_id: str, progress: StageProgress, gate: Any) -> None:
        """Take in events of this run of a query."""
        self._stages[run_id] = (progress, gate)

    @cached_property
    def _jlistener(self) -> Any:
        """What ``StreamingQueryManager.addListener`` registers."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(_TextEvents(self))

    def onQueryStarted(self, event: Any) -> None:
        """Nothing: a query that started has done nothing yet."""

    def onQueryProgress(self, event: str) -> None:
        """A batch was committed; ``event`` is Spark's JSON of its progress."""
        progress = json.loads(event)
        if found := self._stages.get(progress["runId"]):
            stage, gate = found
            stage.committed(progress, now(), gate.rows, gate.waited_ms)

    def onQueryIdle(self, event: str) -> None:
        """A trigger found nothing; ``event`` is the query's run id."""
        if found := self._stages.get(event):
            found[0].idle()

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing: the runner looks at the queries themselves."""


class _TextEvents:
    """Called by Spark, through the gateway."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._listener.onQueryProgress(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:
        self._listener.onQueryIdle(event.runId().toString())

    def onQueryTerminated(self, event: Any) -> None:
        pass


def _by_source(offset: Any, topics: Mapping[str, str]) -> Offsets:
    """Spark's ``{"topic": {"0": 5}}`` by the names of the sources."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    if not isinstance(offset, dict):
        return {}
    return {
        name: {str(part): int(end) for part, end in offset[topic].items()}
        for name, topic in topics.items()
        if topic in offset
    }


def _observed(metrics: Mapping[str, Any], topics: Mapping[str, str]) -> tuple[int, int]:
    malformed = ahead = 0
    for name in topics:
        values = metrics.get(observation(name)) or {}
        malformed += int(values.get("malformed") or 0)
        ahead += int(values.get("ahead") or 0)
    return malformed, ahead


def _watermark(event_time: Mapping[str, Any]) -> int | None:
    text = event_time.get("watermark")
    if not text:
        return None
    return int(datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp() * 1000)


def _rate(value: Any, share: float = 1.0) -> float:
    """Rows a second of the ``share`` of the time in which the stage worked."""
    number = float(value or 0) / share if share else 0.0
    return round(number, 1) if number == number and number != float("inf") else 0.0
