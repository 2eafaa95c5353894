"""The suite itself: each test has one target, and a run that leaves anything out is red."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from whole import table, unproved

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("test", "test-all", "test-long")
GOOD = ("passed", "passed", "passed")


def recipe(target: str) -> str:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, target
    return found[1]


def chosen(target: str) -> str:
    """The marks by which a target of the Makefile chooses its tests."""
    (expression,) = re.findall(r'-m "([^"]*)"', recipe(target))
    return str(expression)


def takes(expression: str, marks: frozenset[str]) -> bool:
    """Whether pytest's ``-m`` would choose a test with these marks."""
    names = {name: name in marks for name in re.findall(r"\w+", expression)} | {"__builtins__": {}}
    return bool(eval(expression, names))


def test_each_test_is_in_exactly_one_target(every_test: Mapping[str, frozenset[str]]) -> None:
    expressions = {target: chosen(target) for target in TARGETS}
    for test, marks in every_test.items():
        found = [target for target, expression in expressions.items() if takes(expression, marks)]
        assert len(found) == 1, (test, sorted(marks), found)


def test_faults_with_seeds_leave_nothing_out() -> None:
    assert chosen("test-faults") == ""


def test_a_run_of_random_faults_takes_its_length_and_its_seed() -> None:
    assert {"$(MINUTES)", "$(SEED)"} <= set(recipe("test-nemesis").split())


@pytest.mark.parametrize("target", TARGETS)
def test_what_one_run_leaves_is_not_a_path_to_tests_for_the_next(target: str) -> None:
    """pytest reads options before it knows ours: a value of its own that exists as a file would be a test to run."""
    assert [word for word in recipe(target).split() if word.startswith("build/")] == []


def test_what_has_not_run_and_passed_is_not_proved() -> None:
    outcomes = {
        "good": GOOD,
        "bad": ("passed", "failed", "passed"),
        "left": ("skipped", "passed"),
        "torn": ("passed", "passed", "failed"),
        "cut": ("passed",),
        "known": ("passed", "xfailed", "passed"),
        "again": (*GOOD, *GOOD),
    }
    assert unproved([*outcomes, "never"], outcomes) == {
        "bad": "failed",
        "left": "skipped",
        "torn": "failed",
        "cut": "cut short",
        "known": "xfailed",
        "never": "not begun",
    }


def test_durations_are_summed_by_module() -> None:
    assert table({"a.py::x": 1.0, "b.py::y[1]": 2.0, "b.py::y[2]": 0.5}) == "2.5\t2\tb.py\n1.0\t1\ta.py\n"


SAMPLE = """
import pytest

def test_good(): pass

@pytest.mark.skipif({skipped}, reason="not here")
def test_left(): pass

def test_last(): assert not {failing}
"""


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(
    ("skipped", "failing", "options", "code"),
    [(False, False, (), 0), (True, False, (), 1), (False, True, (), 1), (True, True, ("-k", "good"), 0)],
    ids=["all-pass", "one-is-skipped", "one-fails", "what-is-not-chosen-does-not-count"],
)
def test_a_whole_run_that_leaves_anything_out_is_red(
    tmp_path: Path, processes: str, skipped: bool, failing: bool, options: tuple[str, ...], code: int
) -> None:
    done = run_sample(tmp_path, SAMPLE.format(skipped=skipped, failing=failing), "--whole", "-n", processes, *options)
    assert done.returncode == code, done.stdout
    assert ("not proved" in done.stdout) == (code == 1)
    assert re.fullmatch(r"=+ .*\d passed.* in [\d.]+s.* =+", done.stdout.strip().splitlines()[-1]), done.stdout


def test_a_skipped_test_is_not_red_without_the_option(tmp_path: Path) -> None:
    file = tmp_path / "new" / "seconds.tsv"
    done = run_sample(tmp_path, SAMPLE.format(skipped=True, failing=False), "--durations-to", str(file))
    assert (done.returncode, "not proved" in done.stdout) == (0, False)
    assert file.read_text().endswith("\t3\ttest_sample.py\n")


def test_a_run_that_is_cut_short_is_red(tmp_path: Path) -> None:
    text = "import pytest\ndef test_a(): pytest.exit('enough', 0)\ndef test_b(): pass\n"
    done = run_sample(tmp_path, text, "--whole")
    assert done.returncode == 1, done.stdout
    assert "not begun: test_sample.py::test_b" in done.stdout


def run_sample(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_sample.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "whole", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(directory)]
    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
