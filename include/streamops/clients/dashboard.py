"""What a dashboard asks InfluxDB for: the newest points, and series to draw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

import httpx

from streamops.model.errors import UnreachableError
from streamops.settings import Settings


class Dashboard:
    """Queries of the installation's bucket, over plain HTTP: small answers, many times a second.

    Raises (every method): UnreachableError when InfluxDB does not answer or refuses.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self.url = settings.influx_url.rstrip("/")
        self._bucket = json.dumps(settings.influx_bucket)
        self._org = settings.influx_org
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            trust_env=False,
            headers={
                "Authorization": f"Token {settings.influx_token.get_secret_value()}",
                "Accept": "application/csv",
                "Content-Type": "application/vnd.flux",
            },
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def newest(
        self, measurements: Sequence[str], symbol: str | None = None, since_ms: int | None = None
    ) -> dict[str, int]:
        """Time of the newest point of each measurement in epoch ms; those without a recent point are left out.

        Args:
            symbol: look at this series only, where the measurement has the tag; one series stands for all
                because a stage writes all of a window's points in one batch.
            since_ms: look no further back than this, 5 minutes unless given. A short range costs InfluxDB a tenth.
        """
        one_of = " or ".join(f"r._measurement == {json.dumps(name)}" for name in measurements)
        only = f" and (not exists r.symbol or r.symbol == {json.dumps(symbol)})" if symbol else ""
        rows = self._query(
            f"from(bucket: {self._bucket}) |> range(start: {_flux(since_ms) if since_ms else '-5m'}, stop: 1m)",
            f" |> filter(fn: (r) => ({one_of}){only})",
            ' |> last() |> keep(columns: ["_time", "_measurement"])',
        )
        found: dict[str, int] = {}
        for row in rows:
            found[row["_measurement"]] = max(found.get(row["_measurement"], 0), _ms(row["_time"]))
        return found

    def series(
        self, measurement: str, start_ms: int, end_ms: int, symbol: str | None = None
    ) -> list[tuple[int, float]]:
        """Points of one series with ``start_ms <= time < end_ms``, in order of time."""
        chosen = f" and r.symbol == {json.dumps(symbol)}" if symbol else ""
        rows = self._query(
            f"from(bucket: {self._bucket}) |> range(start: {_flux(start_ms)}, stop: {_flux(end_ms)})"
            f" |> filter(fn: (r) => r._measurement == {json.dumps(measurement)}{chosen})",
            ' |> keep(columns: ["_time", "_value"])',
        )
        return sorted((_ms(row["_time"]), float(row["_value"])) for row in rows)

    def _query(self, *parts: str) -> list[dict[str, str]]:
        try:
            answer = self._http.post("/api/v2/query", params={"org": self._org}, content="".join(parts))
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"InfluxDB at {self.url} did not answer ({type(error).__name__}); check 'make status' and retry."
            ) from error
        if answer.is_error:
            raise UnreachableError(f"InfluxDB at {self.url} answered {answer.status_code}: {answer.text[:200]}")
        found: list[dict[str, str]] = []
        for table in answer.text.replace("\r", "").split("\n\n"):
            header, *lines = [line.split(",") for line in table.splitlines() if line and line[0] != "#"] or [[]]
            found.extend(dict(zip(header, line, strict=True)) for line in lines)
        return found


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _flux(time_ms: int) -> str:
    return f"time(v: {time_ms * 1_000_000})"
