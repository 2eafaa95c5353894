"""
# Release a version of a streaming job with the data that it needs

New campaigns arrive in a bucket. They are loaded, the job that counts clicks is running, its state is kept, the next
version takes over with that state, and the outcome is reported.
"""

from typing import Any

from airflow.sdk import Asset, Param, dag, task

from streamops_airflow.operators.runbooks import DeployJobOperator, SnapshotJobOperator, UpgradeJobOperator


@dag(
    schedule=[Asset("s3://marketing/campaigns")],
    params={"job": Param("clicks"), "version": Param("v1"), "next_version": Param("v2")},
    doc_md=__doc__,
    tags=["example"],
)
def release_clicks() -> None:
    """Ordinary tasks around three runbooks."""

    @task
    def load_campaigns() -> int:
        return 3  # whatever your pipeline does before

    @task
    def report(campaigns: int, kept: dict[str, Any], upgraded: dict[str, Any]) -> str:
        return f"{campaigns} campaigns; {upgraded['after']} runs; before it, {kept['snapshot']} was kept"

    deploy = DeployJobOperator(task_id="deploy", job="{{ params.job }}", version="{{ params.version }}")
    snapshot = SnapshotJobOperator(
        task_id="snapshot",
        job="{{ params.job }}",
        snapshot="campaigns-{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S') }}",
    )
    upgrade = UpgradeJobOperator(task_id="upgrade", job="{{ params.job }}", version="{{ params.next_version }}")

    campaigns = load_campaigns()
    campaigns >> deploy >> snapshot >> upgrade >> report(campaigns, snapshot.output, upgrade.output)


release_clicks()
