"""Endpoints and credentials of one installation, read from its private file."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr

from streamops.model.errors import NotFoundError

REPOSITORY = Path(__file__).resolve().parents[2]
ENV_FILE = "STREAMOPS_ENV_FILE"
BUCKET_SECRET = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY")  # what a secret for a bucket consists of


class BucketSettings(BaseModel):
    """One bucket, and who one is there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: SecretStr
    s3_bucket: str
    # ID:HEX,ID:HEX; the first signs snapshots, each is accepted. Drivers and executors have none.
    snapshot_keys: SecretStr = SecretStr("")


class Settings(BucketSettings):
    """One installation; field names are the keys that ``streamops stack env`` prints, in lower case."""

    kafka_bootstrap_servers: str
    # The identity that may delete snapshots; empty where the one above may do everything, or must never do that.
    s3_retention_access_key: str = ""
    s3_retention_secret_key: SecretStr = SecretStr("")
    influx_url: str
    influx_org: str
    influx_token: SecretStr
    influx_bucket: str
    spark_master: str = ""
    spark_ui: str = ""
    airflow_url: str = ""
    airflow_page: str = ""  # where people find it, if that is another address
    airflow_user: str = ""
    airflow_password: SecretStr = SecretStr("")
    airflow_installation: str = ""  # where one Airflow serves several installations: its connection that names this one
    # What a submitter needs on its own host, and the path that every node has:
    spark_home: str = ""
    spark_conf_dir: str = ""  # the submitter's own
    nodes_file: str = ""  # the inventory of nodes
    nodes_private_file: str = ""  # user and passwords of the nodes' supervisors
    node_dir: str = ""  # the same path on every node: bootstrap.py, spark-defaults.conf, node.env, credentials

    def for_retention(self) -> Self:
        """The same installation with the identity that may delete snapshots; unchanged where there is no other."""
        if not self.s3_retention_access_key:
            return self
        secret = self.s3_retention_secret_key
        return self.model_copy(update={"s3_access_key": self.s3_retention_access_key, "s3_secret_key": secret})

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read KEY=VALUE lines from ``path``, the file named by STREAMOPS_ENV_FILE, or this checkout's stack.

        Raises:
            NotFoundError: there is no such file, so no stack was ever started here.
        """
        path = path or private_file()
        if not path.is_file():
            raise NotFoundError(
                f"No stack is set up: {path} does not exist. Run 'make up' first, or name an installation (--context)."
            )
        return cls.model_validate({key.lower(): value for key, value in read_pairs(path).items()})


def private_file() -> Path:
    """The private file of the installation that this process talks to."""
    return Path(os.environ.get(ENV_FILE) or REPOSITORY / ".streamops" / "stack.env")


def named_secret(name: str, parts: Iterable[str]) -> list[str]:
    """The parts of a secret, in this order: each stands in the private file of this process as ``NAME_PART``.

    Raises:
        NotFoundError: the file lacks one of them.
    """
    prefix, path = name.upper().replace("-", "_"), private_file()
    pairs, wanted = read_pairs(path), [f"{prefix}_{part}" for part in parts]
    if missing := [key for key in wanted if not pairs.get(key)]:
        raise NotFoundError(f"There is no secret {name} here: {path} lacks {', '.join(missing)}; add these lines.")
    return [pairs[key] for key in wanted]


def named_bucket(secret: str, bucket: str) -> BucketSettings:
    """A bucket with the credentials of a secret. Raises NotFoundError: there is no such secret."""
    endpoint, access_key, secret_key = named_secret(secret, BUCKET_SECRET)
    return BucketSettings(
        s3_endpoint=endpoint, s3_access_key=access_key, s3_secret_key=SecretStr(secret_key), s3_bucket=bucket
    )


def read_pairs(path: Path) -> dict[str, str]:
    """KEY=VALUE lines of a private file; empty when there is no such file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}
