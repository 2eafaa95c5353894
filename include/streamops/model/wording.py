"""What pydantic finds wrong, in words for people."""

from __future__ import annotations

from collections.abc import Container

from pydantic import ValidationError


def wrong_fields(error: ValidationError, whole: str = "it", unwritten: Container[object] = ()) -> str:
    """Each wrong field with what is wrong about it, as one text without a full stop.

    Args:
        whole: what to name where no single field is wrong.
        unwritten: parts of a place that no one writes, such as the tag of a union.
    """
    told = []
    for item in error.errors(include_url=False):
        place = ".".join(str(part) for part in item["loc"] if part not in unwritten) or whole
        unknown = item["type"] == "extra_forbidden"
        text = f"{whole} has no such field" if unknown else item["msg"].removeprefix("Value error, ").rstrip(".")
        told.append(f"{place}: {text}")
    return "; ".join(told)
