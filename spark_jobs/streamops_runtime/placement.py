"""When the state of running queries should be placed anew: executors have joined that hold none of it."""

from __future__ import annotations

from pyspark.sql import SparkSession

LOOK_S = 2.0
STABLE_S = 4.0  # executors of a new worker come one after the other
REST_S = 30.0  # between two placements, whatever comes and goes


class Placement:
    """Remembers among which executors the state was spread. Times are of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._over: frozenset[str] | None = None
        self._seen: frozenset[str] = frozenset()
        self._since = 0.0
        self._last = float("-inf")

    @property
    def size(self) -> int:
        """Over how many executors."""
        return len(self._over or ())

    def placed(self, executors: frozenset[str], moment: float) -> None:
        """The queries were just started over these."""
        self._over, self._seen, self._since, self._last = executors, executors, moment, moment

    def due(self, executors: frozenset[str], settled: bool, moment: float) -> bool:
        """Whether to start the queries again.

        Executors that were lost are no reason: Spark loads their state elsewhere by itself. Nor are new ones of which
        none of the old are left, because those hold all the state by now.

        Args:
            executors: those that live now.
            settled: whether every query has committed since it was started.
        """
        if self._over is None:
            if settled:
                self.placed(executors, moment)
                self._last = float("-inf")
            return False
        if executors != self._seen:
            self._seen, self._since = executors, moment
        if not executors & self._over:
            if executors:
                self._over = executors
            return False
        joined = executors - self._over
        return bool(joined) and settled and moment - self._since >= STABLE_S and moment - self._last >= REST_S


def executors(spark: SparkSession) -> frozenset[str]:
    """Ids of the live executors, without the driver's own."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    found = (listed.apply(at).id() for at in range(listed.size()))
    return frozenset(str(executor) for executor in found if executor != "driver")
