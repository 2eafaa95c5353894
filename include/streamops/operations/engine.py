"""The engine: carries out operations step by step, each recorded before its side effect.

A retry, a resumed task, another task try, or an operator who cleared or marked a task all continue from what is
recorded in the operation object, never from guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from streamops.cluster import record as cluster_record
from streamops.model.errors import (
    ConflictError,
    LockedError,
    NotFoundError,
    OvertakenError,
    RefusedError,
    StreamOpsError,
    UnhealthyError,
)
from streamops.model.names import CLUSTER, label
from streamops.model.owner import Owner
from streamops.model.records import FINAL, now
from streamops.operations import cluster_jobs, receipts, runbooks, settling
from streamops.operations.context import How, StepContext
from streamops.operations.operation import OVER, Operation, Request, StepRecord
from streamops.operations.ports import Ports
from streamops.operations.runbook import Step
from streamops.store import documents, jobs, keys, locks
from streamops.store.object_store import ObjectStore

__all__ = ["Engine", "Ports", "list_operations"]

AtPoint = Callable[[str, str], None]


class Engine:
    """Operations on one installation.

    Args:
        say: receives one line for each thing done, with ids, counts and durations; together they are the audit.
        at_point: called with a step and ``before`` (recorded as started) or ``after`` (effect done, not recorded
            yet): where tests kill, and where a task that may no longer run refuses to continue. The steps of taking
            an operation back are named ``undo:STEP``.
    """

    def __init__(
        self,
        ports: Ports,
        say: Callable[[str], None] = lambda line: None,
        at_point: AtPoint = lambda step, when: None,
    ) -> None:
        self.ports, self.say, self.at_point = ports, say, at_point
        self.store = ports.store
        self._fences: dict[tuple[str, str], dict[str, int]] = {}  # by operation, of each scope whose lock is taken up
        self._holders: dict[tuple[str, str], str] = {}  # by operation, under whose lock it is worked on

    # --- the life of an operation

    def begin(self, request: Request, owner: Owner, operation_id: str) -> Operation:
        """Take the job's operation lock and write the operation object; for a known id, give what is recorded.

        Raises:
            LockedError: another operation holds the job; the message names its owner. Nothing was done.
        """
        found = self.find(request.job, operation_id)
        if found is not None and found.state in OVER:
            return found
        there = cluster_record.read(self.store) if request.job == CLUSTER else jobs.record(self.store, request.job)
        self.say(f"Found: {receipts.found_before(there)}")
        lock = self._acquire(request.job, operation_id, request.runbook, owner, request.settles)
        renew = partial(locks.renew, self.store, request.job, operation_id, fence=lock.fence)
        with locks.renewing(lambda: renew(now())):  # settling may take longer than a lock lasts
            for left in (name for name in lock.unsettled if name != request.settles):
                self._settle(request.job, left, lock)
                renew(now(), settled=(left,))
        if found is not None:
            return self._turn(found, lock, {"state": "running"})
        moment = now()
        operation = Operation(
            id=operation_id,
            request=request,
            owner=owner,
            created=moment,
            updated=moment,
            before=None if request.job == CLUSTER else jobs.as_found(self.store, request.job),
            fence=lock.fence,
        )
        self._fences[request.job, operation_id] = {request.job: lock.fence}
        try:
            documents.write(self.store, keys.operation(request.job, operation_id), operation, new=True)
        except ConflictError:  # another try of the same task was faster
            return self._turn(operation, lock)
        self.say(f"Operation {operation_id}: {request.runbook} of {label(request.job)} for {owner.label()}")
        return operation

    def preview(self, request: Request, owner: Owner) -> dict[str, Any]:
        """What the first step would say of a request now; nothing is written and no lock is taken.

        Raises:
            StreamOpsError: why the request would be refused.
        """
        moment, before = now(), jobs.as_found(self.store, request.job)
        operation = Operation(id="preview", request=request, owner=owner, created=moment, updated=moment, before=before)
        return runbooks.of(request).steps[0].act(self._context(operation)).recorded()

    def find(self, job: str, operation_id: str) -> Operation | None:
        """The operation as recorded, or None: it never began."""
        return documents.find(self.store, keys.operation(job, operation_id), Operation)

    def run_task(self, job: str, operation_id: str, task: str, part: str | None = None) -> dict[str, Any]:
        """Carry out the steps of one task, continuing at what is recorded.

        Args:
            part: of a step that does the same for several jobs, only this one's.

        Returns:
            The facts of the task's steps.

        Raises:
            RefusedError: the operation is over, or a step before this task is not done.
            LockedError: the job went to another operation.
            StreamOpsError: what a step ran into; the step can be tried again.
        """
        operation = self._taken_up(job, operation_id)
        runbook = runbooks.of(operation)
        if task not in runbook.tasks:
            raise NotFoundError(f"Runbook {runbook.name} has no task {task!r}.")
        at, plan, facts = runbook.tasks.index(task), runbook.plan(operation.request), dict[str, Any]()
        for step in plan:
            if step.task == task:
                facts |= self._run_step(job, operation_id, step.name, part)
            elif runbook.tasks.index(step.task) < at and not self._closed(operation, step).done(step.name):
                raise RefusedError(f"Step {step.name} of {operation_id} is not done; run its task {step.task} first.")
        if not any(step.task == task for step in plan):
            self.say(f"Task {task} of {operation_id}: nothing of it was asked for")
        return facts

    def parts(self, job: str, operation_id: str, task: str) -> list[str]:
        """The jobs for each of which the task does the same."""
        operation = self._read(job, operation_id)
        found = (step for step in runbooks.of(operation).steps if step.task == task and step.parts)
        return [part for step in found if step.parts for part in step.parts(self._context(operation))]

    def poll(self, job: str, operation_id: str, step: str) -> tuple[bool, str]:
        """One look at a waiting step: whether it is done, and what it waits for. Changes nothing.

        Raises:
            UnhealthyError: waiting is pointless.
            RefusedError: the operation was ended meanwhile.
        """
        operation = self._read(job, operation_id)
        if operation.done(step):
            return True, str(operation.facts(step).get("why", "done"))
        if operation.state != "running":
            raise RefusedError(
                f"Operation {operation_id} is {operation.state} ({operation.reason}); nothing is awaited."
            )
        awaited = runbooks.of(operation).step(step)
        if awaited.look is None:
            raise NotFoundError(f"Step {step!r} waits for nothing.")
        if not awaited.when(operation.request):
            return True, "not asked for"
        found = awaited.look(self._context(operation))
        if found.failed is not None:
            raise UnhealthyError(f"{step} of {label(job)} cannot succeed: {found.failed}")
        return found.done, found.why

    def fail(self, job: str, operation_id: str, reason: str) -> None:
        """Record that the operation failed. An operation that is over stays as it is."""
        if self._read(job, operation_id).state != "running":
            return
        self._taken_up(job, operation_id)
        operation = self._change(job, operation_id, {"state": "failed", "reason": reason})
        self._tell_truth(operation)
        receipt = settling.settle(self.ports, operation, "failed", self.say)
        self.say(f"Operation {operation_id} failed at {runbooks.of(operation).at(operation) or 'its end'}: {reason}")
        self._show(receipt)

    def undo(self, job: str, operation_id: str, before: str = "") -> str:
        """Take a failed operation back, step by recorded step; says what was done.

        Args:
            before: the step that is left to another call, with all that follow.
        """
        operation = self._taken_up(job, operation_id)
        if operation.state in OVER:
            return f"Operation {operation_id} is {operation.state}; there is nothing to undo."
        back = runbooks.of(operation).undo_plan(operation)
        for name in back.steps:
            if name == before:
                return f"Step {name} of taking {operation_id} back comes next."
            self._run_undo(job, operation_id, name)
        if back.steps:
            self._end(operation, "undone")
        self.say(f"Operation {operation_id}: {back.outcome}")
        return f"{back.outcome[0].upper()}{back.outcome[1:]}."

    def _end(self, operation: Operation, state: str, reason: str | None = None) -> Operation:
        """Record how an operation ended, with a receipt that says the same."""
        update = {"state": state, **({"reason": reason} if reason else {})}
        ended = self._change(operation.job, operation.id, update)
        self._show(settling.settle(self.ports, ended, state, self.say))
        return ended

    def release(self, job: str, operation_id: str) -> None:
        """Give the job's operation lock back."""
        operation = self.find(job, operation_id) if job == CLUSTER else None
        if operation is not None:
            cluster_jobs.release(self._context(operation))
        if locks.release(self.store, job, operation_id, self._fence(job, operation_id)):
            self.say(f"The operation lock of {label(job)} is free")

    def show_receipt(self, job: str, operation_id: str) -> None:
        """Say the lines of the receipt of an operation that is over."""
        if found := receipts.read(self.store, job, operation_id):
            self._show(found)

    def _show(self, receipt: receipts.Receipt) -> None:
        for line in receipts.lines(receipt):
            self.say(line)

    # --- without Airflow

    def run(self, request: Request, owner: Owner, operation_id: str) -> Operation:
        """All tasks in this process; on failure, undone. The lock is free at the end.

        Raises:
            LockedError: another operation holds the job; nothing was done.
            StreamOpsError: what failed, after it was undone.
        """
        try:
            self.begin(request, owner, operation_id)
        except LockedError:
            raise
        except StreamOpsError:  # what was abandoned before could not be settled
            self.release(request.job, operation_id)
            raise
        return self._carry_on(request.job, operation_id)

    def resume(self, job: str, operation_id: str) -> Operation:
        """Finish an operation whose owner is gone, from its recorded step on.

        Raises:
            RefusedError: its owner lives, it is over, or it is being undone.
        """
        return self._finish(self._orphan(job, operation_id, "resume"))

    def abort(self, job: str, operation_id: str) -> Operation:
        """Take an operation back whose owner is gone, and free the job.

        Raises:
            RefusedError: its owner lives, or it is over.
        """
        return self._take_back(self._orphan(job, operation_id, "abort"))

    def _settle_as_asked(self, asked: Operation, name: str, how: How, why: str) -> Operation:
        """Settle an operation whose owner is gone, under the lock of the one that was asked to do that.

        Args:
            asked: that one, which holds the lock.
            why: of what is left as it is.

        Returns:
            The operation that was to be settled: as it is now, or as an earlier try left it.
        """
        job, operation = asked.job, self._read(asked.job, name)
        renew = partial(locks.renew, self.store, job, asked.id, fence=self._fence(job, asked.id) or 0)
        if operation.state not in OVER:
            operation = self._turn(operation, renew(now()))
            if how == "leave":
                operation = self._leave(operation, why)
            else:
                operation = self._finish(operation) if how == "resume" else self._take_back(operation)
        renew(now(), settled=(name,))
        return operation

    def _finish(self, operation: Operation) -> Operation:
        if operation.undo:
            raise RefusedError(f"Operation {operation.id} is being undone; finish that with 'operations abort'.")
        self._change(operation.job, operation.id, {"state": "running", "reason": ""})
        return self._carry_on(operation.job, operation.id)

    def _take_back(self, operation: Operation) -> Operation:
        job, name = operation.job, operation.id
        with self._renewing(job, name):
            self.fail(job, name, "aborted by an operator")
            self.undo(job, name)
        operation = self._read(job, name)
        if operation.state == "failed":
            operation = self._end(operation, "aborted")
        self.release(job, name)
        return operation

    def _leave(self, operation: Operation, why: str) -> Operation:
        """Close an operation that can be neither finished nor taken back; nothing of what it did is touched."""
        self._tell_truth(operation)
        before = f"; it had failed: {operation.reason}" if operation.reason else ""
        left = self._end(operation, "aborted", f"{why}{before}")
        self.release(operation.job, operation.id)
        return left

    def _carry_on(self, job: str, operation_id: str) -> Operation:
        with self._renewing(job, operation_id):
            try:
                operation = self._read(job, operation_id)
                for step in runbooks.of(operation).plan(operation.request):
                    self._run_step(job, operation_id, step.name)
            except StreamOpsError as error:
                self.fail(job, operation_id, str(error))
                self.undo(job, operation_id)
                self.release(job, operation_id)
                raise
        self.release(job, operation_id)
        return self._read(job, operation_id)

    def _orphan(self, job: str, operation_id: str, verb: str) -> Operation:
        operation = self._read(job, operation_id)
        if operation.state in OVER:
            raise RefusedError(f"Operation {operation_id} is {operation.state}; there is nothing to {verb}.")
        found = locks.read(self.store, job)
        if found is not None and found.value.operation == operation_id:
            lives = (
                self.ports.owners.finished(operation.owner) is False
                if operation.owner.kind == "airflow"
                else not locks.is_stale(found, self.ports.owners.finished)
            )
            if lives:
                raise RefusedError(
                    f"{operation.owner.label()} still works on {operation_id}; end that first, then {verb} it."
                )
            return self._taken_up(job, operation_id)
        helper = Owner(kind="cli", run_id=operation_id, user=operation.owner.user)
        return self._turn(operation, self._acquire(job, operation_id, operation.request.runbook, helper))

    # --- whose turn it is

    def _acquire(
        self, job: str, operation_id: str, runbook: str, owner: Owner, settles: str | None = None
    ) -> locks.Lock:
        """Take the lock, and with it the right to act: whoever had it before finds out at its next write.

        Args:
            settles: an operation that a person says nobody works on; its run may be one that Airflow no longer knows.
        """
        owners = self.ports.owners
        given_up = self.find(job, settles) if settles else None

        def finished(holder: Owner) -> bool | None:
            over = owners.finished(holder)
            if over is None and given_up is not None and holder == given_up.owner:
                return owners.forgotten(holder)
            return over

        lock = locks.acquire(self.store, job, operation_id, runbook, owner, finished, now())
        if job != CLUSTER:
            jobs.claim(self.store, job, lock.fence)
        return lock

    def _taken_up(self, job: str, operation_id: str) -> Operation:
        """The operation, which this process alone works on from here on, if its lock is still held for it.

        Two tries of a task, or a task that was cleared while another one works, never act together: the later one
        continues, and the earlier one ends before its next side effect.
        """
        operation = self._read(job, operation_id)
        if (job, operation_id) in self._fences or operation.state in OVER:
            return operation
        held = locks.read(self.store, job)
        if held is None or held.value.operation != operation_id or held.value.owner is None:
            return operation
        return self._turn(operation, self._acquire(job, operation_id, operation.request.runbook, held.value.owner))

    def _turn(self, operation: Operation, lock: locks.Lock, update: Mapping[str, Any] | None = None) -> Operation:
        """Write into the operation object, too, that it is this process's turn."""
        self._fences[operation.job, operation.id] = {operation.job: lock.fence}
        self._holders[operation.job, operation.id] = lock.operation or operation.id
        operation = self._change(operation.job, operation.id, {**(update or {}), "fence": lock.fence})
        if operation.job == CLUSTER:
            cluster_jobs.take_up(self._context(operation))
        return operation

    def _renew(self, job: str, operation_id: str) -> None:
        """Show that the owner lives. Raises LockedError: the lock is not this process's."""
        holder = self._holders.get((job, operation_id), operation_id)
        locks.renew(self.store, job, holder, now(), fence=self._fence(job, operation_id) or 0)

    def _fence(self, job: str, operation_id: str) -> int | None:
        return self._fences.get((job, operation_id), {}).get(job)

    def _settle(self, job: str, operation_id: str, lock: locks.Lock) -> None:
        """An operation whose owner is gone is undone before the next one begins, unless what it started works."""
        operation = self.find(job, operation_id)
        if operation is None or operation.state in OVER:
            return
        self.say(
            f"Operation {operation_id} was abandoned at {runbooks.of(operation).at(operation)}: it is settled first"
        )
        self._turn(operation, lock)
        if not operation.undo and runbooks.of(operation).stays(self._context(operation)):
            self._end(operation, "aborted", "abandoned by its owner; what it started works, and stays")
            return
        self.fail(job, operation_id, "abandoned by its owner")
        back = runbooks.of(operation).undo_plan(operation)
        for name in back.steps:
            self._run_undo(job, operation_id, name)
        self._end(operation, "undone" if back.steps else "aborted")
        if job == CLUSTER:
            cluster_jobs.release(self._context(operation))
        self.say(f"Operation {operation_id}: {back.outcome}")

    # --- steps

    def _closed(self, operation: Operation, step: Step) -> Operation:
        """The operation; a step with parts is recorded in it as done once all of them are, or if there is none."""
        if step.parts is None or operation.done(step.name):
            return operation
        if any(not operation.done(f"{step.name}/{part}") for part in step.parts(self._context(operation))):
            return operation
        self._record(operation.job, operation.id, step.name, started=True)
        return self._record(operation.job, operation.id, step.name)

    def _run_step(self, job: str, operation_id: str, name: str, only: str | None = None) -> dict[str, Any]:
        operation = self._read(job, operation_id)
        step = runbooks.of(operation).step(name)
        if step.parts is None:
            return self._carry_out(operation, step, name)
        if not operation.done(name):
            if only and operation.state == "failed" and not operation.started(f"{name}/{only}"):
                raise RefusedError(f"{only} is not begun, because operation {operation_id} failed: {operation.reason}")
            self._open(operation)
            operation = self._record(job, operation_id, name, started=True)
        facts: dict[str, Any] = {}
        for part in step.parts(self._context(operation)):
            if only in (None, part):
                facts |= self._carry_out(self._read(job, operation_id), step, f"{name}/{part}", part)
        self._closed(self._read(job, operation_id), step)
        return facts

    def _carry_out(self, operation: Operation, step: Step, name: str, part: str = "") -> dict[str, Any]:
        """A step, or the part of it that concerns one job.

        Args:
            name: under which it is recorded.
        """
        job, operation_id = operation.job, operation.id
        if operation.done(name):
            return operation.facts(name)
        self._open(operation)
        operation = self._record(job, operation_id, name, started=True)
        self.at_point(step.name, "before")
        context = replace(self._context(operation), part=part)
        if look := step.look:
            found = context.wait(lambda: look(context), step.within(operation.request), step.awaited)
            context = replace(context, why=found.why)
        context.require_turn()
        facts = step.act(context).recorded()
        self.at_point(step.name, "after")
        operation = self._record(job, operation_id, name, facts=facts)
        seconds = operation.steps[name].seconds or 0.0
        self.say(f"Step {name} of {operation_id} done in {seconds:.2f} s")
        return facts

    def _run_undo(self, job: str, operation_id: str, name: str) -> None:
        operation = self._read(job, operation_id)
        if name in operation.undo and operation.undo[name].finished:
            return
        self._renew(job, operation_id)
        operation = self._record(job, operation_id, name, started=True, which="undo")
        self.at_point(f"undo:{name}", "before")
        context = self._context(operation)
        context.require_turn()
        facts = runbooks.of(operation).undo[name](context).recorded()
        self.at_point(f"undo:{name}", "after")
        operation = self._record(job, operation_id, name, facts=facts, which="undo")
        self.say(f"Undo step {name} of {operation_id} done in {operation.undo[name].seconds or 0.0:.2f} s")

    def _open(self, operation: Operation) -> None:
        """Make sure that this operation may still act."""
        if operation.state in OVER or operation.undo:
            raise RefusedError(
                f"Operation {operation.id} is {operation.state if operation.state in OVER else 'being undone'}; "
                "nothing more is done in it. Trigger the runbook again."
            )
        if operation.state == "failed":  # someone cleared a task: continue, if the job is still free
            lock = self._acquire(operation.job, operation.id, operation.request.runbook, operation.owner)
            self._turn(operation, lock, {"state": "running", "reason": ""})
            return
        self._renew(operation.job, operation.id)

    def _record(
        self,
        job: str,
        operation_id: str,
        name: str,
        *,
        started: bool = False,
        facts: dict[str, Any] | None = None,
        which: str = "steps",
    ) -> Operation:
        def change(operation: Operation) -> Operation:
            old: StepRecord | None = getattr(operation, which).get(name)
            if started:
                record = old.model_copy(update={"tries": old.tries + 1}) if old else StepRecord(started=now())
            else:
                assert old is not None
                record = old.model_copy(update={"finished": now(), "facts": facts or {}})
            changed = operation.with_step(name, record, undo=which == "undo")
            last = which == "steps" and name == runbooks.of(operation).steps[-1].name
            return changed.model_copy(update={"state": "succeeded"}) if last and not started else changed

        return self._rewrite(job, operation_id, change)

    def _change(self, job: str, operation_id: str, update: dict[str, Any]) -> Operation:
        return self._rewrite(
            job, operation_id, lambda operation: operation.model_copy(update={**update, "updated": now()})
        )

    def _rewrite(self, job: str, operation_id: str, change: Callable[[Operation], Operation]) -> Operation:
        fence = self._fence(job, operation_id)

        def changed(old: Operation | None) -> Operation:
            operation = _known(old, job, operation_id)
            if fence is not None and operation.fence > fence:
                raise OvertakenError(f"Another process works on operation {operation_id} by now; this one does not.")
            return change(operation)

        return documents.update(self.store, keys.operation(job, operation_id), Operation, changed).value

    def _read(self, job: str, operation_id: str) -> Operation:
        return _known(self.find(job, operation_id), job, operation_id)

    def _context(self, operation: Operation) -> StepContext:
        fences = self._fences.get((operation.job, operation.id), {})
        return StepContext(self.ports, operation, self.say, partial(self._settle_as_asked, operation), fences=fences)

    def _tell_truth(self, operation: Operation) -> None:
        """A job whose new driver ended for good is not running, whatever was wished for."""
        if not runbooks.of(operation).starts or self._fence(operation.job, operation.id) is None:
            return
        found = jobs.status(self.store, operation.job, operation.id)
        record = jobs.record(self.store, operation.job)
        if record and record.launch == operation.id and found and found.state in FINAL:
            update = {"desired": "stopped", "changed_by": operation.id}
            jobs.change(self.store, operation.job, update, self._context(operation).fence)

    def _renewing(self, job: str, operation_id: str) -> AbstractContextManager[None]:
        def renew() -> None:
            self._renew(job, operation_id)
            if job == CLUSTER:
                cluster_jobs.renew(self._context(self._read(job, operation_id)))

        return locks.renewing(renew)


def list_operations(store: ObjectStore, job: str) -> list[Operation]:
    """All operations of a job, the oldest first."""
    return sorted(documents.every(store, keys.operations(job), Operation), key=lambda item: item.created)


def _known(found: Operation | None, job: str, operation_id: str) -> Operation:
    if found is None:
        raise NotFoundError(f"Job {job} has no operation {operation_id}; 'streamops operations' lists them.")
    return found
