"""The recount of the fleets: every ping of their ledgers must be a point, with its own position, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from demos.fleet.vehicles import read_ledger
from streamops.clients.influx import Points

Key = tuple[str, int]  # VIN, time in epoch ms
Position = tuple[float, float]


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


def expected(ledgers: Iterable[Path]) -> dict[Key, Position]:
    """What the ledgers say, by VIN and time."""
    entries = [entry for path in ledgers for entry in read_ledger(path)]
    return {
        (str(entry["vin"]), round(float(str(entry["time"])) * 1000)): (
            float(str(entry["latitude"])),
            float(str(entry["longitude"])),
        )
        for entry in entries
    }


def compare(wanted: Mapping[Key, Position], found: Mapping[Key, Position]) -> Recounted:
    """Pure comparison, with at most ten examples."""
    missing = sorted(key for key in wanted if key not in found)
    wrong = sorted(key for key in wanted if key in found and found[key] != wanted[key])
    unexpected = sorted(key for key in found if key not in wanted)
    told = [f"{what}: {vin} at {at}" for what, keys in _named(missing, wrong, unexpected) for vin, at in keys]
    return Recounted(len(wanted), len(missing), len(wrong), len(unexpected), tuple(told[:10]))


def recount(points: Points, measurement: str, ledgers: Iterable[Path]) -> Recounted:
    """Compare the points of a measurement with the ledgers. Raises UnreachableError."""
    wanted = expected(ledgers)
    times = [at for _, at in wanted]
    if not times:
        return Recounted(0, 0, 0, 0)
    span = (min(times) - 86_400_000, max(times) + 86_400_000)
    fields = {
        name: {(tags[0], at): float(value) for at, tags, value in points.read(measurement, *span, ("vin",), name)}
        for name in ("latitude", "longitude")
    }
    both = fields["latitude"].keys() | fields["longitude"].keys()
    far = float("inf")
    return compare(wanted, {key: (fields["latitude"].get(key, far), fields["longitude"].get(key, far)) for key in both})


def _named(missing: list[Key], wrong: list[Key], unexpected: list[Key]) -> list[tuple[str, list[Key]]]:
    return [("missing", missing), ("wrong", wrong), ("unexpected", unexpected)]
