"""The simulators as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from streamops.settings import REPOSITORY

_END_S = 20.0


@contextmanager
def simulator(name: Literal["alpha", "beta"], *arguments: str) -> Iterator[None]:
    """A simulator at work, with the arguments of its command line; ended with the block."""
    command = [sys.executable, "-m", f"demos.fleet.{name}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "include")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_END_S)
