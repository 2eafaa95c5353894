"""Who may do what in a bucket: the identities, and the policy of each in the terms of S3.

``jobs`` is what drivers and executors use, ``operations`` what Airflow's tasks and the command line use, and
``retention`` what removes snapshots, or a whole job. No policy of MinIO can forbid writing over an object, so what
protects a snapshot is that no one but ``retention`` may remove a version: what was written over is still there, and
a manifest names the version of each object.

``logs`` is what Airflow stores and reads the logs of its tasks with, in a bucket of their own, in which the three above
may do nothing. Nobody but the stack may remove anything there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from streamops.store import keys

Name = Literal["jobs", "operations", "retention", "logs"]
NAMES: tuple[Name, ...] = ("jobs", "operations", "retention")  # in the bucket of an installation

_READ = ("s3:GetObject", "s3:GetObjectVersion")
_WRITE = ("s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_LIST = ("s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads")


def policy(name: Name, bucket: str) -> dict[str, Any]:
    """The policy document of an identity for one bucket."""
    return {"Version": "2012-10-17", "Statement": _STATEMENTS[name](bucket)}


def _jobs(bucket: str) -> list[dict[str, Any]]:
    seen = (*keys.EVERY_ARTIFACT, *keys.EVERY_CHECKPOINT, *keys.EVERY_CHECKPOINT_ANCESTOR, *keys.EVERY_JOB)
    read = (*seen, keys.CLUSTER_RECORD)  # a node that starts asks whether it is a member
    listing = _listing(bucket, ("s3:ListBucket",)) | {"Condition": {"StringLike": {"s3:prefix": list(seen)}}}
    return [
        listing,
        _objects("Allow", _READ, bucket, read),
        _objects("Allow", _WRITE, bucket, (*keys.EVERY_CHECKPOINT, *keys.EVERY_DRIVER_NOTE)),
        _objects("Allow", ("s3:DeleteObject",), bucket, (*keys.EVERY_CHECKPOINT, *keys.EVERY_DRIVER_SCRAP)),
        _no_version(bucket),
    ]


def _operations(bucket: str) -> list[dict[str, Any]]:
    return [
        _listing(bucket),
        _objects("Allow", (*_READ, *_WRITE), bucket, keys.EVERYTHING),
        _no_version(bucket),
        {"Effect": "Allow", "Action": ["admin:StorageInfo"]},  # how much room there is for a snapshot
    ]


def _retention(bucket: str) -> list[dict[str, Any]]:
    versions = ("s3:DeleteObject", "s3:DeleteObjectVersion")
    return [
        _listing(bucket),
        _objects("Allow", _READ, bucket, keys.EVERYTHING),
        _objects("Allow", _WRITE, bucket, (*keys.EVERY_LOCK, *keys.EVERY_SNAPSHOT_ENTRY)),
        _objects("Allow", versions, bucket, keys.EVERY_REMOVABLE),
    ]


def _logs(bucket: str) -> list[dict[str, Any]]:
    return [
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [f"arn:aws:s3:::{bucket}"]},
        _objects("Allow", ("s3:GetObject", "s3:PutObject"), bucket, keys.EVERYTHING),
    ]


_STATEMENTS = {"jobs": _jobs, "operations": _operations, "retention": _retention, "logs": _logs}


def _listing(bucket: str, actions: Iterable[str] = _LIST) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:aws:s3:::{bucket}"]}


def _no_version(bucket: str) -> dict[str, Any]:
    # Said, not left out: MinIO lets those who may delete an object delete its versions too, unless this is denied.
    return _objects("Deny", ("s3:DeleteObjectVersion",), bucket, keys.EVERYTHING)


def _objects(effect: str, actions: Iterable[str], bucket: str, patterns: Iterable[str]) -> dict[str, Any]:
    resources = [f"arn:aws:s3:::{bucket}/{pattern}" for pattern in patterns]
    return {"Effect": effect, "Action": list(actions), "Resource": resources}
