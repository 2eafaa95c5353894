"""Carries out what ``reconcile`` decides: one look at everything, then the actions, each as a recorded operation.

``plan`` looks, does what needs no driver, and says what does; ``heal`` does one of those things, each apart from the
others. ``look`` takes the same decisions and does nothing: whether a pass is worth while.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
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

FRESH = timedelta(seconds=5)
_LOOK_S = 4.0  # between two looks at a status that is not fresh: drivers speak every second, whatever their clock says
_DOWN = "its program did not run"


@dataclass(frozen=True)
class _Second:
    """What to do about a second driver: end the one that is in the wrong place, or start one."""

    kind: Literal["end", "start"]
    driver: str = ""
    why: str = ""


@dataclass(frozen=True)
class Healing:
    """One thing to do that may put drivers on the cluster, or a trouble that can only be told.

    Args:
        scope: the job, or the cluster; of a trouble also a node.
        do: *finish* or *undo* an abandoned operation, *start* a job again, start its *second* driver.
        after: of a start, the jobs beside which it has no room until they have their executors.
    """

    scope: str
    do: Literal["finish", "undo", "start", "second", "trouble"]
    why: str
    after: tuple[str, ...] = ()


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

    def plan(self) -> list[Healing]:
        """Look at everything, start nodes, and say what is to do besides, in this order.

        The locks of the jobs that are to be started are taken. The cluster comes first, and alone: what is to do about
        its jobs is seen once its operation is over.

        Raises:
            StreamOpsError: what ends a pass before it has looked at everything, such as an object store that is away.
        """
        cluster = self._cluster()
        if cluster.kind in ("finish", "undo"):
            return [Healing(CLUSTER, cluster.kind, cluster.why)]
        self._start_nodes()
        plan: list[Healing] = []
        starting = []
        for record, action, look in self._jobs():
            with self._apart(record.job):
                if action.kind == "start":
                    starting.append((record, look))
                elif action.kind in ("finish", "undo"):
                    plan.append(Healing(record.job, action.kind, action.why))
                else:
                    plan += self._for_second(record, look)
        others = [item for item in plan if item.do in ("finish", "undo")]
        others += self._begun(starting, [item.scope for item in others])
        # What comes back goes first: the room for second drivers is seen once it is back, for one after another.
        seconds = [] if others else [item for item in plan if item.do == "second"][:1]
        plan = [*others, *seconds, *(item for item in plan if item.do == "trouble")]
        return plan + [Healing(name, "trouble", str(error)) for name, error in self.troubles.items()]

    def heal(self, item: Healing) -> str:
        """Do one thing of the plan; done again, it continues. Says what was done.

        Raises:
            StreamOpsError: it could not be done. A start is given up; another pass tries again.
        """
        try:
            return self._said(self._healed(item))
        except StreamOpsError as error:
            self.give_up(item, str(error))
            raise

    def _healed(self, item: Healing) -> str:
        if item.do == "start":
            if self._under_way(item.scope):
                for task in RECOVER_JOB.tasks:
                    self.engine.run_task(item.scope, self.recovery(item.scope), task)
                self.engine.release(item.scope, self.recovery(item.scope))
            return f"{item.scope} works again"
        if item.do == "second":
            return self._start_second(item.scope)
        if item.do == "trouble":
            raise StreamOpsError(f"{item.scope} is left as it is: {item.why}")
        return self._settle(item)

    def submit(self, job: str) -> None:
        """The first part of a start, up to its driver, which ``heal`` then waits for."""
        first = RECOVER_JOB.tasks[: RECOVER_JOB.tasks.index(steps.SUBMIT.task) + 1]
        for task in first if self._under_way(job) else ():
            self.engine.run_task(job, self.recovery(job), task)

    def _under_way(self, job: str) -> bool:
        """Whether a start of this pass continues; False: it is done. Raises RefusedError: it was given up."""
        operation = self.engine.find(job, self.recovery(job))
        if operation is None or operation.state not in ("running", "succeeded"):
            raise RefusedError(f"The start of {job} in this pass is over; the next pass looks again.")
        return operation.state == "running"

    def give_up(self, item: Healing, reason: str) -> None:
        """Record why a start failed, and give its lock back; of anything else nothing is held."""
        name = self.recovery(item.scope)
        if item.do == "start" and self.engine.find(item.scope, name) is not None:
            self.engine.fail(item.scope, name, reason)
            self.engine.release(item.scope, name)

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
                if not isinstance(error, StreamOpsError):
                    self.say("".join(traceback.format_exception(error)))
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

    def _start_nodes(self) -> None:
        for name in self._down():
            with self._apart(name, common=()):
                self.engine.ports.nodes().start(name)
                self._said(f"{name} is started: {_DOWN}")

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
        store = self.engine.store
        defined = artifacts.load_manifest(store, record.job, record.version).definition
        if not defined.standby_driver:  # nothing more is read of the others at each look
            return None
        definition = defined.with_resources(jobs.deployment(store, record.job, record.deployment).resources)
        second = self._second_status(record)
        if second is not None and reconcile.shares_worker(look, second, definition):
            return _Second("end", second.driver, "it is on the worker of the first")
        if reconcile.wants_second(look, second) and self.engine.ports.submitter.room_for(definition):
            return _Second("start", why="it shall have a second driver, and has none")
        return None

    # --- actions

    def _settle(self, item: Healing) -> str:
        """An abandoned operation is finished or undone; where only its lock is left, that is given back.

        What is abandoned by now decides: since the look someone else may have settled it, and begun another one.
        """
        scope, (lock, name) = item.scope, self._lock(item.scope)
        operation = self.engine.find(scope, name) if name else None
        if lock != "abandoned" or name is None:
            return f"{label(scope)}: there is nothing to settle any more"
        if operation is None or operation.state in OVER:
            self.engine.release(scope, name)
            return f"{label(scope)}: {item.why}; its lock is free"
        action = reconcile.settle(operation)
        if action.kind == "finish":
            self.engine.resume(scope, name)
        else:
            self.engine.abort(scope, name)
        return f"{label(scope)}: {action.why}; {'finished' if action.kind == 'finish' else 'undone'}"

    def _for_second(self, record: JobRecord, look: Look) -> Iterator[Healing]:
        """A second driver where the definition asks for one, and there is room; the first one is left alone.

        One that is in the wrong place is ended; the next pass starts another one.
        """
        job = record.job
        try:
            wanted = self._second(record, look)
            if wanted is not None and wanted.kind == "end":
                self.engine.ports.submitter.end_driver(wanted.driver)
                self._said(
                    f"{job}: its second driver, {wanted.driver}, is ended, because {wanted.why}; another one is "
                    "started, and the master may choose another worker for it"
                )
            elif wanted is not None:
                yield Healing(job, "second", wanted.why)
        except StreamOpsError as error:
            yield Healing(job, "trouble", f"its second driver is left alone: {error}")

    def _start_second(self, job: str) -> str:
        """A second driver for what runs, unless someone was faster since the look."""
        ports, record = self.engine.ports, jobs.record(self.engine.store, job)
        if record is None or record.launch is None or record.desired != "running" or self._lock(job)[0] != "free":
            return f"{job}: no second driver is started, because by now it should not run, or an operation works on it"
        second, held = self._second_status(record), {driver.id for driver in self._master().drivers}
        if second is not None and second.driver in held:
            return f"{job}: its second driver, {second.driver}, is there by now"
        deployment = jobs.deployment(ports.store, job, record.deployment)
        version = artifacts.load_manifest(ports.store, job, deployment.version)
        if not ports.submitter.room_for(version.definition.with_resources(deployment.resources)):
            return f"{job}: no second driver is started, because there is no room for it any more"
        driver = ports.submitter.submit(steps.recorded(ports.store, deployment, version, record.launch))
        return f"{job}: a second driver, {driver}, is started, and watches over the first"

    def _begun(self, wanted: list[tuple[JobRecord, Look]], settled: list[str]) -> Iterator[Healing]:
        """Those that have room beside each other need not wait, the others come one after another.

        All locks are taken before any driver is submitted: a new one could be taken for another job's.

        Args:
            settled: jobs that may need room as well, because their operations are settled.
        """
        begun: dict[str, Definition | None] = {}
        whys: dict[str, str] = {}
        for record, look in wanted:
            with self._apart(record.job):
                if why := self._begin(record, look):
                    begun[record.job], whys[record.job] = artifacts.current(self.engine.store, record), why
        store = self.engine.store
        others: dict[str, Definition | None] = {}
        for job in settled if begun else ():
            with self._apart(job):
                others[job] = artifacts.current(store, jobs.record(store, job))
        room = reconcile.side_by_side(self._master(), {**others, **begun})
        before = together = tuple(job for job in begun if job in room)
        for job in (*together, *(job for job in begun if job not in together)):
            yield Healing(job, "start", whys[job], () if job in together else before)
            before = before if job in together else (*before, job)

    def _begin(self, seen: JobRecord, look: Look) -> str:
        """Take the job's lock and look again, since the first look may be old; says why it is started, if it is."""
        job, name = seen.job, self.recovery(seen.job)
        try:
            self.engine.begin(request("recover_job", job=job), self.owner, name)
            known, said = self._known()
            seconds = {record.job: self._second_status(record) for record in known}
            record = next((record for record in known if record.job == job), seen)
            now = {job: said.get(job)}
            action, _ = self._decide(record, {**said, job: look.status}, now, seconds, self._master(), locked=True)
            if action.kind != "start":
                raise RefusedError(f"it is not started again, because by now {action.why}.")
        except StreamOpsError as error:
            self.say(f"{job}: {error}")
            self.give_up(Healing(job, "start", ""), str(error))
            return ""
        self._said(f"{job} is started again: {action.why}")
        return action.why

    def recovery(self, job: str) -> str:
        """The operation of this pass that starts a job again."""
        return operation_id("recover_job", self.owner.dag_id, self.owner.run_id, job)

    def _said(self, line: str) -> str:
        self.say(line)
        return line
