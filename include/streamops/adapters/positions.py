"""Where vehicles are: the newest points of a measurement that has latitude and longitude, by VIN."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import urllib3
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.rest import ApiException

from streamops.errors import RefusedError, UnreachableError
from streamops.settings import Settings

MEASUREMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
VIN = re.compile(r"[A-Z0-9]{1,32}")


@dataclass(frozen=True)
class Position:
    """One ping as stored; degrees, and everything else that the point carries."""

    vin: str
    time: datetime
    latitude: float
    longitude: float
    more: dict[str, Any]


class Positions:
    """Reads one installation's bucket.

    Raises (every method): RefusedError for a name that cannot be one; UnreachableError when InfluxDB does not answer.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self._settings = settings
        self._client = InfluxDBClient(
            url=settings.influx_url,
            token=settings.influx_token.get_secret_value(),
            org=settings.influx_org,
            timeout=int(timeout_s * 1000),
            retries=urllib3.Retry(0),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def latest(self, measurement: str, minutes: int = 60) -> list[Position]:
        """The newest ping of each vehicle that pinged within the last minutes."""
        return self._query(measurement, minutes, "", "|> last()")

    def track(self, measurement: str, vin: str, count: int = 10, minutes: int = 60) -> list[Position]:
        """The last pings of one vehicle, newest first."""
        if not VIN.fullmatch(vin):
            raise RefusedError(f"{vin!r} is not a VIN; it has capital letters and digits only.")
        only = f" and r.vin == {json.dumps(vin)}"
        return self._query(measurement, minutes, only, f"|> tail(n: {int(count)})")[::-1]

    def _query(self, measurement: str, minutes: int, only: str, newest: str) -> list[Position]:
        if not MEASUREMENT.fullmatch(measurement):
            raise RefusedError(f"{measurement!r} is not a measurement; it has letters, digits and underscores only.")
        query = (
            f"from(bucket: {json.dumps(self._settings.influx_bucket)}) |> range(start: -{int(minutes)}m, stop: 1m)"
            f" |> filter(fn: (r) => r._measurement == {json.dumps(measurement)}{only}) {newest}"
            ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
        )
        try:
            tables = self._client.query_api().query(query, self._settings.influx_org)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"InfluxDB at {self._settings.influx_url} did not answer ({type(error).__name__}); "
                "check that it runs ('make status') and retry."
            ) from error
        found = [position(record.values) for table in tables for record in table.records]
        return sorted((item for item in found if item), key=lambda item: (item.vin, item.time))


def position(row: dict[str, Any]) -> Position | None:
    """One row of an answer; None when it is no position."""
    latitude, longitude, vin = row.get("latitude"), row.get("longitude"), row.get("vin")
    if latitude is None or longitude is None or not vin:
        return None
    known = {"latitude", "longitude", "vin", "result", "table", "_time", "_start", "_stop", "_measurement"}
    more = {name: value for name, value in row.items() if name not in known and value is not None}
    return Position(str(vin), row["_time"], float(latitude), float(longitude), more)
