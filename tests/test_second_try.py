"""What only a second try could set up is ended as well."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pathlib
import pytest

def note(line):
    with pathlib.Path("log").open("a") as log:
        log.write(line + "\\n")

@pytest.fixture(scope="session")
def stack():
    if not pathlib.Path("tried").exists():
        pathlib.Path("tried").touch()
        raise RuntimeError("the first try")
    note("stack up")
    yield
    note("stack down")

@pytest.fixture(scope="module")
def job(stack):
    note("job deployed")
    yield
    note("job cancelled")

@pytest.fixture(scope="module")
def late(job):
    note("late begun")
    yield
    note("late ended")

def test_one(job): pass
def test_two(late): assert pathlib.Path("log").read_text().count("job") == 1
"""


def run(directory: Path, *options: str) -> list[str]:
    (directory / "test_of_job.py").write_text(TESTS)
    (directory / "test_other.py").write_text(
        "import test_of_job\ndef test_three(): test_of_job.note('the next module')"
    )
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--reruns", "1", *options]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, timeout=60)
    return (directory / "log").read_text().splitlines()


def test_a_fixture_that_only_the_second_try_could_set_up_is_ended_with_its_module(tmp_path: Path) -> None:
    assert run(tmp_path, "-p", "second_try") == [
        *("stack up", "job deployed", "late begun", "late ended", "job cancelled", "the next module", "stack down")
    ]


def test_without_this_it_would_go_on(tmp_path: Path) -> None:
    """When this fails, pytest-rerunfailures does it right, and tests/second_try.py can go."""
    said = run(tmp_path)
    assert said.index("the next module") < said.index("job cancelled")
