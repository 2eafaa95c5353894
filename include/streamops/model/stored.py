"""What stored records have in common, so that releases that differ can work on the same bucket.

Fields that a release does not know survive when it changes the others, and a format that it does not know is refused
rather than guessed at. ``tests/formats`` keeps an example of each format.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a stored record."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Stored(Part):
    """A stored record. A change that an earlier release would misread gets the next format number."""

    format: Literal[1] = 1
