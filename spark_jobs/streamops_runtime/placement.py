"""Executors: which there are, how many there may be, and when state should be spread over new ones."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

LOOK_S = 2.0
STABLE_S = 4.0  # executors of a new worker come one after the other
REST_S = 30.0  # between two placements, whatever comes and goes
ALONE_S = 45.0  # the master replaces a lost executor within seconds where there is room
MISSED_S = 10.0  # so long after an executor was lost, no one seems to take over because of it
_ANY = 2**31 - 1


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


class Alone:
    """For how long a driver that had executors has had none. Times are of a monotonic clock, in seconds.

    A master that is started again forgets an application that does not answer within ``spark.deploy.recoveryTimeout``,
    ends its executors, and tells the driver nothing (``Master.completeRecovery``, Spark 4.3): its tasks then wait for
    ever. A new driver is a new application.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # of one that never had any, which waits for room, as well
        self._had: float | None = None

    def look(self, executors: int, moment: float) -> None:
        """Note how many live."""
        if executors:
            self._had = moment
        self.seconds = 0.0 if self._had is None else moment - self._had


class Warm:
    """Keeps a second driver among executors that are warm.

    The master replaces a lost executor at once, and a cold one would get its part of the first batch after a takeover:
    with one of two executors lost, that batch took 12 s instead of 6. So lost ones are replaced when the first batch is
    committed, or when the first driver continues without a takeover.

    Args:
        count: how many executors live.
        allow: receives how many the master may bring the application to; those that live are not ended by it.
        moment: of a monotonic clock, in seconds, as in ``look``.
    """

    def __init__(self, count: Callable[[], int], allow: Callable[[int], None], moment: float) -> None:
        self._count, self._allow = count, allow
        self._wanted = count()
        self._full = moment  # when all were last there
        self._replaced = True
        self._replace(False)

    def look(self, moment: float) -> None:
        """While standing by: have those replaced that have been missing for a while."""
        if self._count() >= self._wanted:
            self._full = moment
        self._replace(moment - self._full > MISSED_S)

    def end(self) -> None:
        """Have all replaced, now and from now on."""
        self._replace(True)

    def _replace(self, wanted: bool) -> None:
        if wanted is not self._replaced:
            self._allow(_ANY if wanted else 1)
            self._replaced = wanted


def executors(spark: SparkSession) -> frozenset[str]:
    """Ids of the live executors, without the driver's own."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    found = (listed.apply(at).id() for at in range(listed.size()))
    return frozenset(str(executor) for executor in found if executor != "driver")


def allow(spark: SparkSession, most: int) -> None:
    """Set how many executors the master may bring the application to; those that live are not ended by it."""
    none = spark.sparkContext._jvm.PythonUtils.toScalaMap({})
    spark.sparkContext._jsc.sc().requestTotalExecutors(most, 0, none)
