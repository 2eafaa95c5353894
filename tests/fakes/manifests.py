"""Manifests of snapshots that no one took."""

from __future__ import annotations

from typing import Any

from streamops.model.manifest import Manifest
from streamops.model.records import now


def manifest(job: str, name: str = "s", **fields: Any) -> Manifest:
    """A live snapshot of v1 in its first deployment, without objects, but for what is given."""
    usual: dict[str, Any] = {
        "attempt": name,
        "created": now(),
        "live": True,
        "version": "v1",
        "artifact_sha256": "a",
        "runtime_sha256": "r",
        "deployment": 1,
        "epoch": 1,
        "spark_version": "4.2.0",
        "stages": {},
        "objects": (),
    }
    return Manifest(job=job, name=name, **(usual | fields))
