"""The recount of the fleets: every ping of their ledgers must be a point with all its fields, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demos.fleet.vehicles import read_ledger
from streamops.clients.influx import Points

Key = tuple[str, int]  # VIN, time in epoch ms
Fields = dict[str, Any]  # of a point, by name
CODES = "obd_codes"
_DAY_MS = 86_400_000
_NO_TAGS = {"result", "table", "_time", "_field", "_value", "vin"}


@dataclass(frozen=True)
class Recounted:
    """How points compare with the ledgers."""

    pings: int
    missing: int
    wrong: int
    unexpected: int
    examples: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything is as the ledgers say, and there was something to compare."""
        return self.pings > 0 and not (self.missing or self.wrong or self.unexpected)


def expected(ledgers: Mapping[str, Path], plain: Container[Key] | None = None) -> dict[Key, Fields]:
    """What the points of these pings must be, by VIN and time.

    Args:
        ledgers: by fleet.
        plain: the pings of the time before the shared code knew codes; all of them when left out.
    """
    found = {}
    for fleet, path in ledgers.items():
        for entry in read_ledger(path):
            key = str(entry["vin"]), round(entry["time"] * 1000)
            fields = {"fleet": fleet, "latitude": entry["latitude"], "longitude": entry["longitude"]}
            known = plain is not None and key not in plain
            found[key] = fields | ({CODES: " ".join(entry[CODES])} if known else {})
    return found


def compare(wanted: Mapping[Key, Fields], found: Mapping[Key, Fields]) -> Recounted:
    """Pure comparison, with at most ten examples."""
    missing = sorted(key for key in wanted if key not in found)
    wrong = sorted(key for key in wanted if key in found and found[key] != wanted[key])
    unexpected = sorted(key for key in found if key not in wanted)
    told = [f"{what}: {vin} at {at}" for what, keys in _named(missing, wrong, unexpected) for vin, at in keys]
    return Recounted(len(wanted), len(missing), len(wrong), len(unexpected), tuple(told[:10]))


def stored(points: Points, measurement: str, start_ms: int, end_ms: int) -> dict[Key, Fields]:
    """The points with ``start_ms <= time < end_ms``, each with all fields and tags that it has beside VIN and time.

    Raises:
        UnreachableError: InfluxDB does not answer.
    """
    rows = points.records(
        "from(bucket: bucket) |> range(start: start, stop: stop) |> filter(fn: (r) => r._measurement == measurement)"
        ' |> drop(columns: ["_start", "_stop", "_measurement"])',
        {"measurement": measurement},
        start_ms,
        end_ms,
    )
    found: dict[Key, Fields] = {}
    for row in rows:
        fields = found.setdefault((str(row.get("vin")), round(row["_time"].timestamp() * 1000)), {})
        value = row["_value"]
        fields[row["_field"]] = "" if value is None else value  # no other value is an empty place in the answer
        fields |= {tag: row[tag] for tag in row.keys() - _NO_TAGS}
    return found


def recount(
    points: Points, measurement: str, ledgers: Mapping[str, Path], plain: Container[Key] | None = None
) -> Recounted:
    """Compare the points of a measurement with the ledgers, as ``expected``. Raises UnreachableError."""
    wanted = expected(ledgers, plain)
    if not wanted:
        return Recounted(0, 0, 0, 0)
    times = [at for _, at in wanted]
    return compare(wanted, stored(points, measurement, min(times) - _DAY_MS, max(times) + _DAY_MS))


def with_codes(found: Iterable[Fields]) -> Counter[str]:
    """How many of these points have a code, not only the field for it, by fleet."""
    return Counter(str(fields["fleet"]) for fields in found if fields.get(CODES))


def _named(missing: list[Key], wrong: list[Key], unexpected: list[Key]) -> list[tuple[str, list[Key]]]:
    return [("missing", missing), ("wrong", wrong), ("unexpected", unexpected)]
