"""Secrets are named in a definition and read from the node's private file; they appear nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from streamops.model.definitions import INSTALLATION
from streamops.model.errors import DefinitionError
from streamops.settings import ENV_FILE, Settings

_FIELDS = ("url", "org", "token", "bucket")


def influx_settings(settings: Settings, secret: str) -> Settings:
    """The installation's settings with the InfluxDB that a secret names.

    Secret ``influx`` is the installation's own; another one, ``NAME``, stands in the node's private file as
    ``NAME_URL``, ``NAME_ORG``, ``NAME_TOKEN`` and ``NAME_BUCKET``.

    Raises:
        DefinitionError: the file has no such secret.
    """
    if secret == INSTALLATION:
        return settings
    prefix = secret.upper().replace("-", "_")
    path = Path(os.environ.get(ENV_FILE, ""))
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = dict(line.split("=", 1) for line in lines if "=" in line)
    missing = [f"{prefix}_{name.upper()}" for name in _FIELDS if f"{prefix}_{name.upper()}" not in pairs]
    if missing:
        raise DefinitionError(f"Secret {secret} is not on this node: its private file lacks {', '.join(missing)}.")
    update: dict[str, object] = {f"influx_{name}": pairs[f"{prefix}_{name.upper()}"] for name in _FIELDS}
    update["influx_token"] = SecretStr(str(update["influx_token"]))
    return settings.model_copy(update=update)
