"""The standalone cluster: drivers are submitted with spark-submit, and the master is asked what room there is."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable

import httpx

from streamops.model.definitions import Definition
from streamops.model.errors import UnreachableError
from streamops.settings import Settings
from streamops.spark.master import Master, fits, parse_master
from streamops.spark.submission import Submission, end_driver_command, spark_submit_command, submit_environment

DRIVER_ID = re.compile(r"\bdriver-\d{14}-\d{4,}\b")
_SUBMIT_S = 120


class SparkSubmitter:
    """The installation's cluster.

    Args:
        say: is told the command of a submission, and what spark-submit says.
        binary: the name of Spark's script.
    """

    def __init__(
        self, settings: Settings, say: Callable[[str], None] = lambda line: None, binary: str = "spark-submit"
    ) -> None:
        self.settings, self.say, self.binary = settings, say, binary

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster and return Spark's id of it, which is only a hint.

        Raises:
            UnreachableError: spark-submit failed; the message ends with its last line.
        """
        command = spark_submit_command(self.settings, submission, self.binary)
        self.say(shlex.join(command))
        code, said = self._run(command)
        for line in said:
            self.say(line)
        found = DRIVER_ID.search("\n".join(said))
        if code or not found:
            raise UnreachableError(
                f"spark-submit of {submission.job} to {self.settings.spark_master} failed ({code}): {_last(said)}; "
                "check that the master runs ('make status') and retry."
            )
        return found.group(0)

    def master(self) -> Master:
        """What the master says; which executors each worker runs is not asked.

        Raises:
            UnreachableError: the master does not answer.
        """
        try:
            answer = httpx.get(f"{self.settings.spark_ui.rstrip('/')}/json/", timeout=5)
            answer.raise_for_status()
            data = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UnreachableError(
                f"The Spark master at {self.settings.spark_ui} did not answer ({type(error).__name__}); "
                "check that it runs ('make status') and retry."
            ) from error
        return parse_master(data)

    def end_driver(self, driver: str) -> None:
        """Have the master end a driver, and not start it again; one that it does not hold is let be.

        Raises:
            UnreachableError: the master does not answer, or refuses.
        """
        code, said = self._run(end_driver_command(self.settings, driver))
        if code and driver in {held.id for held in self.master().drivers}:
            raise UnreachableError(
                f"The Spark master at {self.settings.spark_master} did not end {driver} ({code}): {_last(said)}; "
                "check that it runs ('make status') and retry."
            )

    def _run(self, command: list[str]) -> tuple[int, list[str]]:
        """Run spark-submit; return its exit code and the lines it said.

        Raises:
            UnreachableError: it does not come to an end.
        """
        try:
            done = subprocess.run(
                command,
                env=submit_environment(self.settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SUBMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"spark-submit to {self.settings.spark_master} did not end in {_SUBMIT_S} s; is the master up?"
            ) from None
        return done.returncode, [line for line in done.stdout.splitlines() if line.strip()]

    def room_for(self, definition: Definition) -> bool:
        """Whether one more driver with all its executors fits beside what runs."""
        return fits(self.master(), definition)


def _last(said: list[str]) -> str:
    return said[-1][:300] if said else "no message"
