"""Who holds an operation, and with it the lock."""

from __future__ import annotations

from typing import Literal

from streamops.model.stored import Part


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
