"""Removes what Airflow need not remember."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

from streamops.model.records import now
from streamops.upkeep import history

if TYPE_CHECKING:
    from airflow.sdk import Context


class CleanHistoryOperator(BaseOperator):
    """Removes old runs of what runs by itself, with their logs. XCom: how many directories of logs went."""

    def execute(self, context: Context) -> int:
        """Remove them. Raises AirflowException when Airflow's command fails; its output is in the log."""
        before = now() - timedelta(days=context["params"]["days"])
        self.log.info("Runs of %s that began before %s go", " and ".join(history.BY_THEMSELVES), before.isoformat())
        # Airflow hides its database from the code of tasks; this is its own command, with the settings of its file.
        environment = {name: value for name, value in os.environ.items() if "SQL_ALCHEMY_CONN" not in name}
        command = history.clean_command(sys.executable, before)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in done.stdout.splitlines():
            self.log.info("%s", line)
        if done.returncode:
            raise AirflowException(f"Airflow's own clean-up ended with {done.returncode}; its output is above.")
        if failed := history.failed_tables(done.stdout):
            raise AirflowException(f"Airflow did not clean its table {', '.join(failed)}; its output is above.")
        logs = history.past_logs(Path(conf.get("logging", "base_log_folder")), before)
        for path in logs:
            shutil.rmtree(path, ignore_errors=True)  # what cannot be removed now is found again tomorrow
        self.log.info("%d directories of logs went", len(logs))
        return len(logs)
