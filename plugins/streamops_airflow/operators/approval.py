"""The first task of a runbook that asks a person before it begins, if its form says so."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import AirflowFailException

from streamops_airflow import runs
from streamops_airflow.operators.base import plain_errors
from streamops_airflow.operators.steps import REFUSED, BeginOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE, REJECT = "Approve", "Reject"
WITHIN = timedelta(days=7)  # no run waits for ever


class ApprovedOperator(HITLOperator, BeginOperator):
    """Asks with what the check says; a worker is not held, and neither is the job.

    An operation that has begun is not asked about again: this task was cleared, or is tried again.
    """

    template_fields = (*BeginOperator.template_fields, *HITLOperator.template_fields)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="{{ dag.dag_id }} of {{ params.job }}: go on?",
            options=[APPROVE, REJECT],
            response_timeout=WITHIN,
            **kwargs,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Begin, or ask first."""
        for line in runs.told(context):
            self.log.info("%s", line)
        said: list[str] | None = None
        with plain_errors(lambda reason: self.untouched(context, REFUSED, reason)):
            run = runs.of(context)
            if getattr(run.request, "approval", False) and not self.engine(context).find(run.job, run.operation_id):
                said = self.hook.preview(
                    run.request.runbook, **run.request.model_dump(exclude={"runbook"}, exclude_unset=True)
                )
        if said is None:
            return self.begin(context)
        for line in said:
            self.log.info("%s", line)
        self.body = "\n".join(f"- {line}" for line in said)
        return dict(HITLOperator.execute(self, context))  # which raises what makes Airflow wait

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Begin if a person has approved.

        Raises:
            AirflowFailException: nobody has.
        """
        if "error" in event:
            self.refuse(context, f"Nobody has answered within {WITHIN.days} days. Nothing was touched.")
        answer = HITLOperator.execute_complete(self, context, event)
        who = (answer["responded_by_user"] or {}).get("name", "somebody")
        if answer["chosen_options"] != [APPROVE]:
            self.refuse(context, f"{who} has rejected it. Nothing was touched.")
        self.log.info("Approved by %s at %s", who, answer["responded_at"])
        return {"approved_by": who, **self.begin(context)}

    def refuse(self, context: Context, reason: str) -> None:
        """End the run as one that was refused."""
        self.untouched(context, REFUSED, reason)
        raise AirflowFailException(reason)
