"""Snapshots as Airflow assets: other DAGs can wait for those of a job (``schedule=[assets.snapshots("clicks")]``)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias

from streamops.store import keys

if TYPE_CHECKING:
    from airflow.sdk import Context

# The job is known only when a task runs, so tasks declare the alias and name the asset of the job in it.
TAKEN = AssetAlias("streamops-snapshots")
_CLOCKS = timedelta(hours=1)  # that a worker's clock may be ahead of that of Airflow's database


def snapshots(job: str, bucket: str = "streamops") -> Asset:
    """The asset that gets an event with each snapshot of a job: where the manifests of its snapshots are.

    Args:
        bucket: of the installation; the local stack's is the default.
    """
    return Asset(f"s3://{bucket}/{keys.snapshots(job)}".rstrip("/"))


def announce(context: Context, bucket: str, job: str, name: str, size: int) -> None:
    """Tell that a snapshot exists, with the task's success; a task that is tried again, or cleared, tells it once.

    Args:
        size: bytes of all its objects.
    """
    asset = snapshots(job, bucket)
    if announced(context, asset, name):
        return
    context["outlet_events"][TAKEN].add(asset, extra={"job": job, "snapshot": name, "bytes": size})


def announced(context: Context, asset: Asset, name: str) -> bool:
    """Whether a snapshot was announced since the run was to begin: clearing a task changes nothing of that moment."""
    from airflow.sdk.execution_time.context import InletEventsAccessor  # loads what parsing does not need

    events = InletEventsAccessor(alias_name=TAKEN.name).after((context["dag_run"].run_after - _CLOCKS).isoformat())
    return any((event.asset.uri, (event.extra or {}).get("snapshot")) == (asset.uri, name) for event in events)
