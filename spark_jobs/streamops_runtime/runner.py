"""The runner: one driver process, from its launch to a final status.

A driver that is not named in the job record, lost its lease, or met a permanent error writes its final status
and ends with 0. Any other end asks the supervising master to start it again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar, get_args

from pyspark import SparkContext
from pyspark.sql import SparkSession

from streamops.model import records
from streamops.model.definitions import Definition
from streamops.model.discretion import STORED, without_credentials
from streamops.model.errors import (
    ConflictError,
    DeniedError,
    LeaseLostError,
    NotFoundError,
    StreamOpsError,
    UnreachableError,
)
from streamops.model.records import FINAL, Command, Deployment, DriverStatus, JobRecord, State
from streamops.settings import Settings
from streamops.store import documents, jobs, keys, leases
from streamops.store.object_store import ObjectStore
from streamops_runtime import second_driver, session, stages, usage
from streamops_runtime.shadow import ShadowRun
from streamops_runtime.shipping import Discreet, Shipper, quiet, set_levels
from streamops_runtime.work import Launch as Launch  # where a node's bootstrap, of whatever release, finds it
from streamops_runtime.work import Work

RELAUNCH = 75
_PATIENCE_S = 300.0  # with an object store that does not answer
_LOOK_S = 0.2
_WATCH_S = 0.5  # between two looks at the driver that writes

log = logging.getLogger("runner")
T = TypeVar("T")


def worker_address(context: SparkContext) -> str:
    """HOST:PORT of the worker that runs this driver, as the master knows it: several can be on one host."""
    command = context._jvm.java.lang.System.getProperty("sun.java.command") or ""
    found = re.search(r" spark://Worker@(\S+:\d+) ", command)  # what the worker gives Spark's DriverWrapper
    return found[1] if found else ""


def _driver_id(directory: str) -> str:
    """Spark's id of this driver: a worker runs each one in a directory of that name, and says it nowhere else."""
    return directory if directory.startswith("driver-") else ""


def run(context: SparkContext, launch: Launch) -> int:
    """Run one launch to its end and return the process's exit code."""
    printed = logging.StreamHandler(sys.stdout)
    printed.setFormatter(Discreet("%(asctime)sZ %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[printed], force=True)
    logging.Formatter.converter = time.gmtime
    for noisy in ("py4j", "botocore", "urllib3", "kafka"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    quiet(context)
    driver = Driver(context, launch, Settings.load())
    place = worker_address(context) or driver.status.host
    shipper = Shipper(driver.store, launch.job, launch.launch, driver.holder, place, Path.cwd() / "stderr")
    logging.getLogger().addHandler(shipper)
    shipper.begin()
    try:
        code = driver.run()
    except (UnreachableError, ConflictError) as error:  # what passes; how often is no matter
        log.error("%s", error)
        launch.begun()
        code = RELAUNCH
    except DeniedError:  # also of a clock that is wrong for a while; the bootstrap counts how often
        raise
    except StreamOpsError as error:
        code = driver.fail(error)
    log.info("driver ends with %s", code)
    shipper.end()
    context.stop()
    return code


class _DismissedError(Exception):
    """Why a second driver ends without having been needed."""


class Driver:
    """One driver process."""

    def __init__(self, context: SparkContext, launch: Launch, settings: Settings) -> None:
        self.launch = launch
        self.settings = settings
        self.store = ObjectStore(settings)
        self.spark = SparkSession(context)
        self.definition = Definition.model_validate_json(
            (launch.artifact / "definition.json").read_text(), context=STORED
        )
        self.phases_ms = dict(launch.phases_ms)
        self.holder = uuid.uuid4().hex
        self.left_alone = -1  # the sequence number of the last command that is not known here
        self.levels: Mapping[str, str] = {}  # of the deployment
        self.told_levels: Mapping[str, str] = {}  # by an operation since
        self.writer_key = keys.status(launch.job, launch.launch)  # where the driver that writes says what it does
        self.status_key = self.writer_key  # where this one does
        self.begun = time.monotonic()
        moment = records.now()
        self.status = DriverStatus(
            job=launch.job,
            deployment=launch.deployment,
            launch=launch.launch,
            holder=self.holder,
            state=State.STARTING,
            version=self.definition.version,
            host=socket.gethostname(),
            pid=os.getpid(),
            app_id=str(context.applicationId),
            driver=_driver_id(Path.cwd().name),
            ui=context.uiWebUrl or "",
            started=moment,
            updated=moment,
        )

    def run(self) -> int:
        """From the job record to the final status."""
        record = self.patiently(self.record)
        role = self.role(record)
        if role == "none":
            return self.end(State.STOPPED, f"the job record names launch {record.launch}, not this one")
        second = role == "writer" and self.definition.standby_driver and self.another_works()
        if second:
            self.status_key = keys.second_driver(self.launch.job, self.launch.launch)
        self.publish(State.STARTING)
        deployment = self.patiently(self.deployment)
        self.definition = self.definition.with_resources(deployment.resources)
        self.levels = deployment.logging
        self.set_levels()
        session.configure(self.spark, self.definition)
        work = Work(self.spark, self.settings, self.store, self.definition, deployment, self.launch)
        work.prepare()
        self.mark("prepare")
        if role == "standby":
            self.publish(State.STARTING, "it practises on what comes, for a minute and a half at most")
            work.warm_up(self.has_word)
            work.connect()
            self.mark("warm_up")
            with ExitStack() as over:
                over.callback(stages.end_all, work.stages)  # once it has said that it ends, what they wrote is removed
                word = self.stand_by(work)
                if word is None:
                    over.pop_all()
            self.mark("standby")
            if word is not None:
                return self.end(State.STOPPED, word)
            if work.shadow is None:  # where new stages begin is known only since the old version stopped
                work.begin_at(self.patiently(self.deployment))
        if second:
            try:
                self.be_second(work)
            except _DismissedError as word:
                log.info("ends: %s", word)
                self.store.delete([self.status_key])
                return 0
            self.store.delete([self.status_key])
            self.status_key = self.writer_key
        if self.dismissed():
            return self.end(State.STOPPED, "asked to stop before it had begun")
        try:
            held = self.patiently(lambda: leases.take(self.store, self.record(), self.launch.launch, self.holder))
            log.info("lease taken, epoch %s", held.value.epoch)
            self.launch.begun()  # from here on the lease counts the starts that come to nothing
            return work.run(self, held, at_once=role == "standby")
        except LeaseLostError as error:
            return self.end(State.STOPPED, str(error))

    # --- what it reads

    def record(self) -> JobRecord:
        """The job record. Raises NotFoundError."""
        if found := jobs.record(self.store, self.launch.job):
            return found
        raise NotFoundError(f"Job {self.launch.job} has no record; deploy it first.")

    def deployment(self) -> Deployment:
        """This launch's deployment. Raises NotFoundError."""
        return jobs.deployment(self.store, self.launch.job, self.launch.deployment)

    def role(self, record: JobRecord) -> str:
        """``writer``, ``standby`` or ``none``."""
        if record.launch == self.launch.launch:
            return "writer"
        return "standby" if record.standby == self.launch.launch else "none"

    def command(self) -> str | None:
        """An operation's last word to this launch."""
        said = self.patiently(lambda: jobs.told(self.store, self.launch.job, self.launch.launch))
        if said is None:
            return None
        if said.logging != self.told_levels:
            self.told_levels = said.logging
            self.set_levels()
        if said.command not in get_args(Command) and said.sequence != self.left_alone:
            self.left_alone = said.sequence
            log.warning("command %r of %s is not known to this release: left alone", said.command, said.operation)
        return said.command

    def dismissed(self) -> bool:
        """Whether an operation has asked this launch to end."""
        return self.command() == "stop"

    def has_word(self) -> bool:
        """Whether this launch is to do something else than to warm up: in shadow it gets warm by what it reads."""
        return self.command() in ("stop", "shadow")

    def set_levels(self) -> None:
        """Let loggers say what they are to say now."""
        set_levels(self.spark.sparkContext, self.definition.logging, self.levels, self.told_levels)
        if self.told_levels:
            log.info("log levels: %s", dict(self.told_levels))

    def stand_by(self, work: Work) -> str | None:
        """Wait for the word to run, in shadow once that is asked for; None when it came, else the reason to end.

        Raises:
            UnhealthyError: a stage failed in shadow.
        """
        log.info("standby: waiting for its word")
        self.launch.begun()
        last = 0.0
        while True:
            command = self.command()
            if command == "stop":
                return "dismissed from standby"
            if command == "shadow" and work.shadow is None:
                log.info("standby: runs in shadow")
                work.begin_at(self.patiently(self.deployment))
                work.shadow = ShadowRun(work)
            if work.shadow:
                work.shadow.look()
            if command == "run" or time.monotonic() - last > 2:
                role = self.role(self.patiently(self.record))
                if role == "writer":
                    return None
                if role == "none":
                    return "the job record does not name this standby any more"
                self.publish(State.STANDBY, **({"stages": work.statuses()} if work.shadow else {}))
                last = time.monotonic()
            time.sleep(_LOOK_S / 2)

    # --- the second driver of a launch

    def first(self) -> DriverStatus | None:
        """What the driver that writes says of itself."""
        found = self.patiently(lambda: documents.find(self.store, self.writer_key, DriverStatus))
        return found if found and found.holder != self.holder else None

    def another_works(self) -> bool:
        """Whether another driver of this launch speaks: then this one is the second."""
        before, deadline = self.first(), time.monotonic() + second_driver.SPEAKS_S
        while before is not None and before.state not in FINAL and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            now = self.first()
            if now is not None and now.updated != before.updated:
                return True
        return False

    def be_second(self, work: Work) -> None:
        """Warm up, and wait until the first driver has gone. Raises _DismissedError: this one is not wanted."""
        rest = second_driver.Rest(time.monotonic())
        if not self.watch_over(State.STARTING, rest.over):
            return
        self.mark("rest")
        work.warm_up(self.dismissed)
        work.connect()
        self.mark("warm_up")
        log.info("second driver: warm, watches over the first")
        self.launch.begun()
        warm = work.keep_warm()

        def never(first: DriverStatus | None, moment: float) -> bool:
            warm.look(moment)
            return False

        self.watch_over(State.STANDBY, never)
        self.mark("second")

    def watch_over(self, state: State, enough: Callable[[DriverStatus | None, float], bool]) -> bool:
        """Wait until the first driver has gone, and return False, or until it is enough, and return True.

        Taking over too early does no harm: whoever held the lease before is refused from then on.

        Raises:
            _DismissedError: the job or the first driver ended.
        """
        now = self.first()
        told, watch = 0.0, second_driver.Watch(now, time.monotonic())
        while True:
            listening = second_driver.listens(now.ui) if now is not None else None
            now, moment = self.first(), time.monotonic()
            gone = watch.gone(now, listening, moment)
            if now is not None and now.state in FINAL:
                raise _DismissedError(f"the first driver is {now.state}")
            if gone:
                log.warning("the first driver has gone, %s; taking over", gone)
                return False
            if enough(now, moment):
                return True
            if self.dismissed():
                raise _DismissedError("asked to stop")
            if moment - told > 2:
                if self.role(self.patiently(self.record)) != "writer":
                    raise _DismissedError("the job record names another launch")
                self.publish(state)
                told = moment
            time.sleep(_WATCH_S)

    # --- what it writes

    def mark(self, phase: str) -> None:
        """Note how long a phase took, counted from the end of the one before."""
        moment = time.monotonic()
        self.phases_ms[phase] = int((moment - self.begun) * 1000)
        self.begun = moment

    def publish(self, state: State, reason: str = "", **more: Any) -> None:
        """Publish the status; an object store that does not answer is no reason to end."""
        reason = without_credentials(reason)
        if state is not self.status.state or reason != self.status.reason:
            log.info("state %s%s", state, f": {reason}" if reason else "")
        update = {"state": state, "reason": reason, "updated": records.now(), "phases_ms": dict(self.phases_ms)}
        update |= {**usage.taken(), **more}
        self.status = self.status.model_copy(update=update)
        try:
            documents.write(self.store, self.status_key, self.status)
        except StreamOpsError as error:
            log.warning("status is not published: %s", error)

    def end(self, state: State, reason: str) -> int:
        """Write the final status, unless it is another driver's to write. Returns the exit code."""
        found = None
        try:
            found = documents.find(self.store, self.writer_key, DriverStatus)
        except StreamOpsError as error:
            log.warning("status cannot be read: %s", error)
        foreign = found is not None and found.holder != self.holder
        if foreign and (found.state in FINAL or (found.epoch or 0) >= (self.status.epoch or 0) > 0):
            log.info("ends (%s); the status belongs to another driver of this launch", reason)
            return 0
        self.publish(state, reason)
        return 0

    def fail(self, error: StreamOpsError) -> int:
        """A permanent error: final status, and no relaunch."""
        log.error("%s", error)
        return self.end(State.FAILED, str(error))

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until the object store answers.

        Raises:
            UnreachableError: it did not within five minutes.
        """
        deadline, pause = time.monotonic() + _PATIENCE_S, 0.2
        while True:
            try:
                return call()
            except UnreachableError as error:
                if time.monotonic() > deadline:
                    raise
                log.warning("waiting: %s", error)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
