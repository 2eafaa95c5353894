"""Requests of tests, with the patience that a machine of two cores needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamops.operations import runbooks


def fitting(runbook: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the runbook has a field for; it refuses the others."""
    known = runbooks.find(runbook).request.model_fields
    return {name: value for name, value in values.items() if name in known}
