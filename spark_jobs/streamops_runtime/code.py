"""A job's functions: found by the names of the stages, called with sources and params."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from streamops.model.definitions import Definition, Param
from streamops.model.errors import DefinitionError


@dataclass(frozen=True)
class StageFunction:
    """One stage's function with what it asks for."""

    stage: str
    function: Callable[..., DataFrame]
    sources: tuple[str, ...]
    params: dict[str, Param]

    def __call__(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Build the stage's result from its sources."""
        result = self.function(*(frames[name] for name in self.sources), **self.params)
        if not isinstance(result, DataFrame):
            raise DefinitionError(f"{self.stage} returns {type(result).__name__}; a stage returns a DataFrame.")
        return result


def reads(definition: Definition, function: StageFunction) -> list[str]:
    """The stages whose results a stage reads."""
    sources = (definition.sources[name].stage for name in function.sources)
    return [source.name for source in sources if source]


def in_order(definition: Definition, functions: Mapping[str, StageFunction]) -> dict[str, StageFunction]:
    """The stages in such an order that one that is read by others stands before them."""
    read = {stage: set(reads(definition, function)) for stage, function in functions.items()}
    return {stage: functions[stage] for stage in TopologicalSorter(read).static_order()}


def load(
    definition: Definition, directory: Path, params: Mapping[str, Param] | None = None
) -> dict[str, StageFunction]:
    """Import the job's code and match each stage's function with the definition.

    Args:
        directory: where the code is.
        params: set at deploy, over those of the definition.

    Returns:
        By stage; one that is read by others stands before them.

    Raises:
        DefinitionError: the code cannot be imported, or a function does not fit; says which and what is there.
    """
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    name = definition.code.removesuffix(".py")
    sys.modules.pop(name, None)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise DefinitionError(f"{definition.code} cannot be imported: {type(error).__name__}: {error}.") from error
    place = Path(str(module.__file__)).resolve()
    if place != (directory / definition.code).resolve():
        raise DefinitionError(f"{definition.code} has the name of an installed module ({name}); rename the file.")
    values = {**definition.params, **(params or {})}
    try:
        return in_order(definition, {stage: _match(definition, module, stage, values) for stage in definition.stages})
    except CycleError as error:
        raise DefinitionError(f"Stages read each other in a circle: {' reads '.join(error.args[1])}.") from None


def _match(definition: Definition, module: Any, stage: str, values: Mapping[str, Param]) -> StageFunction:
    function = getattr(module, stage, None)
    if not inspect.isfunction(function):
        there = sorted(
            name
            for name, item in vars(module).items()
            if inspect.isfunction(item) and item.__module__ == module.__name__
        )
        raise DefinitionError(
            f"stages.{stage}: {definition.code} has no function {stage}; it has {', '.join(there) or 'none'}."
        )
    sources, params = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            if name not in definition.sources:
                raise DefinitionError(
                    f"{stage}({name}): there is no source {name}; positional arguments are sources, "
                    f"which are {', '.join(definition.sources)}, and params come after '*'."
                )
            sources.append(name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if name in values:
                params[name] = values[name]
            elif parameter.default is parameter.empty:
                raise DefinitionError(
                    f"{stage}(*, {name}): params has no {name}; it has {', '.join(definition.params) or 'none'}."
                )
        else:
            raise DefinitionError(f"{stage}(*{name}): name each source and param; lists of arguments are not matched.")
    if not sources:
        raise DefinitionError(f"{stage}() takes no source; its positional arguments name sources.")
    return StageFunction(stage, function, tuple(sources), params)
