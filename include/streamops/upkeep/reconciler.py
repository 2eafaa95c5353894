"""Carries out what ``reconcile`` decides: one look at everything, then the actions, each as a recorded operation.

``look`` takes the same decisions and does nothing: whether a pass is worth while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Literal

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
from streamops.upkeep.watching import Finding, Found
from streamops.versions import artifacts
from streamops.versions.artifacts import ArtifactManifest

FRESH = timedelta(seconds=5)
_AT_ONCE = 4  # submissions, each a process of some seconds and some hundred MB
_LOOK_S = 4.0  # between two looks at a status that is not fresh: drivers speak every second, whatever their clock says
_DOWN = "its program did not run"


@dataclass(frozen=True)
class _Second:
    """What to do about a second driver: end the one that is in the wrong place, or start one."""

    kind: Literal["end", "start"]
    version: ArtifactManifest
    driver: str = ""
    why: str = ""


@dataclass(frozen=True)
class Reconciler:
    """One pass over an installation, or one look at it.

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
                    done += self._do(record.job, action) + self._do_second(record, look)
        done += self._start(starting)
        if self.troubles:
            raise next(iter(self.troubles.values()))
        return done

    def look(self) -> Found:
        """What a pass would do now, and which jobs operations hold. Nothing is touched.

        Raises:
            StreamOpsError: what ends a pass before it has looked at everything, such as an object store that is away.
        """
        found: list[Finding] = []
        busy = {CLUSTER} if self._lock(CLUSTER)[0] == "held" else set[str]()
        action = self._cluster()
        if action.kind != "nothing":
            found.append(Finding(CLUSTER, action.kind, action.why))
        found += [Finding(name, "start", _DOWN) for name in self._down()]
        for record, action, look in self._jobs():
            if look.lock == "held":
                busy.add(record.job)
            with self._apart(record.job):
                found += self._found(record, action, look)
        found += [Finding(name, "trouble", str(error), mends=False) for name, error in self.troubles.items()]
        return Found(tuple(found), frozenset(busy))

    def _found(self, record: JobRecord, action: Action, look: Look) -> Iterator[Finding]:
        if action.kind in ("finish", "undo"):
            yield Finding(record.job, action.kind, action.why)
        elif action.kind == "start":
            # An operation that ended between two reads of this look leaves another record: there is nothing to do.
            if jobs.record(self.engine.store, record.job) == record:
                yield Finding(record.job, action.kind, action.why)
        elif second := self._second(record, look):
            yield Finding(record.job, f"second {second.kind}", second.why)

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

    def _down(self) -> tuple[str, ...]:
        """Programs that should run and do not: after a start by hand, or one that supervisord gave up on."""
        try:
            nodes = self.engine.ports.nodes()
            cluster = cluster_record.read(self.engine.store)
            wanted = ("master", *cluster.wanted(nodes.inventory))
        except NotFoundError:
            return ()
        up = []
        for name in wanted:
            try:
                if nodes.program(name).up:
                    up.append(name)
            except StreamOpsError:
                up.append(name)  # a node that does not answer is not this pass's to start
        return reconcile.programs(cluster, self._lock(CLUSTER)[0], wanted, up)

    def _nodes(self) -> list[tuple[str, Action]]:
        """Those of them that were started."""
        started = []
        for name in self._down():
            with self._apart(name, common=()):
                self.engine.ports.nodes().start(name)
                started.append(name)
        return [(name, Action("start", _DOWN)) for name in started]

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
        wanted = [record.job for record in known if record.desired == "running"]
        quiet = {job for job in wanted if (status := said[job]) and abs(records.now() - status.updated) > FRESH}
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
            return documents.find(self.engine.store, keys.second_driver(record.job, record.launch), DriverStatus)
        except DamagedError:
            return None

    def _second(self, record: JobRecord, look: Look) -> _Second | None:
        """What to do about the job's second driver."""
        if record.launch is None or not record.version or record.desired != "running":
            return None
        version = artifacts.load_manifest(self.engine.store, record.job, record.version)
        if not version.definition.standby_driver:
            return None
        second = self._second_status(record)
        if second is not None and reconcile.shares_worker(look, second, version.definition):
            return _Second("end", version, second.driver, "it is on the worker of the first")
        if reconcile.wants_second(look, second) and self.engine.ports.submitter.room_for(version.definition):
            return _Second("start", version, why="it shall have a second driver, and has none")
        return None

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

    def _do_second(self, record: JobRecord, look: Look) -> list[str]:
        """A second driver where the definition asks for one, and there is room; the first one is left alone."""
        ports = self.engine.ports
        try:
            wanted = self._second(record, look)
            if wanted is None or record.launch is None:
                return []
            if wanted.kind == "end":
                ports.submitter.end_driver(wanted.driver)  # the next pass starts another one
                return self._said(
                    f"{record.job}: its second driver, {wanted.driver}, is ended, because {wanted.why}; another one is "
                    "started, and the master may choose another worker for it"
                )
            deployment = jobs.deployment(ports.store, record.job, record.deployment)
            driver = ports.submitter.submit(steps.recorded(ports.store, deployment, wanted.version, record.launch))
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
