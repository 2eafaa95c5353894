"""The tutorial from its first line to its last: the commands as one would type them, with what they print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from demos.transactions import sender
from demos.upgrade import HEALTHY_S, Story, until
from streamops.clients.airflow import Airflow
from streamops.clients.kafka import Ledger
from streamops.cluster import nodes
from streamops.cluster import record as cluster_record
from streamops.model.errors import UnhealthyError
from streamops.operations.follow import Runbooks
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs
from streamops.store.joblogs import Reader
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

JOB = "transactions"
EXAMPLES = "docs/examples/transactions"
CLUSTER, TOPIC, V1, SNAPSHOT, V2 = (
    ("-f", f"{EXAMPLES}/{name}.yaml") for name in ("cluster", "topic", "job-v1", "snapshot", "job-v2")
)
WITHOUT_SNAPSHOT = f"kind: job\nname: {JOB}\nversion: v2\ncode: spark_jobs/transactions\n"
LOGS = ("logs", JOB, "--logger", "sink")
RUNBOOKS = (
    "deploy_job", "snapshot_job", "delete_job", "scale_cluster", "shutdown_cluster", "restart_cluster",
)  # fmt: skip


class Transactions:
    """The story on a running stack; ``say`` receives lines for a person."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self.settings, self.say, self.store = settings, say, ObjectStore(settings)
        self.story = Story(say)

    def tell(self) -> None:
        """Tell it.

        Raises:
            StreamOpsError: it does not go as it should; what runs is left as it is.
        """
        before = self._size()
        self._begin()
        self._cluster()
        self._first_version()
        self._snapshot()
        self._second_version()
        self._clean_up(before)

    # --- parts

    def _begin(self) -> None:
        with self.story.part("Wait until Airflow has read the runbooks"), Airflow(self.settings) as airflow:
            Runbooks(airflow, self.store).wait_ready(RUNBOOKS)
        if jobs.record(self.store, JOB) is not None or artifacts.versions(self.store, JOB):
            with self.story.part("An earlier story left the job behind: delete it"):
                self._streamops("delete", *TOPIC, *V1, "--yes")
        with closing(Ledger(self.settings)) as ledger:
            ledger.delete_topic(sender.TOPIC)  # of a story that ended before there was a job

    def _cluster(self) -> None:
        with self.story.part("Start the cluster: three members"):
            self._streamops("apply", *CLUSTER)
            self._shows("3/3", self._streamops("get", *CLUSTER))

    def _first_version(self) -> None:
        with self.story.part("The topic, which the job reads"):
            self._streamops("apply", *TOPIC)
            self._shows("24 h", self._streamops("get", *TOPIC))
        with self.story.part("The job's code in a bucket, and the secret to read it with"):
            self._python("upload")
        with self.story.part("Submit version 1"):
            self._streamops("diff", *V1, code=2)
            self._streamops("apply", *V1)
            self._shows("running", self._streamops("get", *V1))
            self._shows("unchanged", self._streamops("apply", *V1))
        with self.story.part("Three transactions, and the job's log"):
            self._python("send", "1", "2", "3")
            self._logs({"V1": (1, 2, 3), "V2": ()})

    def _snapshot(self) -> None:
        with self.story.part("Export a snapshot, which stops the job"):
            self._streamops("apply", *SNAPSHOT)
            self._shows("exported", self._streamops("get", *SNAPSHOT))
            self._shows("stopped-with-snapshot", self._streamops("get", *V1))
        with self.story.part("Two more transactions, while nothing runs"):
            self._python("send", "4", "5")

    def _second_version(self) -> None:
        with self.story.part("Version 2 without the snapshot would process everything again: refused"):
            self._shows("from_scratch: true", self._streamops("apply", "-f", "-", typed=WITHOUT_SNAPSHOT, code=1))
        with self.story.part("Version 2 from the snapshot"):
            self._streamops("apply", *V2)
            self._shows("running", self._streamops("get", *V2))
            self._logs({"V1": (1, 2, 3), "V2": (4, 5)})
        with self.story.part("The file of version 1 is old now: refused"):
            self._shows("The file is stale", self._streamops("apply", *V1, code=1))

    def _clean_up(self, size: int) -> None:
        every = (*CLUSTER, *TOPIC, *V1, *SNAPSHOT, *V2)
        with self.story.part("Clean up by the same files: job, snapshot, topic, cluster"):
            self._streamops("delete", *every, "--yes")
            self._shows("not there", self._streamops("get", *every, code=1))
            self._python("remove-upload")
        if JOB in {job for job in jobs.names(self.store) if artifacts.versions(self.store, job)}:
            raise UnhealthyError(f"Job {JOB} is still there; read 'streamops jobs show {JOB}'.")
        with self.story.part("The stack's own cluster again: apply brings it up"):
            self._streamops("apply", "-f", "-", typed=f"kind: cluster\nsize: {size}\n")
            self._shows(f"{size}/{size}", self._streamops("get", "-f", "-", typed=f"kind: cluster\nsize: {size}\n"))

    # --- commands and looks

    def _streamops(self, *words: str, typed: str = "", code: int = 0) -> str:
        command = [str(Path(sys.executable).with_name("streamops")), *words]
        return self._run(["streamops", *words], command, typed, code)

    def _python(self, *words: str) -> str:
        module = ["-m", "demos.transactions", *words]
        return self._run(["python", *module], [sys.executable, *module], "", 0)

    def _run(self, shown: list[str], command: list[str], typed: str, code: int) -> str:
        """Run a command, and show it as it is typed, and what it prints.

        Raises:
            UnhealthyError: it ends with another exit code.
        """
        self.say(f"$ {shlex.join(shown)}{f' <<EOF{chr(10)}{typed}EOF' if typed else ''}")
        lines: list[str] = []
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(typed)
            process.stdin.close()
            for line in process.stdout:
                lines.append(line)
                self.say(line.rstrip("\n"))
        if process.returncode != code:
            raise UnhealthyError(f"'{shlex.join(shown)}' ended with {process.returncode}, not {code}; see above.")
        return "".join(lines)

    def _shows(self, text: str, told: str) -> None:
        if text not in told:
            raise UnhealthyError(f"What was printed last does not say {text!r}.")

    def _logs(self, wanted: dict[str, tuple[int, ...]]) -> None:
        """Wait until the job's log has these transactions, by version, and show it."""
        count = sum(len(numbers) for numbers in wanted.values())
        until(lambda: len(self._logged()) >= count, HEALTHY_S, f"Transactions stay unread; see 'streamops logs {JOB}'.")
        self._streamops(*LOGS)
        expected = [sender.logged(version, number) for version, numbers in wanted.items() for number in numbers]
        if sorted(self._logged()) != sorted(expected):
            raise UnhealthyError(f"The log does not have each transaction once: {expected} was to be read.")

    def _logged(self) -> list[str]:
        return [line.text for line in Reader(self.store, JOB).more() if line.logger.startswith("sink.")]

    def _size(self) -> int:
        return len(cluster_record.read(self.store).wanted(nodes.load(self.settings.nodes_file)))
