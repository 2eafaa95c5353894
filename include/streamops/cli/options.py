"""Commands made from requests: what a runbook can be asked, its command takes as arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer
import yaml

from streamops.cli import console
from streamops.model.errors import RefusedError
from streamops.operations import runbooks
from streamops.operations.requests import fields

# How a field is written where that is not its name: an argument, or an option with what its value is.
SPELLED = {
    "job": "JOB",
    "version": "VERSION",
    "snapshot": "--snapshot NAME",
    "from_snapshot": "--from SNAPSHOT",
    "params": "--param NAME=VALUE",
    "topics": "--topic SOURCE=TOPIC",
    "addresses": "--address SOURCE=PLACE",
    "start_at": "--start-at SOURCE=OFFSETS",
    "logging": "--log-level LOGGER=LEVEL",
    "cores": "--cores N",
    "executor_memory": "--executor-memory SIZE",
    "driver_memory": "--driver-memory SIZE",
    "library": "--library LIBRARY/VERSION",
    "accept_loss": "--accept-loss STAGE",
    "nodes": "--node NAME",
    "create_topics": "--create-topics PARTITIONS",
    "topic_retention_h": "--topic-retention H",
    "probation_s": "--probation S",
    "observe_s": "--observe S",
    "may_differ": "--may-differ STAGE",
    "rehearsed_within_h": "--rehearsed-within H",
    "catch_up_s": "--catch-up S",
    "healthy_timeout_s": "--timeout S",
    "stop_timeout_s": "--stop-timeout S",
    "members_timeout_s": "--members-timeout S",
}


class Options:
    """The arguments and options of one runbook, and the request's values from what was given.

    Args:
        spelled: fields that this command writes otherwise than ``SPELLED`` says.
        without: fields that it does not take.
    """

    def __init__(self, runbook: str, spelled: Mapping[str, str] | None = None, without: tuple[str, ...] = ()) -> None:
        self._runbook = runbooks.find(runbook)
        asked = fields(self._runbook.request)
        self._fields = {name: field for name, field in asked.items() if name not in without}
        self._spelled = {**SPELLED, **(spelled or {})}

    def command(
        self,
        does: Callable[[dict[str, Any]], None],
        *more: inspect.Parameter,
        first: tuple[inspect.Parameter, ...] = (),
    ) -> Callable[..., None]:
        """A function that Typer reads as it reads one that is written out: arguments, options, limits of time last.

        Args:
            does: called with what was given, by the names of the parameters; ``json`` is one of them.
            more: parameters that are no fields.
            first: the same, before the fields.
        """
        made = {name: self._parameter(name, field) for name, field in self._fields.items()}

        def place(name: str) -> tuple[bool, bool]:
            return self._option(name)[0].startswith("-"), name.endswith("_timeout_s")

        parameters = [*first, *(made[name] for name in sorted(made, key=place)), *more, switch("json", console.Json)]

        def run(**given: Any) -> None:
            does(given)

        run.__doc__ = self._runbook.purpose
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the request is made of; what was not given is left to it.

        Raises:
            RefusedError: a value is not of the form that its option needs.
        """
        return {name: self._value(name, given[name]) for name in self._fields if given.get(name) not in (None, [])}

    def _option(self, name: str) -> tuple[str, str]:
        """The option with what its value is, or the argument."""
        option, _, value = self._spelled.get(name, f"--{name.replace('_', '-')}").partition(" ")
        return option, value

    def _parameter(self, name: str, field: Mapping[str, Any]) -> inspect.Parameter:
        option, value = self._option(name)
        kind, help_ = _kind(field), field["description"]
        if kind == "boolean" and field.get("default"):
            option = f"{option}/{option.replace('--', '--no-', 1)}"
        elif kind in ("array", "object"):
            examples = [f"{key}={text}" for one in field.get("examples", ()) for key, text in one.items()]
            help_ = " ".join([help_, *(f"Such as {pair}." for pair in examples), "Repeatable."])
        elif kind == "integer" and field.get("default") is not None:
            help_ = f"{help_} Default: {field['default']}."
        python: Any = {"boolean": bool, "integer": int, "array": list[str], "object": list[str]}.get(kind, str)
        if not field["required"]:
            python |= None
        typed = typer.Option(option, metavar=value or None, help=help_)
        if not option.startswith("-"):
            typed = typer.Argument(metavar=option, show_default=False, help=help_)
        default = inspect.Parameter.empty if field["required"] else None
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[python, typed]
        )

    def _value(self, name: str, given: Any) -> Any:
        field = self._fields[name]
        if _kind(field) != "object":
            return given
        found = dict(pairs(self._option(name)[0], given))
        typed = "additionalProperties" in field  # params, whose values are numbers and switches as well
        return {key: yaml.safe_load(value) for key, value in found.items()} if typed else found


def argument(name: str, annotation: Any) -> inspect.Parameter:
    """A parameter that must be given."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def switch(name: str, annotation: Any) -> inspect.Parameter:
    """A parameter that is off unless it is given."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def optional(name: str, annotation: Any) -> inspect.Parameter:
    """A parameter that may be left out."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def pairs(option: str, given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pairs from ``NAME=VALUE``; a value may hold further equals signs. Raises RefusedError."""
    found = []
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise RefusedError(f"{option} {text!r} is not of the form NAME=VALUE.")
        found.append((name, value))
    return tuple(found)


def _kind(field: Mapping[str, Any]) -> str:
    kinds: list[str] = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return next(kind for kind in kinds if kind != "null")
