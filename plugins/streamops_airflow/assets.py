"""Snapshots as Airflow assets: other DAGs can wait for those of a job (``schedule=[assets.snapshots("my-job")]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.sdk import Context

# The job is known only when a task runs, so tasks declare the alias and name the asset of the job in it.
TAKEN = AssetAlias("streamops-snapshots")


def snapshots(job: str) -> Asset:
    """The asset that gets an event with each snapshot of a job."""
    return Asset(name=f"snapshots of {job}", uri=f"streamops://{job}/snapshots")


def announce(context: Context, job: str, name: str, size: int) -> None:
    """Tell that a snapshot exists; a task that is tried again tells it once, with its success."""
    context["outlet_events"][TAKEN].add(snapshots(job), extra={"job": job, "snapshot": name, "bytes": size})
