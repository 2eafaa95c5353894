"""The tasks that look after the snapshot catalogue: schedule, retention, verification, restore tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from pydantic import ValidationError

from streamops.model.definitions import Keep
from streamops.model.errors import LockedError, RefusedError, StreamOpsError
from streamops.model.names import checked
from streamops.model.records import now
from streamops.model.schedules import Due
from streamops.model.wording import wrong_fields
from streamops.store import jobs as job_state
from streamops.upkeep import scheduled
from streamops.upkeep.restore_tests import RestoreTests
from streamops_airflow import assets, runs
from streamops_airflow.operators.base import (
    MAY_PASS,
    BringsBackOperator,
    OperationOperator,
    StreamOpsOperator,
    plain_errors,
)

if TYPE_CHECKING:
    from airflow.sdk import Context


class DueSnapshotsOperator(StreamOpsOperator):
    """Finds the jobs whose snapshot is due. XCom: one mapping of arguments for each."""

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Look, and say what was found."""
        for line in (*runs.told(context), *runs.found(context)):
            self.log.info("%s", line)
        with plain_errors():
            runs.require_known(context)
            found = scheduled.due_now(self.hook.store, now(), self.log.error)
        for job, item in found.items():
            self.log.info("%s: due since %s (%d missed before)", job, item.slot, item.missed)
        if not found:
            self.log.info("No snapshot is due")
        return [{"job": job, "slot": item.slot.isoformat(), "missed": item.missed} for job, item in found.items()]


class TakeScheduledOperator(BringsBackOperator):
    """Takes one job's scheduled snapshot; skipped while another operation holds the job.

    Args:
        job, slot, missed: what ``DueSnapshotsOperator`` found.
    """

    def __init__(self, *, job: str, slot: str, missed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job, self.slot, self.missed = job, slot, missed

    def execute(self, context: Context) -> dict[str, Any]:
        """Take it. Raises AirflowSkipException when the job is held: the next look finds it due again."""
        slot = datetime.fromisoformat(self.slot).astimezone(UTC)
        with plain_errors():
            item = Due(slot, now() - slot, self.missed)
            last = scheduled.take(
                self.engine(context), checked("job", self.job), item, runs.owner(context, "schedule"), self.log.info
            )
        if last is None:
            raise AirflowSkipException(f"{self.job} is held by another operation")
        assets.announce(context, self.hook.store.bucket, self.job, last.snapshot, last.size)
        return {"job": self.job, "snapshot": last.snapshot, "late_s": round(last.late_s, 1), "missed": last.missed}


class JobsOperator(StreamOpsOperator):
    """Does something for the job of the form, or for every job; one that fails does not stop the others."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it. Raises AirflowFailException with everything that went wrong, or AirflowException if that may pass."""
        asked = context["params"].get("job")
        for line in runs.told(context):
            self.log.info("%s", line)
        with plain_errors():
            runs.require_known(context)
            jobs = [checked("job", asked)] if asked else job_state.names(self.hook.store)
        wrong: list[str] = []
        facts: dict[str, Any] = {}
        again = False
        for job in jobs:
            try:
                facts[job] = self.do(context, job, wrong)
            except StreamOpsError as error:
                wrong.append(f"{job}: {error}")
                again |= isinstance(error, MAY_PASS)
        if wrong:
            raise (AirflowException if again else AirflowFailException)(" | ".join(wrong))
        return facts

    def do(self, context: Context, job: str, wrong: list[str]) -> Any:
        """What is to do for one job; what is wrong is appended."""
        raise NotImplementedError


class RetentionOperator(JobsOperator):
    """Applies each job's retention rule; triggered by hand without *Apply*, it only says what it would do."""

    def do(self, context: Context, job: str, wrong: list[str]) -> Any:
        """Plan or prune one job; a job that is held is left for the next time."""
        keep = self._keep(context["params"]["keep"], context["params"]["job"])
        if not (context["params"]["apply"] or runs.by_schedule(context)):
            planned = self.hook.would_prune(job, keep)
            for verdict in planned.verdicts:
                what = "kept" if verdict.keep else "would be removed"
                self.log.info("%s/%s %s: %s", job, verdict.name, what, verdict.why)
            self.log.info("Nothing was touched; tick Apply to have it done")
            would_remove = [verdict.name for verdict in planned.verdicts if not verdict.keep]
            return {"would_remove": would_remove, "verdicts": planned.told()["verdicts"]}
        try:
            done = self.hook.prune(job, keep)
        except LockedError as error:
            self.log.warning("%s is left alone: %s", job, error)
            return {"held": str(error)}
        return done.told()

    def _keep(self, asked: dict[str, Any] | None, job: str | None) -> Keep | None:
        if asked is None:
            return None
        if job is None:
            raise RefusedError(
                "Keep goes with one job: name it, or leave both to the definitions. Nothing was touched."
            )
        try:
            return Keep.model_validate(asked)
        except ValidationError as error:
            raise RefusedError(f"The rule is refused: {wrong_fields(error, 'keep')}. Nothing was touched.") from None


class VerifyOperator(JobsOperator):
    """Reads back every snapshot that was not read for some days and, if asked, lets Spark read its state."""

    def do(self, context: Context, job: str, wrong: list[str]) -> Any:
        """Read one job's; what is damaged is noted in the catalogue and fails the run at the end."""
        if name := _one(context):
            self.hook.verify(job, name, state=context["params"]["state"])
            return {"damaged": 0}
        fresh = timedelta(days=context["params"]["days"])
        found = self.hook.verify_due(job, fresh, state=context["params"]["state"])
        wrong += found
        return {"damaged": len(found)}


def _one(context: Context) -> str:
    """The only snapshot that the form names, if it does. Raises RefusedError."""
    name = context["params"]["snapshot"]
    if name and not context["params"]["job"]:
        raise RefusedError("Snapshot goes with one job: name it. Nothing was touched.")
    return checked("snapshot", name) if name else ""


def _tests(operator: OperationOperator, context: Context) -> RestoreTests:
    owner = runs.owner(context, "schedule")
    return RestoreTests(operator.hook.settings, operator.engine(context), owner, operator.log.info)


class RestoreTestOperator(JobsOperator, BringsBackOperator):
    """Restores each job's newest snapshot into a scratch job, lets that continue, and recounts it."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Test what is due. Raises AirflowSkipException when the form says not to."""
        if not context["params"]["restore"]:
            raise AirflowSkipException("This run makes no restore tests.")
        return super().execute(context)

    def do(self, context: Context, job: str, wrong: list[str]) -> Any:
        """Test one job's; a snapshot that does not continue rightly is noted, and fails the run at the end."""
        if name := _one(context):
            _tests(self, context).run(job, name)
            return {"wrong": False}
        fresh = timedelta(days=context["params"]["restore_days"])
        found = _tests(self, context).run_due(job, now(), fresh)
        if found:
            wrong.append(found)
        return {"wrong": bool(found)}


class ClearScratchOperator(JobsOperator, BringsBackOperator):
    """Removes what a restore test left that was killed."""

    def do(self, context: Context, job: str, wrong: list[str]) -> Any:
        """Remove one job's; usually there is nothing."""
        try:
            return {"removed": _tests(self, context).clear(job)}
        except LockedError as error:
            self.log.info("%s", error)
            return {"removed": False}
