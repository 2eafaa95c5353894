"""Carries out what ``reconcile`` decides: one look at everything, then the actions, each as a recorded operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from streamops.cluster import record as cluster_record
from streamops.model import records
from streamops.model.definitions import Definition
from streamops.model.errors import (
    DamagedError,
    DeniedError,
    NotFoundError,
    RefusedError,
    StreamOpsError,
    UnreachableError,
)
from streamops.model.names import CLUSTER, label
from streamops.model.owner import Owner
from streamops.model.records import DriverStatus, JobRecord
from streamops.operations import steps
from streamops.operations.engine import Engine
from streamops.operations.follow import request
from streamops.operations.operation import OVER, operation_id
from streamops.operations.runbooks.start_job import RECOVER_JOB
from streamops.spark.master import DOWN, Master
from streamops.store import documents, jobs, keys, locks
from streamops.upkeep import reconcile
from streamops.upkeep.reconcile import Action, Lock, Look
from streamops.versions import artifacts

FRESH = timedelta(seconds=15)
_AT_ONCE = 4  # submissions, each a process of some seconds and some hundred MB
_LOOK_S = 4.0  # between two looks at a status that is not fresh: drivers speak every second, whatever their clock says


@dataclass(frozen=True)
class Reconciler:
    """One pass over an installation.

    Args:
        owner: of the operations that it begins; a later pass settles them when this one is gone.
        say: receives a line for each thing done; nothing is said when nothing was done.
    """

    engine: Engine
    owner: Owner
    say: Callable[[str], None]
    look_s: float = _LOOK_S
    troubles: dict[str, Exception] = field(default_factory=dict, init=False)  # by job or node

    def run(self) -> list[str]:
        """Look and act; returns what was done.

        Raises:
            Exception: the first trouble with a job or a node that nothing could be done about, after the others had
                their turn.
        """
        done: list[str] = []
        for name, action in [(CLUSTER, self._cluster()), *self._nodes()]:
            done += self._do(name, action)
        starting = []
        for record, action, look in self._jobs():
            if action.kind == "start":
                starting.append((record, look))
            else:
                with self._apart(record.job):
                    done += self._do(record.job, action) + self._second(record, look)
        done += self._start(starting)
        if self.troubles:
            raise next(iter(self.troubles.values()))
        return done

    @contextmanager
    def _apart(
        self, name: str, common: tuple[type[Exception], ...] = (UnreachableError, DeniedError)
    ) -> Iterator[None]:
        """Whatever is wrong with one job or node, be it a mistake of ours, leaves the others their turn.

        Args:
            common: what would be wrong with each of them, and ends the pass.
        """
        try:
            yield
        except common:
            raise
        except Exception as error:
            if str(error) != str(self.troubles.get(name)):
                self.say(f"{name} is left as it is: {error}")
            self.troubles.setdefault(name, error)

    # --- looks

    def _lock(self, scope: str) -> tuple[Lock, str | None]:
        found = locks.read(self.engine.store, scope)
        if found is None:
            return "free", None
        holder = found.value.operation
        if not locks.is_stale(found, self.engine.ports.owners.finished):
            return "held", holder
        # Who took it over may have been no operation, or have died before it began: then what it had to settle is left.
        known = (name for name in (holder, *found.value.unsettled) if name and self._is_open(scope, name))
        left = next(known, holder)
        return ("abandoned", left) if left else ("free", None)

    def _is_open(self, scope: str, name: str) -> bool:
        operation = self.engine.find(scope, name)
        return operation is not None and operation.state not in OVER

    def _cluster(self) -> Action:
        lock, holder = self._lock(CLUSTER)
        operation = self.engine.find(CLUSTER, holder) if holder else None
        return reconcile.settle(operation) if lock == "abandoned" and operation else Action("nothing", "")

    def _nodes(self) -> list[tuple[str, Action]]:
        """Programs that should run and do not: after a start by hand, or one that supervisord gave up on."""
        try:
            nodes = self.engine.ports.nodes()
            cluster = cluster_record.read(self.engine.store)
            wanted = ("master", *cluster.wanted(nodes.inventory))
        except NotFoundError:
            return []
        up = []
        for name in wanted:
            try:
                if nodes.program(name).up:
                    up.append(name)
            except StreamOpsError:
                up.append(name)  # a node that does not answer is not this pass's to start
        down = reconcile.programs(cluster, self._lock(CLUSTER)[0], wanted, up)
        started = []
        for name in down:
            with self._apart(name, common=()):
                nodes.start(name)
                started.append(name)
        return [(name, Action("start", "its program did not run")) for name in started]

    def _master(self) -> Master:
        try:
            return self.engine.ports.nodes().master()
        except NotFoundError:
            return DOWN

    def _known(self) -> tuple[list[JobRecord], dict[str, DriverStatus | None]]:
        """The records of all jobs that were deployed, and what their drivers said last."""
        store = self.engine.store
        known: list[JobRecord] = []
        said: dict[str, DriverStatus | None] = {}
        for job in jobs.names(store):
            with self._apart(job):
                try:
                    record = jobs.record(store, job)
                except DamagedError:
                    said[job] = self._writer(job)
                    raise
                if record is not None and record.deployment:
                    said[job] = self._status(record)
                    known.append(record)
        return known, said

    def _jobs(self) -> list[tuple[JobRecord, Action, Look]]:
        known, said = self._known()
        seconds = {record.job: self._second_status(record) for record in known}
        quiet = {job for job, status in said.items() if status and records.now() - status.updated > FRESH}
        quiet |= {job for job, status in said.items() if status and status.updated - records.now() > FRESH}
        if quiet:
            time.sleep(self.look_s)  # the interval that is measured
        master, found = self._master(), []
        for record in known:
            with self._apart(record.job):
                later = {record.job: self._status(record)} if record.job in quiet else {}
                found.append((record, *self._decide(record, said, later, seconds, master)))
        return found

    def _decide(
        self,
        record: JobRecord,
        said: dict[str, DriverStatus | None],
        later: dict[str, DriverStatus | None],
        seconds: dict[str, DriverStatus | None],
        master: Master,
        *,
        locked: bool = False,
    ) -> tuple[Action, Look]:
        """What is to do for a job; ``locked``: by a pass that has taken its lock for that."""
        lock, holder = ("free", None) if locked else self._lock(record.job)
        operation = self.engine.find(record.job, holder) if holder else None
        before, now = said[record.job], later.get(record.job, said[record.job])
        speaks = now is not None and (record.job not in later or before is None or now.updated != before.updated)
        if lock == "abandoned" and operation is None:
            lock = "free"  # of a cluster's operation, or of one that never began
        look = Look(
            record=record,
            status=now,
            speaks=speaks,
            master=master,
            cluster=cluster_record.read(self.engine.store),
            lock=lock,
            operation=operation,
            others=tuple(status for job, status in (*said.items(), *seconds.items()) if job != record.job),
        )
        return reconcile.decide(look), look

    def _writer(self, job: str) -> DriverStatus | None:
        """What the driver that holds the lease says: where there is no record, it still is no other job's driver."""
        lease = jobs.lease(self.engine.store, job)
        return jobs.status(self.engine.store, job, lease.launch) if lease else None

    def _status(self, record: JobRecord) -> DriverStatus | None:
        return jobs.status(self.engine.store, record.job, record.launch) if record.launch else None

    def _second_status(self, record: JobRecord) -> DriverStatus | None:
        """What the second driver of a job says; nothing, where that cannot be read."""
        if record.launch is None:
            return None
        try:
            found = documents.read(self.engine.store, keys.second_driver(record.job, record.launch), DriverStatus)
        except DamagedError:
            return None
        return found.value if found else None

    # --- actions

    def _do(self, scope: str, action: Action) -> list[str]:
        if action.kind == "start":  # a node, started already
            return self._said(f"{scope} is started: {action.why}")
        if action.kind not in ("finish", "undo"):
            return []
        name = self._lock(scope)[1]
        if name is None:
            return []
        try:
            operation = self.engine.find(scope, name)
            if operation is None or operation.state in OVER:
                self.engine.release(scope, name)
            elif action.kind == "finish":
                self.engine.resume(scope, name)
            else:
                self.engine.abort(scope, name)
        except StreamOpsError as error:
            return self._said(f"{label(scope)}: {action.why}; {error}")
        return self._said(f"{label(scope)}: {action.why}; {'finished' if action.kind == 'finish' else 'undone'}")

    def _second(self, record: JobRecord, look: Look) -> list[str]:
        """A second driver where the definition asks for one, and there is room; the first one is left alone."""
        if record.launch is None or not record.version or record.desired != "running":
            return []
        ports = self.engine.ports
        try:
            version = artifacts.load_manifest(ports.store, record.job, record.version)
            if not version.definition.standby_driver:
                return []
            second = self._second_status(record)
            if second is not None and reconcile.shares_worker(look, second, version.definition):
                ports.submitter.end_driver(second.driver)  # the next pass starts another one
                return self._said(
                    f"{record.job}: its second driver, {second.driver}, is ended, because it is on the worker of the "
                    "first; another one is started, and the master may choose another worker for it"
                )
            if not reconcile.wants_second(look, second):
                return []
            if not ports.submitter.room_for(version.definition):
                return []
            deployment = jobs.deployment(ports.store, record.job, record.deployment)
            driver = ports.submitter.submit(steps.recorded(ports.store, deployment, version, record.launch))
        except StreamOpsError as error:
            return self._said(f"{record.job}: its second driver is not started; {error}")
        return self._said(f"{record.job}: a second driver, {driver}, is started, and watches over the first")

    def _start(self, wanted: list[tuple[JobRecord, Look]]) -> list[str]:
        """Those that have room beside each other at the same time, the others one after another."""
        done: list[str] = []
        begun: dict[str, Definition | None] = {}
        # All locks are taken before any driver is submitted: a new one could be taken for another job's.
        for record, look in wanted:
            with self._apart(record.job):
                if self._carefully(record.job, partial(self._begin, record, look, done)):
                    begun[record.job] = artifacts.current(self.engine.store, record)
        together = reconcile.side_by_side(self._master(), begun)
        failed: list[Exception] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for job, outcome in [(job, pool.submit(self._carry_out, job)) for job in together]:
                try:
                    with self._apart(job):
                        outcome.result()
                except Exception as error:
                    failed.append(error)  # the others are not waited for in vain
        for job in begun:
            if job not in together:
                with self._apart(job):
                    self._carry_out(job)
        if failed:
            raise failed[0]
        return done

    def _begin(self, seen: JobRecord, look: Look, done: list[str]) -> None:
        """Take the job's lock, and look again: since the first look others had their turn, which may take minutes."""
        job, name = seen.job, self._recovery(seen.job)
        self.engine.begin(request("recover_job", job=job), self.owner, name)
        known, said = self._known()
        seconds = {record.job: self._second_status(record) for record in known}
        record = next((record for record in known if record.job == job), seen)
        now = {job: said.get(job)}
        action, _ = self._decide(record, {**said, job: look.status}, now, seconds, self._master(), locked=True)
        if action.kind != "start":
            raise RefusedError(f"it is not started again, because by now {action.why}.")
        done += self._said(f"{job} is started again: {action.why}")

    def _carry_out(self, job: str) -> None:
        def act() -> None:
            for task in RECOVER_JOB.tasks:
                self.engine.run_task(job, self._recovery(job), task)
            self.engine.release(job, self._recovery(job))

        self._carefully(job, act)

    def _recovery(self, job: str) -> str:
        return operation_id("recover_job", self.owner.dag_id, self.owner.run_id, job)

    def _carefully(self, job: str, act: Callable[[], None]) -> bool:
        name = self._recovery(job)
        try:
            act()
        except StreamOpsError as error:
            self.say(f"{job}: {error}")
            if self.engine.find(job, name) is not None:
                self.engine.fail(job, name, str(error))
                self.engine.release(job, name)
            return False
        return True

    def _said(self, line: str) -> list[str]:
        self.say(line)
        return [line]
