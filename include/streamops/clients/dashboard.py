"""What a dashboard asks InfluxDB for: the newest points, and series to draw."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from streamops.clients.influx import Points


class Dashboard(Points):
    """The installation's bucket as a dashboard reads it: small answers, many times a second."""

    def newest(
        self, measurements: Sequence[str], symbol: str | None = None, since_ms: int | None = None
    ) -> dict[str, int]:
        """Time of the newest point of each measurement in epoch ms; those without a recent point are left out.

        Args:
            symbol: look at this series only, where the measurement has the tag; one series stands for all
                because a stage writes all of a window's points in one batch.
            since_ms: look no further back than this, 5 minutes unless given. A short range costs InfluxDB a tenth.
        """
        names = {f"measurement{number}": name for number, name in enumerate(measurements)}
        one_of = " or ".join(f"r._measurement == {name}" for name in names)  # unlike contains(), left to the storage
        only = " and (not exists r.symbol or r.symbol == symbol)" if symbol else ""
        rows = self.records(
            f"from(bucket: bucket) |> range(start: {'start' if since_ms else '-5m'}, stop: 1m)"
            f" |> filter(fn: (r) => ({one_of}){only})"
            ' |> last() |> keep(columns: ["_time", "_measurement"])',
            names | _where(symbol),
            since_ms or None,
        )
        found: dict[str, int] = {}
        for row in rows:
            found[row["_measurement"]] = max(found.get(row["_measurement"], 0), _ms(row["_time"]))
        return found

    def series(
        self, measurement: str, start_ms: int, end_ms: int, symbol: str | None = None
    ) -> list[tuple[int, float]]:
        """Points of one series with ``start_ms <= time < end_ms``, in order of time."""
        only = " and r.symbol == symbol" if symbol else ""
        rows = self.records(
            "from(bucket: bucket) |> range(start: start, stop: stop)"
            f" |> filter(fn: (r) => r._measurement == measurement{only})"
            ' |> keep(columns: ["_time", "_value"])',
            {"measurement": measurement} | _where(symbol),
            start_ms,
            end_ms,
        )
        return sorted((_ms(row["_time"]), float(row["_value"])) for row in rows)


def _where(symbol: str | None) -> dict[str, str]:
    return {"symbol": symbol} if symbol else {}


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
