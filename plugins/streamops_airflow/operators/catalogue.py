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
    """Finds the jobs that a run is about. XCom: the arguments of a task for each."""

    def execute(self, context: Context) -> list[dict[str, str]]:
        """The job of the form, or every job."""
        for line in runs.told(context):
            self.log.info("%s", line)
        params = context["params"]
        with plain_errors():
            runs.require_known(context)
            if alone := [name for name in ("keep", "snapshot") if params.get(name) and not params["job"]]:
                raise RefusedError(f"{alone[0].capitalize()} goes with one job: name it. Nothing was touched.")
            jobs = [checked("job", params["job"])] if params["job"] else job_state.names(self.hook.store)
        self.log.info("Of %s", ", ".join(jobs) or "no job: there is none")
        return [{"job": job} for job in jobs]


class OneJobOperator(StreamOpsOperator):
    """Does something for one of the jobs that were found."""

    def __init__(self, *, job: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job


class RetentionOperator(OneJobOperator):
    """Applies a job's retention rule; triggered by hand without *Apply*, it only says what it would do."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan or prune; a job that is held is left for the next time."""
        with plain_errors():
            keep = self._keep(context["params"]["keep"])
            if not (context["params"]["apply"] or runs.by_schedule(context)):
                return self._planned(keep)
            try:
                return self.hook.prune(self.job, keep).told()
            except LockedError as error:
                self.log.warning("%s is left alone: %s", self.job, error)
                return {"held": str(error)}

    def _planned(self, keep: Keep | None) -> dict[str, Any]:
        planned = self.hook.would_prune(self.job, keep)
        for verdict in planned.verdicts:
            what = "kept" if verdict.keep else "would be removed"
            self.log.info("%s/%s %s: %s", self.job, verdict.name, what, verdict.why)
        self.log.info("Nothing was touched; tick Apply to have it done")
        would_remove = [verdict.name for verdict in planned.verdicts if not verdict.keep]
        return {"would_remove": would_remove, "verdicts": planned.told()["verdicts"]}

    def _keep(self, asked: dict[str, Any] | None) -> Keep | None:
        if asked is None:
            return None
        try:
            return Keep.model_validate(asked)
        except ValidationError as error:
            raise RefusedError(f"The rule is refused: {wrong_fields(error, 'keep')}. Nothing was touched.") from None


class VerifyOperator(OneJobOperator):
    """Reads back a job's snapshots that have not been read for some days and, if asked, lets Spark read their state."""

    def execute(self, context: Context) -> None:
        """Read them. Raises AirflowFailException: some are damaged, which is noted in the catalogue."""
        params = context["params"]
        with plain_errors():
            if params["snapshot"]:
                self.hook.verify(self.job, checked("snapshot", params["snapshot"]), state=params["state"])
                return
            damaged = self.hook.verify_due(self.job, timedelta(days=params["days"]), state=params["state"])
        if damaged:
            raise AirflowFailException(" | ".join(damaged))


class RestoreTestOperator(OneJobOperator, BringsBackOperator):
    """Restores a job's newest snapshot into a scratch job, lets that continue, and recounts it."""

    def execute(self, context: Context) -> None:
        """Test it, if it is due.

        Raises:
            AirflowSkipException: the form says not to.
            AirflowFailException: it does not continue rightly, which is noted in the catalogue.
        """
        params = context["params"]
        if not params["restore"]:
            raise AirflowSkipException("This run makes no restore tests.")
        with plain_errors():
            tests = _tests(self, context)
            if params["snapshot"]:
                tests.run(self.job, checked("snapshot", params["snapshot"]))
                return
            wrong = tests.run_due(self.job, now(), timedelta(days=params["restore_days"]))
        if wrong:
            raise AirflowFailException(wrong)


class ClearScratchOperator(BringsBackOperator):
    """Removes what killed restore tests of this run left behind; usually there is nothing."""

    def execute(self, context: Context) -> list[str]:
        """Remove it. XCom: the jobs of which something was left. What fails does not stop the others."""
        cleared, wrong = [], []
        tests = _tests(self, context)
        for job in job_state.names(self.hook.store):
            try:
                cleared += [job] if tests.clear(job) else []
            except LockedError as error:
                self.log.info("%s", error)
            except StreamOpsError as error:
                wrong.append(f"{job}: {error}")
        if wrong:
            raise AirflowException(" | ".join(wrong))
        return cleared


def _tests(operator: OperationOperator, context: Context) -> RestoreTests:
    owner = runs.owner(context, "schedule")
    return RestoreTests(operator.hook.settings, operator.engine(context), owner, operator.log.info)
