"""Who holds an operation, and with it the lock."""

from __future__ import annotations

import getpass
import socket
from typing import Literal

from streamops.model.stored import Part


def current_user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user that only the kernel knows, as in a container
        return "unknown"


def this_host() -> str:
    """The name of this machine."""
    return socket.gethostname()


class Publisher(Part):
    """Who published a version, and from where: a host, or an operation. Empty where an earlier release did."""

    user: str = ""
    place: str = ""

    @classmethod
    def here(cls) -> Publisher:
        """This process."""
        return cls(user=current_user(), place=this_host())

    def label(self) -> str:
        """As shown to people."""
        return f"{self.user or 'unknown'}{f', {self.place}' if self.place else ''}"


class Owner(Part):
    """Who holds an operation: a DAG run, or a process outside Airflow."""

    kind: Literal["airflow", "cli"]
    dag_id: str = ""
    run_id: str = ""
    user: str = ""

    def label(self) -> str:
        """As shown to people."""
        where = f"DAG run {self.dag_id}/{self.run_id}" if self.kind == "airflow" else f"command line {self.run_id}"
        return f"{where} of {self.user}" if self.user else where
