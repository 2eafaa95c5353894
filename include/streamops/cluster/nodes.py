"""The inventory: which nodes exist, how their supervisors are reached, and what each can hold. It holds no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streamops.model.definitions import Memory
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.names import NODE
from streamops.model.wording import wrong_fields

MAX_INVENTORY_BYTES = 256 * 1024
NodeName = Annotated[str, Field(pattern=f"^{NODE.pattern}$")]
_Http = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")]
_Program = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Node(_Model):
    """A machine, container or local process group that can run one Spark worker."""

    name: NodeName
    supervisor: _Http  # of its supervisord's XML-RPC interface; the password is in the private file
    program: _Program  # the worker, as that supervisord calls it
    page: _Http  # of the worker, as the master shows it: the identity of a member
    cores: Annotated[int, Field(ge=1, le=4096)]
    memory: Memory
    spare: bool = False  # not a member of a cluster that was never scaled


class Master(_Model):
    """Where the master runs."""

    supervisor: _Http
    program: _Program


class Inventory(_Model):
    """All nodes of one installation."""

    master: Master
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    spark: str = ""  # the version of Spark that they run, which no page of the master says

    @model_validator(mode="after")
    def _distinct(self) -> Inventory:
        for field in ("name", "page"):
            values = [getattr(node, field) for node in self.nodes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"nodes: {field} {', '.join(twice)} stands there twice")
        return self

    def node(self, name: str) -> Node:
        """A node by its name. Raises RefusedError that names those there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise RefusedError(f"There is no node {name!r}; the inventory has {', '.join(self.names())}.")

    def names(self) -> tuple[str, ...]:
        """All names, in the order of the file."""
        return tuple(node.name for node in self.nodes)

    def initial(self) -> tuple[str, ...]:
        """The members of a cluster that was never scaled."""
        return tuple(node.name for node in self.nodes if not node.spare)


def parse(text: str, where: str = "the inventory") -> Inventory:
    """Read an inventory.

    Raises:
        RefusedError: names each wrong field.
    """
    if len(text) > MAX_INVENTORY_BYTES:
        raise RefusedError(f"{where} is larger than {MAX_INVENTORY_BYTES:,} bytes; an inventory is a short list.")
    try:
        return Inventory.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise RefusedError(f"{where} is not YAML{line}; correct it.") from None
    except ValidationError as error:
        raise RefusedError(f"{where} is wrong: {wrong_fields(error)}.") from None


def load(path: Path | str) -> Inventory:
    """Read the inventory file that the settings name.

    Raises:
        NotFoundError: there is none.
        RefusedError: it is wrong.
    """
    if not path or not Path(path).is_file():
        raise NotFoundError(f"There is no inventory of nodes ({path or 'NODES_FILE is empty'}); run 'make up' first.")
    return parse(Path(path).read_text(), str(path))


def passwords(path: Path | str) -> dict[str, str]:
    """User and passwords of the supervisors: lines ``user=...``, ``password=...``, ``password.NODE=...``.

    Raises:
        NotFoundError: there is no such file.
        RefusedError: others than its owner may read it.
    """
    if not path or not Path(path).is_file():
        raise NotFoundError(
            f"The private file of the supervisors is missing ({path or 'NODES_PRIVATE_FILE is empty'})."
        )
    if Path(path).stat().st_mode & 0o077:
        raise RefusedError(f"{path} holds passwords and others may read it; run 'chmod 600 {path}'.")
    lines = Path(path).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
