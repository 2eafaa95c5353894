"""The fields of the runbooks' forms. Airflow checks them against their schema before a run exists (400 otherwise)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from streamops.model import names
from streamops.operations.requests import fields
from streamops_airflow import runs
from streamops_airflow.hooks.streamops import StreamOpsHook

if TYPE_CHECKING:
    from streamops.operations.operation import Request


def of(request: type[Request]) -> dict[str, Param]:
    """A form with each field of a request: short ones, deadlines, then those that take an editor; the installation.

    Of each kind, what may be left out and is asked by other runbooks as well comes after what only this one asks.
    """
    asked, own = fields(request), vars(request).get("__annotations__", {})

    def place(name: str) -> tuple[bool, bool, bool]:
        editor, deadline = asked[name]["type"] in ("object", "array"), name.endswith("_timeout_s")
        return editor, deadline, not asked[name]["required"] and name not in own

    return {**{name: field(asked[name]) for name in sorted(asked, key=place)}, runs.INSTALLATION: installation()}


def installation() -> Param:
    """The installation to work on."""
    return Param(
        StreamOpsHook.default_conn_name,
        type="string",
        pattern=r"^[\w.-]{1,250}$",
        title="Installation",
        description="The Airflow connection that names the installation to work on.",
    )


def field(schema: Mapping[str, Any]) -> Param:
    """One field. What may be left out may be empty, and forms say so by null; nothing required has a default."""
    told = {key: value for key, value in schema.items() if key not in ("required", "default", "examples")}
    if schema["required"]:
        return Param(**told)
    kind = told["type"]
    if kind == "array":
        told["description"] += " One a line."
    for example in schema.get("examples", ()):
        told["description"] += f" For example {json.dumps(example)}."
    if kind in ("object", "array"):
        told["type"] = [kind, "null"]
    return Param(schema.get("default", {"object": {}, "array": []}.get(str(kind))), **told)


def optional_job(description: str) -> Param:
    """One job, or all."""
    pattern = f"^(?:{names.JOB.pattern})$"
    return Param(None, type=["null", "string"], pattern=pattern, title="Job", description=description)


def snapshot(description: str) -> Param:
    """One snapshot, or all."""
    pattern = f"^(?:{names.SNAPSHOT.pattern})$"
    return Param(None, type=["null", "string"], pattern=pattern, title="Snapshot", description=description)


def rule(description: str) -> Param:
    """How many snapshots to keep, as ``snapshots.keep`` of a definition says it."""
    example = json.dumps({"last": 3, "daily": 7})
    return Param(None, type=["null", "object"], title="Keep", description=f"{description} For example {example}.")


def flag(title: str, description: str, default: bool = False) -> Param:
    """A box to tick."""
    return Param(default, type="boolean", title=title, description=description)


def days(title: str, default: int, description: str, least: int = 0) -> Param:
    """A number of days."""
    return Param(default, type="integer", minimum=least, maximum=3650, title=title, description=description)
