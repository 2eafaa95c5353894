"""The first task of a runbook that asks a person before it begins, if its form says so."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from streamops_airflow import runs
from streamops_airflow.operators.steps import REFUSED, BeginOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE, REJECT = "Approve", "Reject"
WITHIN = timedelta(days=7)  # no run waits for ever
SHOWN = "shown"  # what a person was shown of the verdict
_PATIENCE_S, _PAUSE_S = 1800.0, 10.0  # for a server that is away right after an answer: another try would ask again


class ApprovedOperator(HITLOperator, BeginOperator):
    """Asks a person to approve the result of the check, without holding a worker or the job meanwhile.

    If this task is cleared or retried, an operation that has already begun is not asked about again.
    """

    template_fields = (*BeginOperator.template_fields, *HITLOperator.template_fields)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="{{ dag.dag_id }} of {{ params.job }}: continue?",
            options=[APPROVE, REJECT],
            response_timeout=WITHIN,
            **kwargs,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Begin, or ask first."""
        for line in runs.told(context):
            self.log.info("%s", line)
        said: list[str] | None = None
        with self.told_errors(context):
            run = runs.of(context)
            if getattr(run.request, "approval", False) and not self.engine(context).find(run.job, run.operation_id):
                said, verdict = self._checked(context)
                context["ti"].xcom_push(key=SHOWN, value=verdict)
        if said is None:
            return self.begin(context)
        for line in said:
            self.log.info("%s", line)
        self.body = "\n".join(f"- {line}" for line in said)
        return dict(HITLOperator.execute(self, context))  # which raises what makes Airflow wait

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Begin if a person has approved, and the verdict is still the one that was shown.

        Raises:
            AirflowFailException: nobody has, or it is another one by now.
        """
        if "error" in event:
            self.refuse(context, f"Nobody has answered within {WITHIN.days} days. Nothing was touched.")
        answer = HITLOperator.execute_complete(self, context, event)
        who = (answer["responded_by_user"] or {}).get("name", "someone")
        if answer["chosen_options"] != [APPROVE]:
            self.refuse(context, f"{who} has rejected it. Nothing was touched.")
        self.log.info("Approved by %s at %s", who, answer["responded_at"])
        again = Retrying(
            retry=retry_if_exception(lambda error: type(error) is AirflowException),  # what may pass
            stop=stop_after_delay(_PATIENCE_S),
            wait=wait_fixed(_PAUSE_S),
            reraise=True,
        )
        return {"approved_by": who, **again(self._begin_as_shown, context)}

    def _begin_as_shown(self, context: Context) -> dict[str, Any]:
        with self.told_errors(context):
            said, verdict = self._checked(context)
        if verdict != context["ti"].xcom_pull(task_ids=self.task_id, key=SHOWN):
            for line in said:
                self.log.info("%s", line)
            self.refuse(context, "The verdict is another one than was approved. Nothing was touched; trigger it again.")
        return self.begin(context)

    def _checked(self, context: Context) -> tuple[list[str], dict[str, Any]]:
        """What the check says now, and what of it decides."""
        said, facts = self.hook.checked(runs.of(context).request)
        return said, {key: facts.get(key) for key in ("before", "after", "outcomes")}

    def refuse(self, context: Context, reason: str) -> None:
        """End the run as one that was refused."""
        self.untouched(context, REFUSED, reason)
        raise AirflowFailException(reason)
