"""How much room the object store has. Not part of S3: MinIO tells it, another server may not."""

from __future__ import annotations

import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from streamops.settings import Settings


def free_bytes(settings: Settings) -> int | None:
    """Bytes free where the object store keeps its data; None when it does not tell."""
    url = f"{settings.s3_endpoint.rstrip('/')}/minio/admin/v3/storageinfo"
    request = AWSRequest("GET", url)
    credentials = Credentials(settings.s3_access_key, settings.s3_secret_key.get_secret_value())
    S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    try:
        answer = httpx.get(url, headers=dict(request.headers), timeout=10)
        answer.raise_for_status()
        disks = answer.json()["Disks"]
        return sum(int(disk["availspace"]) for disk in disks) or None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
