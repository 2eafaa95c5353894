"""The object store, through the S3 API only, so that another S3 server can stand in for MinIO."""

from __future__ import annotations

import base64
import builtins
import email.utils
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import IO, Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from streamops.model.errors import ConflictError, DeniedError, NotFoundError, StreamOpsError, UnreachableError
from streamops.model.signatures import Keyring
from streamops.settings import BucketSettings
from streamops.store.clock import ServerClock

# The SDK retries a lost conditional write after a lost answer and then sees its own write as a conflict;
# callers that must tell the two apart compare what is stored (see records.py).
_CONFIG = Config(
    retries={"max_attempts": 4, "mode": "standard"},
    connect_timeout=3,
    read_timeout=20,
    max_pool_connections=128,  # several stages at a time are copied; a connection too many is thrown away after its use
    s3={"addressing_style": "path"},
)

# For what can be done later as well, by someone who must not wait: a server that hangs is given up within seconds.
_BRIEF = _CONFIG.merge(Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5))

LARGEST_COPY = 5 << 30  # bytes that S3 copies in one request
PART = 512 << 20  # bytes; copied well within the time that one answer may take
AHEAD = 8 << 20  # bytes of an object that are read at once where it is read as a file


@dataclass(frozen=True)
class Stored:
    """An object's bytes with the tag that a later conditional write names.

    ``age`` is the time since it was written, both by the server's clock, in whole seconds. It is when we looked, not
    what we saw: two looks at one object are equal.
    """

    body: bytes
    etag: str
    age: timedelta = field(default=timedelta(0), compare=False)


@dataclass(frozen=True)
class ObjectInfo:
    """One line of a listing; ``size`` in bytes."""

    key: str
    size: int
    etag: str
    modified: datetime


@dataclass(frozen=True)
class Version:
    """One version of an object, or a delete marker (``size`` 0) that hides those before it."""

    key: str
    version_id: str
    size: int
    modified: datetime
    latest: bool
    marker: bool


@dataclass(frozen=True)
class Copied:
    """What a server-side copy reported; ``sha256`` is the full-object hash in hex."""

    key: str
    sha256: str
    version_id: str | None


@dataclass(frozen=True)
class Head:
    """What the server knows of an object without sending it; ``sha256`` in hex, None if it was stored without."""

    size: int
    etag: str
    sha256: str | None
    version_id: str | None


class _Remote(io.RawIOBase):
    """An object's bytes, fetched piece by piece, so that no connection is kept between two reads."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch, self._size, self._at = fetch, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        body = self._fetch(self._at, end)
        buffer[: len(body)] = body
        self._at += len(body)
        return len(body)


class ObjectStore:
    """One bucket; ``keyring`` holds the keys of its snapshots' signatures, if this host has them.

    Args:
        brief: give up within seconds where others try for a minute.

    Raises (every method): UnreachableError when the server does not answer or answers 5xx after retries; DeniedError
    when the identity of the settings may not do it.
    """

    def __init__(self, settings: BucketSettings, *, brief: bool = False) -> None:
        self.bucket = settings.s3_bucket
        self.endpoint = settings.s3_endpoint
        self.identity = settings.s3_access_key
        self.keyring = Keyring.parse(settings.snapshot_keys.get_secret_value())
        self._s3: Any = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            aws_access_key_id=settings.s3_access_key,
            aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
            region_name="us-east-1",
            config=_BRIEF if brief else _CONFIG,
        )
        self.clock = ServerClock(self._s3)

    def get(self, key: str, version_id: str | None = None) -> Stored:
        """Read one object. Raises NotFoundError."""
        extra = {"VersionId": version_id} if version_id else {}
        with self._asking(key):
            answer = self._s3.get_object(Bucket=self.bucket, Key=key, **extra)
            said = email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
            return Stored(answer["Body"].read(), answer["ETag"], said - answer["LastModified"])

    def chunks(self, key: str, version_id: str | None = None, size: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of one object, piece by piece. Raises NotFoundError."""
        extra = {"VersionId": version_id} if version_id else {}
        with self._asking(key):
            answer = self._s3.get_object(Bucket=self.bucket, Key=key, **extra)
            yield from answer["Body"].iter_chunks(size)

    def put_file(self, key: str, body: IO[bytes], sha256: str) -> str | None:
        """Write one object from a file, refused by the server if its SHA-256 (hex) is another.

        Returns:
            The version id of what was written.
        """
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        with self._asking(key):
            answer = self._s3.put_object(Bucket=self.bucket, Key=key, Body=body, ChecksumSHA256=checksum)
        version: str | None = answer.get("VersionId")
        return version

    def upload(self, key: str, body: IO[bytes], progress: Callable[[int], None] = lambda done: None) -> None:
        """Write one object of any size from a file, in parts where it is large.

        Args:
            progress: is told how many bytes were sent so far.
        """
        sent = 0

        def count(more: int) -> None:
            nonlocal sent
            sent += more
            progress(sent)

        with self._asking(key):
            self._s3.upload_fileobj(body, self.bucket, key, Callback=count)

    def opened(self, key: str) -> IO[bytes]:
        """One object as a file, which need not be read in order. Raises NotFoundError; so do reads."""
        head = self.head(key)
        remote = _Remote(lambda start, end: self._range(key, head.version_id, start, end), head.size)
        return io.BufferedReader(remote, AHEAD)

    def _range(self, key: str, version_id: str | None, start: int, end: int) -> bytes:
        extra = {"VersionId": version_id} if version_id else {}
        with self._asking(key):
            asked = f"bytes={start}-{end - 1}"
            return bytes(self._s3.get_object(Bucket=self.bucket, Key=key, Range=asked, **extra)["Body"].read())

    def place(self, key: str, body: bytes, sha256: str) -> None:
        """Make sure that these bytes lie under a key that is theirs alone; ``sha256`` is their hash, in hex."""
        try:
            if self.head(key).sha256 == sha256:
                return
        except NotFoundError:
            pass
        self.put_file(key, io.BytesIO(body), sha256)

    def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write one object and return its etag.

        Args:
            if_match: write only over the object with this etag.
            if_absent: write only if there is no such object.

        Raises:
            ConflictError: the condition did not hold.
        """
        condition = {"IfMatch": if_match} if if_match else {"IfNoneMatch": "*"} if if_absent else {}
        with self._asking(key):
            return str(self._s3.put_object(Bucket=self.bucket, Key=key, Body=body, **condition)["ETag"])

    def copy(self, source: str, target: str, size: int, source_version: str | None = None) -> Copied:
        """Copy ``size`` bytes inside the bucket; the server computes the hash on the way. Raises NotFoundError."""
        origin = {"Bucket": self.bucket, "Key": source} | ({"VersionId": source_version} if source_version else {})
        if size > LARGEST_COPY:
            return self._copy_in_parts(origin, target)
        with self._asking(source):
            answer = self._s3.copy_object(Bucket=self.bucket, Key=target, CopySource=origin, ChecksumAlgorithm="SHA256")
        # AWS puts the hash into the body, MinIO into a header.
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        checksum = answer["CopyObjectResult"].get("ChecksumSHA256") or headers.get("x-amz-checksum-sha256")
        if not checksum:  # an error inside a 200 answer, or a server that does not hash
            raise StreamOpsError(f"The object store copied {source} without a checksum; use a server that returns one.")
        return Copied(target, base64.b64decode(checksum).hex(), answer.get("VersionId"))

    def _copy_in_parts(self, origin: dict[str, str], target: str) -> Copied:
        """As S3 wants it above ``LARGEST_COPY``. It then knows no hash of the whole, so the copy is read once."""
        parts = TransferConfig(multipart_threshold=LARGEST_COPY, multipart_chunksize=PART)
        with self._asking(origin["Key"]):
            self._s3.copy(origin, self.bucket, target, Config=parts)
        version = self.head(target).version_id
        return Copied(target, self.hashed(target, version), version)

    def hashed(self, key: str, version_id: str | None = None) -> str:
        """SHA-256 of an object's bytes, in hex, as they are read. Raises NotFoundError."""
        digest = hashlib.sha256()
        for chunk in self.chunks(key, version_id):
            digest.update(chunk)
        return digest.hexdigest()

    def head(self, key: str, version_id: str | None = None) -> Head:
        """Size, hash and version of one object. Raises NotFoundError."""
        extra = {"VersionId": version_id} if version_id else {}
        with self._asking(key):
            answer = self._s3.head_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED", **extra)
        checksum = answer.get("ChecksumSHA256")
        whole = answer.get("ChecksumType") != "COMPOSITE" and "-" not in (checksum or "")
        sha256 = base64.b64decode(checksum).hex() if checksum and whole else None
        return Head(answer["ContentLength"], answer["ETag"], sha256, answer.get("VersionId"))

    def exists(self, key: str) -> bool:
        """Whether there is such an object now."""
        try:
            self.head(key)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below ``prefix``, in key order."""
        with self._asking(prefix):
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                for entry in page.get("Contents", ()):
                    yield ObjectInfo(entry["Key"], entry["Size"], entry["ETag"], entry["LastModified"])

    def prefixes(self, prefix: str) -> builtins.list[str]:
        """The names directly below ``prefix``, each with its closing slash."""
        with self._asking(prefix):
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
            return [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is not an error."""
        with self._asking("objects"):
            for key in keys:
                self._s3.delete_object(Bucket=self.bucket, Key=key)

    def versions(self, prefix: str) -> Iterator[Version]:
        """Every version and delete marker below ``prefix``, in key order."""
        with self._asking(prefix):
            for page in self._s3.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=prefix):
                found = [(entry, False) for entry in page.get("Versions", ())]
                found += [(entry, True) for entry in page.get("DeleteMarkers", ())]
                for entry, marker in sorted(found, key=lambda pair: pair[0]["Key"]):
                    size = 0 if marker else entry["Size"]
                    yield Version(
                        entry["Key"], entry["VersionId"], size, entry["LastModified"], entry["IsLatest"], marker
                    )

    def delete_versions(self, versions: Iterable[Version]) -> None:
        """Remove versions for good; nothing brings them back. One that is not there is not an error."""
        names = [{"Key": version.key, "VersionId": version.version_id} for version in versions]
        with self._asking("old versions"):
            for start in range(0, len(names), 1000):
                batch = {"Objects": names[start : start + 1000], "Quiet": True}
                answer = self._s3.delete_objects(Bucket=self.bucket, Delete=batch)
                if refused := answer.get("Errors"):
                    if refused[0].get("Code") == "AccessDenied":
                        raise self._denied(refused[0]["Key"], "AccessDenied")
                    raise StreamOpsError(
                        f"The object store did not remove {refused[0]['Key']} and {len(refused) - 1} more "
                        f"({refused[0].get('Code')}); check the credentials and run it again."
                    )

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        """Let the SDK's errors be ours; ``key`` is what they are about."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise self._translated(error, key) from error

    def _translated(self, error: Exception, key: str) -> StreamOpsError:
        if isinstance(error, ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status == 404 or code in ("NoSuchKey", "NoSuchVersion", "404"):
                return NotFoundError(f"{key} is not in bucket {self.bucket}.")
            if status in (409, 412):
                return ConflictError(f"{key} was changed by someone else meanwhile; read it again and retry.")
            if code in ("AccessDenied", "403"):  # the answer to a HEAD has no body, so no better name
                return self._denied(key, code)
            if 400 <= status < 500:
                return StreamOpsError(f"The object store refused {key} with {code or status}; check the credentials.")
        return UnreachableError(
            f"The object store at {self.endpoint} did not serve {key} ({type(error).__name__}); "
            "check that it runs ('make status') and retry."
        )

    def _denied(self, key: str, code: str) -> DeniedError:
        return DeniedError(
            f"The object store does not let {self.identity} do this with {key} ({code}); check the credentials. "
            "Snapshots and jobs are removed with the retention identity only."
        )
