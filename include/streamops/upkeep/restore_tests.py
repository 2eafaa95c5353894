"""A snapshot proven by restoring it: a scratch job continues from it beside the real one, and is recounted.

What is left by a test that was killed goes before the next one begins.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import not_

from streamops import snapshots
from streamops.clients.influx import Points
from streamops.model.definitions import Definition, Param
from streamops.model.errors import LockedError, NotFoundError, RefusedError, SnapshotRefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.model.names import SCRATCH
from streamops.model.owner import Owner
from streamops.model.records import FINAL, Deployment, now
from streamops.operations import receipts
from streamops.operations.engine import Engine, list_operations
from streamops.operations.follow import request
from streamops.operations.operation import Request
from streamops.operations.receipts import Receipt
from streamops.settings import Settings
from streamops.snapshots import catalogue, marks
from streamops.snapshots.marks import Check
from streamops.store import documents, jobs, keys, locks, waiting
from streamops.upkeep.scratch import FRESH, derived, due, is_scratch, recount_from, scratch_name, waiting_for
from streamops.versions import archives, artifacts
from streamops.versions.artifacts import ArtifactManifest

LIMIT_S = 600.0  # after which what the scratch job has done by then is judged; on a busy node it gets little
STOP_S = 180  # a driver that ends its batches gets longer than it needs, and one that was queued time to come
_LOOK_S, _SAY_S = 1.0, 10.0
_FAR_MS = 4_102_444_800_000  # the year 2100: points of open windows lie in the future


class NotTestableError(RefusedError):
    """A snapshot cannot be tested now, for a reason that says nothing of it; nothing was begun."""


@dataclass(frozen=True)
class RestoreTests:
    """Restore tests on one installation.

    Args:
        owner: who tests; while another owner tests a job, its tests are refused here.
    """

    settings: Settings
    engine: Engine
    owner: Owner
    say: Callable[[str], None] = lambda line: None

    def run_due(self, job: str, moment: datetime, fresh: timedelta = FRESH) -> str:
        """Test a job's newest good snapshot if it is time for that.

        Returns:
            What was found wrong; empty when all was well, or nothing could be tested now, which is said.

        Raises:
            StreamOpsError: the test itself failed, which says nothing of the snapshot.
        """
        if job.startswith(SCRATCH):
            return ""
        store = self.engine.store
        entries = [entry.manifest for entry in catalogue.entries(store, job) if entry.manifest]
        known = [(manifest, marks.checks(store, job, manifest.name, manifest.attempt)) for manifest in entries]
        chosen = due(known, moment, fresh)
        if chosen is None:
            return ""
        try:
            self.run(job, chosen.name)
        except SnapshotRefusedError as error:
            return str(error)
        except (NotTestableError, LockedError) as error:
            self.say(str(error))
        return ""

    def run(self, job: str, name: str) -> Check:
        """Restore a snapshot into a scratch job, let it continue, recount it, and note what was found.

        Raises:
            NotFoundError: there is no such snapshot.
            SnapshotRefusedError: it is not intact, or what continued from it is not what the events give.
            NotTestableError: there is no room for one more driver, or the topic no longer holds what it continues
                with, or nothing of what continued could be compared.
            RefusedError: another job has the scratch job's name, or the version was changed after it was published.
            LockedError: another test of this job is at work.
            UnhealthyError: the scratch job did not start or continue, which may be the cluster's fault: nothing is
                noted.
        """
        store, began = self.engine.store, time.monotonic()
        manifest = catalogue.load(store, job, name)
        version = artifacts.load_manifest(store, job, manifest.version)
        self.clear(job)
        original = self._deployed(manifest)
        self._require_testable(manifest, version, original)
        definition = self._publish(manifest, version, test=f"{name}-{uuid.uuid4().hex}")
        try:
            self.say(f"{job}/{name}: restored into {definition.job}, which writes {', '.join(definition.measurements)}")
            problem = details = ""
            try:
                details, problem = self._continued(manifest, definition, original)
            except SnapshotRefusedError as error:
                problem = str(error)
            check = Check(
                how="restored",
                when=now(),
                attempt=manifest.attempt,
                problem=problem,
                objects=len(manifest.objects),
                size=manifest.size,
                seconds=round(time.monotonic() - began, 3),
                details=details,
            )
            marks.note(store, job, name, check)
        finally:
            self.clear(job)
        receipts.write(store, self._receipt(manifest, check))
        if problem:
            raise SnapshotRefusedError(
                f"Snapshot {job}/{name} was restored for a test: {problem}; use another snapshot."
            )
        self.say(f"{job}/{name}: restored and continued in {check.seconds:.0f} s, {details}")
        return check

    def _receipt(self, manifest: Manifest, check: Check) -> Receipt:
        """Of the test; those of its scratch job's operations go with that job."""
        moment = now()
        return Receipt(
            id=f"verify_snapshots-{uuid.uuid4().hex[:12]}",
            job=manifest.job,
            runbook="verify_snapshots",
            state="failed" if check.problem else "succeeded",
            reason=check.problem,
            **receipts.asked_by(self.owner),
            inputs={"snapshot": manifest.name, "restore": True},
            began=moment - timedelta(seconds=check.seconds),
            finished=moment,
            seconds=check.seconds,
            snapshot=f"{manifest.job}/{manifest.name}",
            facts={"restored": check.model_dump(mode="json")},
        )

    def clear(self, job: str) -> bool:
        """Remove the scratch job of a job with its points; False when there is none.

        Raises:
            RefusedError: the job of that name is not a restore test's.
            LockedError: someone else is testing right now.
            UnhealthyError: a driver of it has not ended; it was told to, and the next test removes what is left.
        """
        store, name = self.engine.store, scratch_name(job)
        versions = artifacts.versions(store, name)
        found = [artifacts.load_manifest(store, name, version).definition for version in versions]
        if not all(is_scratch(definition) for definition in found):
            raise RefusedError(f"{name} is a job of its own, so restore tests of {job} have no place; rename it.")
        self.refuse_another(name)
        self._undo_own(name)
        record = jobs.record(store, name)
        if record is not None and record.desired == "running":
            try:
                self._act(request("cancel_job", job=name, stop_timeout_s=STOP_S))
            except UnhealthyError as error:
                self.say(str(error))
        if record is None and not found:
            return False
        # A driver that started later would find nothing to run.
        if there := waiting.until(lambda: self._drivers(name), STOP_S, _LOOK_S, done=not_):
            raise UnhealthyError(
                f"The cluster still holds {', '.join(there)} of {name}, which was told to stop; the next restore test "
                "removes what is left."
            )
        with closing(Points(self.settings, timeout_s=60)) as points:
            for measurement in {one for definition in found for one in definition.measurements}:
                points.delete(measurement, 0, _FAR_MS)
        self._act(request("delete_job", job=name))
        self.say(f"{name} is removed with its points")
        return True

    def refuse_another(self, name: str) -> None:
        """Raises LockedError when whoever last changed the scratch job is still at its test."""
        record = jobs.record(self.engine.store, name)
        last = self.engine.find(name, record.changed_by) if record is not None and record.changed_by else None
        if last is None or last.owner == self.owner:
            return
        over = self.engine.ports.owners.finished(last.owner)
        if over is None:  # outside Airflow no one knows, but a test does not take longer than this
            over = now() - last.updated > timedelta(seconds=2 * LIMIT_S)
        if not over:
            raise LockedError(f"{last.owner.label()} tests with {name} right now; wait for it to end.")

    def _undo_own(self, name: str) -> None:
        """Take back what an earlier try of this very test was at when it died."""
        held = locks.read(self.engine.store, name)
        if held is not None and held.value.operation and held.value.owner == self.owner:
            self.engine.fail(name, held.value.operation, "its restore test died")
            self.engine.undo(name, held.value.operation)
            self.engine.release(name, held.value.operation)

    def _deployed(self, manifest: Manifest) -> Deployment | None:
        """The deployment it was taken of, with its params and topics; None for one of another installation."""
        key = keys.deployment(manifest.job, manifest.deployment)
        found = documents.find(self.engine.store, key, Deployment)
        if found is not None and found.artifact_sha256 == manifest.artifact_sha256:
            return found
        self.say(
            f"Deployment {manifest.deployment} of {manifest.job} is not known here: its version's own settings are used"
        )
        return None

    def _require_testable(self, manifest: Manifest, version: ArtifactManifest, original: Deployment | None) -> None:
        """Raises NotTestableError."""
        job, ports = manifest.job, self.engine.ports
        if not ports.submitter.room_for(version.definition.with_resources(_resources(original))):
            raise NotTestableError(
                f"The cluster has no room for one more driver of {job} with its executors, so {job}/{manifest.name} "
                "is not restored; scale out, or choose a time when fewer jobs run."
            )
        topics = _topics(version.definition, original)
        try:
            snapshots.require_usable(manifest, job, fork=False, topics=topics, beginning=ports.ledger.beginning_offsets)
        except SnapshotRefusedError as error:
            raise NotTestableError(str(error)) from error

    def _publish(self, manifest: Manifest, version: ArtifactManifest, test: str) -> Definition:
        """Put the scratch job's version where drivers find it: the code that the snapshot was taken with.

        Raises:
            RefusedError: what is published is not what the snapshot was taken with.
        """
        store = self.engine.store
        body = store.get(version.archive).body
        if archives.sha256(body) != manifest.artifact_sha256:
            raise RefusedError(
                f"Snapshot {manifest.job}/{manifest.name} was taken with other code than what {manifest.version} "
                "holds now, so it is not tested; someone changed the published version."
            )
        definition = derived(version.definition, test)
        moved, packed = artifacts.repacked(body, version, definition)
        store.place(moved.archive, packed, moved.artifact_sha256)
        documents.write(store, keys.artifact_manifest(definition.job, definition.version), moved)
        return definition

    def _continued(self, manifest: Manifest, definition: Definition, original: Deployment | None) -> tuple[str, str]:
        """Deploy, wait, stop and recount. Returns what was compared, and what is wrong with it."""
        from streamops.recount.recounting import recount_job  # loads much that those who only look have no use for

        ledger, topics = self.engine.ports.ledger, _topics(definition, original)
        ends = {source: dict(ledger.end_offsets(topic)) for source, topic in topics.items()}
        since, after = recount_from(definition, manifest, lambda source, ms: ledger.offsets_at(topics[source], ms))
        self._act(_deploy(manifest, definition, original, topics))
        self._wait(manifest, definition, ends)
        self._act(request("cancel_job", job=definition.job, stop_timeout_s=STOP_S))
        if not after:
            return "it continues; no stage of it can be recounted", ""
        compared = [sink.measurement for name in after for sink in definition.stages[name].influx_sinks]
        report = recount_job(
            self.settings, self.engine.store, definition.job, since=since, measurements=compared, after=after
        )
        self.refuse_another(definition.job)  # whoever took it over has removed points as well
        if any(item.off for item in report.measurements):
            examples = [text for item in report.measurements for text in item.examples]
            return "", f"what continued from it is wrong: {report.reason} ({'; '.join(examples[:3])})"
        points = sum(item.expected for item in report.measurements)
        if report.damaged or not points:
            raise NotTestableError(
                f"Snapshot {manifest.job}/{manifest.name} continues, and that is all that is known: {report.reason}. "
                "Nothing is noted of it; test it again once events arrive."
            )
        stages = sum(item.expected > 0 for item in report.measurements)
        return f"{report.events:,} events recounted, {points:,} points of {stages} stages", ""

    def _wait(self, manifest: Manifest, definition: Definition, ends: Mapping[str, Mapping[str, int]]) -> None:
        """Wait until the scratch job has gone on far enough, or for some minutes: what it has done by then is judged.

        Raises:
            UnhealthyError: it ended by itself, or was removed meanwhile.
        """
        job, told = definition.job, time.monotonic()

        def look() -> list[str]:
            nonlocal told
            record = jobs.record(self.engine.store, job)
            if record is None or record.launch is None:
                raise UnhealthyError(f"{job} was removed while it was tested; test again.")
            status = jobs.status(self.engine.store, job, record.launch)
            missing = waiting_for(status, definition, manifest, ends)
            if missing and status is not None and status.state in FINAL:
                raise UnhealthyError(
                    f"{job} ended by itself: {status.reason or status.state}. Deploy the snapshot as a fork to look "
                    "into it."
                )
            if missing and time.monotonic() - told > _SAY_S:
                self.say(f"{job} continues: {'; '.join(missing)}")
                told = time.monotonic()
            return missing

        if missing := waiting.until(look, LIMIT_S, _LOOK_S, done=not_):
            self.say(f"{job} has had {LIMIT_S:.0f} s; not reached: {'; '.join(missing)}")

    def _drivers(self, name: str) -> list[str]:
        """The scratch job's drivers that the master holds, queued ones included."""
        try:
            master = self.engine.ports.nodes().master()
        except NotFoundError:  # an installation without an inventory of nodes
            return []
        store = self.engine.store
        known = {str(item.facts("submit").get("driver", "")) for item in list_operations(store, name)}
        launches = keys.names_in(list(store.prefixes(keys.launches(name))))
        known |= {status.driver for launch in launches if (status := jobs.status(store, name, launch))}
        return sorted(driver.id for driver in master.drivers if driver.id in known)

    def _act(self, asked: Request) -> None:
        self.engine.run(asked, self.owner, f"{asked.runbook}-{uuid.uuid4().hex[:12]}")


def _resources(original: Deployment | None) -> dict[str, Param]:
    return original.resources if original else {}


def _topics(definition: Definition, original: Deployment | None) -> Mapping[str, str]:
    return jobs.topics(definition, original.topics if original else {})


def _deploy(
    manifest: Manifest, definition: Definition, original: Deployment | None, topics: Mapping[str, str]
) -> Request:
    """Deploy the scratch job from the snapshot, with what the deployment had that it was taken of."""
    places = original.topics if original else {}
    return request(
        "deploy_job",
        job=definition.job,
        version=definition.version,
        from_snapshot=f"{manifest.job}/{manifest.name}",
        fork=True,
        params=original.params if original else {},
        topics={source: place for source, place in places.items() if source in topics},
        addresses={source: place for source, place in places.items() if source not in topics},
        **_resources(original),
        accept_loss=tuple(definition.stages),  # the same code and values: what is not known to fit fits all the same
        library=manifest.shared_library.label if manifest.shared_library else None,
        healthy_timeout_s=int(2 * LIMIT_S),  # beside everything else, with no one who waits for its results
    )
