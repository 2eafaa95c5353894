"""Snapshots as Airflow assets: other DAGs can wait for those of a job (``schedule=[assets.snapshots("clicks")]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias

from streamops.store import keys

if TYPE_CHECKING:
    from airflow.sdk import Context

# The job is known only when a task runs, so tasks declare the alias and name the asset of the job in it.
TAKEN = AssetAlias("streamops-snapshots")


def snapshots(job: str, bucket: str = "streamops") -> Asset:
    """The asset that gets an event with each snapshot of a job: where the manifests of its snapshots are.

    Args:
        bucket: of the installation; the local stack's is the default.
    """
    return Asset(f"s3://{bucket}/{keys.snapshots(job)}".rstrip("/"))


def announce(context: Context, bucket: str, job: str, name: str, size: int) -> None:
    """Tell that a snapshot exists; a task that is tried again tells it once, with its success.

    Args:
        size: bytes of all its objects.
    """
    context["outlet_events"][TAKEN].add(snapshots(job, bucket), extra={"job": job, "snapshot": name, "bytes": size})
