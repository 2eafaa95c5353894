"""Snapshots in the code of tasks: take, look at, verify, restore, keep, remove, and carry to another installation."""

from __future__ import annotations

import builtins
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import get_current_context

from streamops import snapshots
from streamops.model.definitions import Keep
from streamops.model.manifest import Manifest
from streamops.model.records import Deployment, now
from streamops.operations import housekeeping
from streamops.operations.facts import Checked, Reserved
from streamops.operations.follow import request
from streamops.operations.housekeeping import Pruned
from streamops.operations.operation import Operation, operation_id
from streamops.snapshots import portable, verification
from streamops.snapshots.marks import Check
from streamops.store import jobs
from streamops_airflow import assets, runs
from streamops_airflow.hooks.streamops import StreamOpsHook


class SnapshotHook(StreamOpsHook):
    """Snapshots of one installation.

    Whatever changes something is an operation like those of ``snapshot_job`` (``save``), ``deploy_job`` (``restore``)
    and ``manage_snapshot``: the same steps, lock and receipt, owned by the DAG run of the calling task. They hold the
    worker until they are done; the operators of the runbooks do not. A retried or cleared task continues what it began,
    and does nothing twice.

    Raises (every method): StreamOpsError, whose message is one sentence; NotFoundError when there is no such snapshot.
    """

    def save(self, job: str, snapshot: str | None = None, *, cancel: bool = False, **more: Any) -> Manifest:
        """Take a snapshot, of a running job while it runs. A task with the outlet ``assets.TAKEN`` announces it.

        Args:
            snapshot: a new name; if left out, it is derived from the task.
            cancel: stop the job at a batch boundary first; it stays stopped.
            more: other fields of the form of ``snapshot_job``.

        Raises:
            LockedError: another operation holds the job; nothing was done.
            SnapshotExistsError: the name is taken.
        """
        operation = self._run("snapshot_job", job=job, snapshot=snapshot, cancel=cancel, **more)
        manifest = self.show(job, operation.snapshot)
        context = get_current_context()
        if assets.TAKEN in context["task"].outlets:
            assets.announce(context, self.store.bucket, job, manifest.name, manifest.size)
        return manifest

    def restore(
        self, job: str, snapshot: str, *, to: str | None = None, version: str | None = None, **more: Any
    ) -> Deployment:
        """Start a job that is not running from a snapshot, and wait until it is healthy.

        Args:
            to: another job to start from it, a fork; its version is published already.
            version: the version to start; if left out, that of the snapshot.
            more: other fields of the form of ``deploy_job``.

        Raises:
            LockedError: another operation holds the job; nothing was done.
            RefusedError: the job runs, or the version cannot continue the state.
            UnhealthyError: it did not become healthy in time.
        """
        found = {"version": version or self.show(job, snapshot).version, "from_snapshot": f"{job}/{snapshot}"}
        started = to or job
        operation = self._run("deploy_job", job=started, fork=started != job, **found, **more)
        return jobs.deployment(self.store, started, operation.reported("reserve", Reserved).deployment)

    def list(self, job: str | None = None) -> builtins.list[Manifest]:
        """All snapshots, or those of one job, the oldest first; without those that are refused."""
        return snapshots.list(self.store, job)

    def show(self, job: str, snapshot: str) -> Manifest:
        """What a snapshot holds, once its signature has been verified. Raises SnapshotRefusedError."""
        return snapshots.load(self.store, job, snapshot)

    def verify(self, job: str, snapshot: str, *, state: bool = False) -> Check:
        """Read every object back, compare, and note what was found. Raises SnapshotRefusedError.

        Args:
            state: let local Spark read the state as well, which takes a minute or more.
        """
        found = verification.verify(self.store, job, snapshot, self.log.info)
        return verification.verify_state(self.store, job, snapshot, self.log.info) if state else found

    def verify_due(self, job: str, fresh: timedelta, *, state: bool = False) -> builtins.list[str]:
        """Verify the snapshots that were not read within ``fresh``; returns what is wrong, one sentence each.

        Args:
            state: let local Spark read the state as well, which takes a minute or more for each.
        """
        return verification.verify_due(self.store, [job], now(), fresh, self.log.info, with_state=state)

    def would_prune(self, job: str, keep: Keep | None = None) -> Pruned:
        """What the job's retention rule, or another one, would keep and remove now, with the reason for each."""
        return housekeeping.plan(self.store, job, keep, now())

    def prune(self, job: str, keep: Keep | None = None) -> Pruned:
        """Apply the job's retention rule, or another one; an operation only if there is something to remove or free.

        Raises:
            LockedError: an operation holds the job; nothing was done.
        """
        planned = self.would_prune(job, keep)
        if planned.nothing:
            self.log.info("%s: nothing is to be removed or freed", job)
            return planned
        operation = self._run("apply_retention", job=job, keep=keep)
        return Pruned.of(job, operation.facts("remove"))

    def remove(self, job: str, snapshot: str, reason: str = "by hand") -> None:
        """Remove it; for 14 days it can be brought back. Raises RefusedError: it is pinned or in use."""
        self._run("manage_snapshot", job=job, action="remove", snapshot=snapshot, reason=reason)

    def undelete(self, job: str, snapshot: str) -> Manifest:
        """Bring a removed one back. Raises NotFoundError: it was not removed, or was removed more than 14 days ago."""
        self._run("manage_snapshot", job=job, action="undelete", snapshot=snapshot)
        return self.show(job, snapshot)

    def pin(self, job: str, snapshot: str, reason: str = "kept by hand") -> None:
        """Keep it whatever the retention rule says."""
        self._run("manage_snapshot", job=job, action="pin", snapshot=snapshot, reason=reason)

    def unpin(self, job: str, snapshot: str) -> bool:
        """Leave it to the retention rule again; False if it was not pinned."""
        done = self._run("manage_snapshot", job=job, action="unpin", snapshot=snapshot)
        return not done.reported("check", Checked).unchanged

    def export(self, job: str, snapshot: str, file: Path) -> Manifest:
        """Pack it with its published version into one file, which appears once it is complete."""
        return portable.export(self.store, job, snapshot, file)

    def import_(self, file: Path, *, trust: bool = False) -> Manifest:
        """Import a snapshot from a file that ``export`` wrote.

        Args:
            trust: accept it although another installation signed it.
        """
        job, name, sha256 = portable.stage(self.store, file)
        self._run("manage_snapshot", job=job, action="import", snapshot=name, archive=sha256, trust=trust)
        return self.show(job, name)

    def _run(self, runbook: str, **values: Any) -> Operation:
        context = get_current_context()
        ti, asked = context["ti"], request(runbook, **values)
        place = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index), asked.model_dump_json())
        engine = self.task_engine(context, self.log.info, self.submit)
        return engine.run(asked, runs.owner(context, "schedule"), operation_id(runbook, *place))
