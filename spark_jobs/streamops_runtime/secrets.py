"""Secrets are named in a definition and read from the node's private file; they appear nowhere else."""

from __future__ import annotations

from pydantic import SecretStr

from streamops.model.definitions import INSTALLATION
from streamops.model.errors import DefinitionError, NotFoundError
from streamops.settings import Settings, named_secret


def influx_settings(settings: Settings, secret: str) -> Settings:
    """The installation's settings with the InfluxDB that a secret names.

    Secret ``influx`` is the installation's own; another one, ``NAME``, stands in the node's private file as
    ``NAME_URL``, ``NAME_ORG``, ``NAME_TOKEN`` and ``NAME_BUCKET``.

    Raises:
        DefinitionError: the file has no such secret.
    """
    if secret == INSTALLATION:
        return settings
    try:
        url, org, token, bucket = named_secret(secret, ("URL", "ORG", "TOKEN", "BUCKET"))
    except NotFoundError as error:
        raise DefinitionError(str(error)) from error
    return settings.model_copy(
        update={"influx_url": url, "influx_org": org, "influx_token": SecretStr(token), "influx_bucket": bucket}
    )
