"""Set-up of servers: the object store's bucket and identities, and InfluxDB's organisation and token."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.domain.authorization import Authorization
from influxdb_client.domain.permission import Permission
from influxdb_client.domain.permission_resource import PermissionResource
from influxdb_client.rest import ApiException
from pydantic import SecretStr
from urllib3.exceptions import HTTPError

from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.settings import BucketSettings, Settings
from streamops.store import keys
from streamops.store.object_store import ObjectStore


@dataclass(frozen=True)
class Identity:
    """A user of the object store, to be; ``policy`` is a document in S3's terms."""

    access_key: str
    secret_key: SecretStr
    policy: Mapping[str, Any]


def ensure_bucket(settings: BucketSettings, *, every_version: bool = False) -> bool:
    """Create the bucket with versioning on; True if it was created now.

    What comes and goes all the time (``keys.UNVERSIONED``) has no versions at a MinIO; at another server, and in a
    bucket that has versions of it, those of checkpoints expire after a day, because Spark deletes batches all the time,
    and a delete alone frees nothing there.

    Args:
        every_version: of whatever object, for ever: for a bucket in which nothing is deleted.

    Raises:
        UnreachableError: the object store does not answer (yet).
    """
    client = _client(settings)
    try:
        created = settings.s3_bucket not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        if created:
            client.create_bucket(Bucket=settings.s3_bucket)
        fresh = client.get_bucket_versioning(Bucket=settings.s3_bucket).get("Status") is None
        if fresh and (every_version or not _version_all_but(settings, keys.UNVERSIONED)):
            client.put_bucket_versioning(Bucket=settings.s3_bucket, VersioningConfiguration={"Status": "Enabled"})
        if every_version:
            return created
        client.put_bucket_lifecycle_configuration(
            Bucket=settings.s3_bucket,
            LifecycleConfiguration={
                "Rules": [
                    {
                        "ID": f"old-versions-of-{prefix.rstrip('/')}",
                        "Status": "Enabled",
                        "Filter": {"Prefix": prefix},
                        "NoncurrentVersionExpiration": {"NoncurrentDays": days},
                        "Expiration": {"ExpiredObjectDeleteMarker": True},
                    }
                    for prefix, days in keys.OLD_VERSIONS_DAYS.items()
                ]
            },
        )
    except (ClientError, BotoCoreError) as error:
        status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 503)
        if status < 500:
            raise StreamOpsError(
                f"The object store at {settings.s3_endpoint} refused bucket {settings.s3_bucket} ({error}); "
                "check the credentials."
            ) from error
        raise UnreachableError(
            f"The object store at {settings.s3_endpoint} did not answer ({type(error).__name__}); see its log."
        ) from error
    return created


def remove_bucket(settings: BucketSettings) -> None:
    """Remove a bucket with everything in it; one that is not there is as it should be.

    Raises:
        UnreachableError: the object store does not answer.
        DeniedError: the identity may not do that.
    """
    client, store = _client(settings), ObjectStore(settings)
    if settings.s3_bucket in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        store.delete_versions(store.versions(""))
        client.delete_bucket(Bucket=settings.s3_bucket)


def _client(settings: BucketSettings) -> Any:
    """S3 as an administrator needs it: buckets too, and an answer soon."""
    return boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}, connect_timeout=2, read_timeout=10, s3={"addressing_style": "path"}),
    )


def _version_all_but(settings: BucketSettings, prefixes: Iterable[str]) -> bool:
    """Keep the versions of all objects but these; False at a server that cannot tell them apart.

    Not part of S3: MinIO's own element of the versioning configuration. It keeps all versions of an object in one file,
    which it writes again with each version, and reads that file of each removed object to list what is left: after two
    hours of a job one more status takes ten times as long, and a look at its checkpoint fifty times.

    Only for a bucket without versions: where an object has some, its deletion would bring the one before into sight.

    Args:
        prefixes: ``*`` stands for anything, slashes included.

    Raises:
        UnreachableError: the object store does not answer (yet).
    """
    left_out = "".join(f"<ExcludedPrefixes><Prefix>{prefix}</Prefix></ExcludedPrefixes>" for prefix in prefixes)
    body = (
        '<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status>'
        f"{left_out}</VersioningConfiguration>"
    )
    return _send("PUT", settings, f"/{settings.s3_bucket}?versioning=", body.encode()).is_success


def _send(method: str, settings: BucketSettings, path: str, body: bytes = b"") -> httpx.Response:
    """A signed request that boto3 does not know. Raises UnreachableError: no answer, or one of 500 and more."""
    url = f"{settings.s3_endpoint.rstrip('/')}{path}"
    request = AWSRequest(method, url, data=body)
    credentials = Credentials(settings.s3_access_key, settings.s3_secret_key.get_secret_value())
    S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    try:
        answer = httpx.request(method, url, content=body, headers=dict(request.headers), timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        raise UnreachableError(
            f"The object store at {settings.s3_endpoint} did not answer ({type(error).__name__}); see its log."
        ) from error
    if answer.status_code >= 500:
        raise UnreachableError(
            f"The object store at {settings.s3_endpoint} answered {answer.status_code}; see its log."
        )
    return answer


def ensure_identities(settings: BucketSettings, identities: Mapping[str, Identity]) -> None:
    """Create these users with their policies at a MinIO, or bring them up to date; others are left alone.

    Not part of S3: it is one request of MinIO's admin API, the one behind ``mc admin cluster iam import``. Its body
    carries the secret keys, so it must not leave the machine unencrypted.

    Args:
        settings: with the root credential of the server.
        identities: by the name of the policy.

    Raises:
        UnreachableError: the object store does not answer (yet).
        StreamOpsError: it refused.
    """
    users = {
        item.access_key: {"secretKey": item.secret_key.get_secret_value(), "status": "enabled"}
        for item in identities.values()
    }
    assets = {
        "policies": {name: item.policy for name, item in identities.items()},
        "users": users,
        "user_mappings": {item.access_key: {"version": 1, "policy": name} for name, item in identities.items()},
    }
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in assets.items():
            archive.writestr(f"iam-assets/{name}.json", json.dumps(content))
    answer = _send("PUT", settings, "/minio/admin/v3/import-iam-v2", body.getvalue())
    try:
        failed = answer.json().get("failed") if answer.is_success else None
    except ValueError as error:
        raise UnreachableError(
            f"The object store at {settings.s3_endpoint} did not answer ({type(error).__name__}); see its log."
        ) from error
    if not answer.is_success or any((failed or {}).values()):
        what = answer.text if not answer.is_success else json.dumps(failed)
        raise StreamOpsError(
            f"The object store at {settings.s3_endpoint} refused its identities ({what[:300]}); check its credentials."
        )


def remove_identity(settings: BucketSettings, name: str, access_key: str) -> None:
    """Remove a user of a MinIO with its policy; one that is not there is as it should be.

    Raises:
        UnreachableError: the object store does not answer.
        StreamOpsError: it refused.
    """
    answers = (
        _send("DELETE", settings, f"/minio/admin/v3/remove-user?accessKey={access_key}"),
        _send("DELETE", settings, f"/minio/admin/v3/remove-canned-policy?name={name}"),
    )
    for answer in answers:
        if not answer.is_success and answer.status_code != httpx.codes.NOT_FOUND:
            raise StreamOpsError(
                f"The object store at {settings.s3_endpoint} keeps identity {name} ({answer.text[:300]}); check its "
                "credentials."
            )


_WRITER = "streamops: what drivers write with"  # by which InfluxDB's list of tokens names it


def ensure_influx_writer(settings: Settings, known: str = "") -> str:
    """The token that may write to the bucket and do nothing else; InfluxDB chooses it, and tells it once.

    Args:
        settings: with a token that may do everything.
        known: what this returned before; it is kept while InfluxDB knows it.

    Raises:
        UnreachableError: InfluxDB does not answer (yet), or not as expected.
    """

    def client(token: str) -> InfluxDBClient:
        return InfluxDBClient(settings.influx_url, token, timeout=10_000, org=settings.influx_org)

    try:
        if known and _is_known(client(known)):
            return known
        with client(settings.influx_token.get_secret_value()) as everything:
            tokens, buckets = everything.authorizations_api(), everything.buckets_api()
            bucket = buckets.find_bucket_by_name(settings.influx_bucket)
            if bucket is None:
                raise UnreachableError(f"InfluxDB at {settings.influx_url} has no bucket {settings.influx_bucket} yet.")
            place = PermissionResource(type="buckets", id=bucket.id, org_id=bucket.org_id)  # type: ignore[no-untyped-call]
            lost = [token for token in tokens.find_authorizations() if token.description == _WRITER]
            permissions = [Permission(action="write", resource=place)]  # type: ignore[no-untyped-call]
            made = tokens.create_authorization(
                authorization=Authorization(org_id=bucket.org_id, description=_WRITER, permissions=permissions)  # type: ignore[no-untyped-call]
            )
            for token in lost:
                tokens.delete_authorization(token)
            return str(made.token)
    except (ApiException, HTTPError) as error:
        raise UnreachableError(
            f"InfluxDB at {settings.influx_url} did not answer ({type(error).__name__}); see its log."
        ) from error


def _is_known(client: InfluxDBClient) -> bool:
    """Whether InfluxDB knows the client's token."""
    with client:
        try:
            client.buckets_api().find_buckets(limit=1)  # type: ignore[no-untyped-call]
        except ApiException as error:
            if error.status == httpx.codes.UNAUTHORIZED:
                return False
            raise
    return True


def ensure_influx(settings: Settings, user: str, password: str) -> bool:
    """Give an empty InfluxDB its user, organisation, bucket and token; True if that happened now.

    Raises:
        UnreachableError: InfluxDB does not answer (yet).
    """
    try:
        with httpx.Client(base_url=settings.influx_url, timeout=10, trust_env=False) as client:
            if not client.get("/api/v2/setup").raise_for_status().json()["allowed"]:
                return False
            client.post(
                "/api/v2/setup",
                json={
                    "username": user,
                    "password": password,
                    "org": settings.influx_org,
                    "bucket": settings.influx_bucket,
                    "token": settings.influx_token.get_secret_value(),
                    "retentionPeriodSeconds": 0,
                },
            ).raise_for_status()
    except (httpx.HTTPError, ValueError) as error:
        raise UnreachableError(
            f"InfluxDB at {settings.influx_url} did not answer ({type(error).__name__}); see its log."
        ) from error
    return True
