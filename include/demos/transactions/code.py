"""The job's code in a bucket of its own, with an identity that may do nothing else, as a team would keep it."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic import SecretStr

from stack.layout import Layout
from stack.private import write_private
from streamops.clients.provision import Identity, ensure_bucket, ensure_identities, remove_bucket, remove_identity
from streamops.settings import BUCKET_SECRET, REPOSITORY, BucketSettings, read_pairs
from streamops.store.object_store import ObjectStore

BUCKET, DIRECTORY, SECRET = "transactions-code", "jobs", "transactions"
CODE = REPOSITORY / "spark_jobs" / "transactions"
ENDPOINT, ACCESS_KEY, SECRET_KEY = (f"{SECRET.upper()}_{name}" for name in BUCKET_SECRET)


def upload(layout: Layout) -> list[str]:
    """Make the bucket and who may read it, put the code there, and the secret into the stack's private file."""
    pairs, root = _root(layout)
    secret = {
        ENDPOINT: root.s3_endpoint,
        ACCESS_KEY: pairs.get(ACCESS_KEY) or f"{SECRET}-{secrets.token_hex(4)}",
        SECRET_KEY: pairs.get(SECRET_KEY) or secrets.token_hex(20),
    }
    ensure_bucket(root, every_version=True)
    ensure_identities(root, {BUCKET: Identity(secret[ACCESS_KEY], SecretStr(secret[SECRET_KEY]), _reader())})
    store, files = ObjectStore(root), sorted(path for path in CODE.iterdir() if path.suffix in (".py", ".yaml"))
    for path in files:
        store.put(f"{DIRECTORY}/{path.name}", path.read_bytes())
    _write(layout, secret)
    uploaded = [f"uploaded {path.relative_to(REPOSITORY)} to s3://{BUCKET}/{DIRECTORY}" for path in files]
    return [*uploaded, f"secret {SECRET} ({', '.join(secret)}) is in {layout.env_file}"]


def remove(layout: Layout) -> list[str]:
    """Remove all that again."""
    pairs, root = _root(layout)
    remove_bucket(root)
    if ACCESS_KEY in pairs:
        remove_identity(root, BUCKET, pairs[ACCESS_KEY])
    _write(layout, {})
    return [f"removed s3://{BUCKET}", f"removed secret {SECRET} from {layout.env_file}"]


def _root(layout: Layout) -> tuple[dict[str, str], BucketSettings]:
    pairs = read_pairs(layout.env_file)
    return pairs, BucketSettings(
        s3_endpoint=pairs["S3_ENDPOINT"],
        s3_access_key=pairs["MINIO_ROOT_USER"],
        s3_secret_key=SecretStr(pairs["MINIO_ROOT_PASSWORD"]),
        s3_bucket=BUCKET,
    )


def _reader() -> dict[str, Any]:
    bucket = f"arn:aws:s3:::{BUCKET}"
    may = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": [bucket, f"{bucket}/*"]}
    return {"Version": "2012-10-17", "Statement": [may]}


def _write(layout: Layout, secret: dict[str, str]) -> None:
    """The private file with these lines of the secret, and no others of it."""
    lines = layout.env_file.read_text().splitlines()
    kept = [line for line in lines if line.split("=", 1)[0] not in (ENDPOINT, ACCESS_KEY, SECRET_KEY)]
    write_private(layout.env_file, "\n".join([*kept, *(f"{key}={value}" for key, value in secret.items())]) + "\n")
