"""When two values of a point are the same."""

from __future__ import annotations

import math
from typing import Any

Value = Any  # a number; of aggregates that keep values, also a text or a truth value


def equal(due: Value, value: Value) -> bool:
    """Whether a value that InfluxDB gave is the one that is due; floats to nine digits."""
    if isinstance(due, str):
        return bool(as_answered(due) == value)
    numbers = isinstance(due, float) and isinstance(value, int | float)
    return bool(due == value) or (numbers and math.isclose(due, value, rel_tol=1e-9))


def as_answered(text: str) -> str:
    """A text as InfluxDB gives it back: its answers are CSV, whose writer keeps no carriage return.

    https://pkg.go.dev/encoding/csv#Writer (``UseCRLF``)
    """
    return text.replace("\r", "")
