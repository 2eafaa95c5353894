"""The fields of the runbooks' forms. Airflow checks them against their schema before a run exists (400 otherwise)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from streamops.model import names

if TYPE_CHECKING:
    from streamops.operations.operation import Request


def of(request: type[Request]) -> dict[str, Param]:
    """A form with each field of a request: short ones, deadlines, and then those that take an editor."""
    schema = request.model_json_schema()
    asked = {name: field for name, field in schema["properties"].items() if "const" not in field}

    def place(name: str) -> tuple[bool, bool]:
        return asked[name].get("type") in ("object", "array"), name.endswith("_timeout_s")

    return {name: field(asked[name], required=name in schema.get("required", ())) for name in sorted(asked, key=place)}


def field(schema: Mapping[str, Any], *, required: bool) -> Param:
    """One field. What may be left out may be empty, and forms say so by null; nothing required has a default."""
    flat = {**schema, **_either(schema.get("anyOf", ()))}
    default = flat.pop("default", {"object": {}, "array": []}.get(str(flat.get("type"))))
    flat.pop("anyOf", None)
    if required:
        return Param(**flat)
    if flat["type"] in ("object", "array"):
        flat["type"] = [flat["type"], "null"]
    return Param(default, **flat)


def _either(choices: Any) -> dict[str, Any]:
    """The one kind of value that may also be null, in the form that Airflow's page knows."""
    merged: dict[str, Any] = {}
    for choice in choices:
        if choice.get("type") != "null":
            merged |= choice
    return merged | {"type": ["null", merged["type"]]} if merged else {}


def optional_job(description: str) -> Param:
    """One job, or all."""
    pattern = f"^(?:{names.JOB.pattern})$"
    return Param(None, type=["null", "string"], pattern=pattern, title="Job", description=description)


def flag(title: str, description: str, default: bool = False) -> Param:
    """A box to tick."""
    return Param(default, type="boolean", title=title, description=description)


def days(title: str, default: int, description: str, least: int = 0) -> Param:
    """A number of days."""
    return Param(default, type="integer", minimum=least, maximum=3650, title=title, description=description)
