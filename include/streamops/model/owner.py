"""Who holds an operation, and with it the lock."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Owner(BaseModel):
    """Who holds an operation: a DAG run, or a process outside Airflow."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["airflow", "cli"]
    dag_id: str = ""
    run_id: str = ""
    user: str = ""

    def label(self) -> str:
        """As shown to people."""
        where = f"DAG run {self.dag_id}/{self.run_id}" if self.kind == "airflow" else f"command line {self.run_id}"
        return f"{where} of {self.user}" if self.user else where
