"""
# Release a version of a streaming job with the data that it needs

New campaigns arrive in a bucket. They are loaded, the job that counts clicks is running, its state is kept, a person
approves what would become of that state, the next version takes over with it, and the outcome is reported.
"""

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, Param, dag, task

from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.operators.runbooks import DeployJobOperator, SnapshotJobOperator, UpgradeJobOperator


@dag(
    schedule=[Asset("s3://marketing/campaigns")],
    params={"job": Param("clicks"), "version": Param("v1"), "next_version": Param("v2")},
    doc_md=__doc__,
    tags=["example"],
)
def release_clicks() -> None:
    """Ordinary tasks around three runbooks, and a question."""

    @task
    def load_campaigns() -> int:
        return 3  # whatever your pipeline does before

    @task
    def verdict(params: dict[str, Any]) -> str:
        lines = StreamOpsHook().preview("upgrade_job", job=params["job"], version=params["next_version"])
        return "\n".join(f"- {line}" for line in lines)

    @task
    def report(campaigns: int, kept: dict[str, Any], upgraded: dict[str, Any]) -> str:
        return f"{campaigns} campaigns; {upgraded['after']} runs; before it, {kept['snapshot']} was kept"

    deploy = DeployJobOperator(task_id="deploy", job="{{ params.job }}", version="{{ params.version }}")
    snapshot = SnapshotJobOperator(
        task_id="snapshot",
        job="{{ params.job }}",
        snapshot="campaigns-{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S') }}",
    )
    approve = ApprovalOperator(
        task_id="approve",
        subject="Upgrade {{ params.job }} to {{ params.next_version }}?",
        body="{{ ti.xcom_pull('verdict') }}",
    )
    upgrade = UpgradeJobOperator(task_id="upgrade", job="{{ params.job }}", version="{{ params.next_version }}")

    campaigns = load_campaigns()
    (
        campaigns
        >> deploy
        >> snapshot
        >> verdict()
        >> approve
        >> upgrade
        >> report(campaigns, snapshot.output, upgrade.output)
    )


release_clicks()
