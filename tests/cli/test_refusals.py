"""What the command line refuses by itself: one sentence, exit code 1, and nothing is asked of a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamops.cli import app


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run a command in an installation that does not exist: whatever asks a server fails otherwise."""
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "none.env"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STREAMOPS_HOME", raising=False)
    return lambda *words: CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("deploy", "Bad_Name", "v1"), "'Bad_Name' is not a job name"),
        (("deploy", "a" * 64, "v1"), "is not a job name"),
        (("deploy", "ok", "../v1"), "is not a version name"),
        (("deploy", "ok", "v1", "--from", "s1", "--from-scratch"), "choose one"),
        (("deploy", "ok", "v1", "--fork"), "needs from_snapshot"),
        (("deploy", "ok", "v1", "--param", "novalue"), "--param 'novalue' is not of the form NAME=VALUE"),
        (("deploy", "ok", "v1", "--topic", "=x"), "--topic '=x' is not of the form NAME=VALUE"),
        (("deploy", "ok", "v1", "--as", "ok"), "code_of: that is the job itself"),
        (("upgrade", "ok", "v1", "--as", "Other"), "job: 'Other' is not a job name"),
        (("deploy", "ok", "v1", "--measurement-prefix", "p_"), "measurement_prefix: needs code_of"),
        (("snapshot", "ok", ".hidden"), "is not a snapshot name"),
        (("snapshot", "ok", "a..b"), "is not a snapshot name"),
        (("upgrade", "ok", "v2", "--snapshot", "no/slash"), "is not a snapshot name"),
        (("upgrade", "ok", "v2", "--snapshot", "fine", "--timeout", "1"), "healthy_timeout_s"),
        (("cancel", "-"), "is not a job name"),
        (("delete", "-", "--yes"), "is not a job name"),
        (("apply",), "No file is named"),
        (("apply", "-f", "none.yaml"), "none.yaml cannot be read"),
        (("get", "-f", "-"), "stdin declares nothing"),
        (("delete", "--yes"), "Nothing is named"),
        (("recount", "UPPER"), "is not a job name"),
        (("snapshots", "UPPER"), "is not a job name"),
        (("operations", "UPPER"), "is not a job name"),
        (("recount", "ok"), "No stack is set up"),
        (("jobs",), "No stack is set up"),
        (("jobs", "pause", "UPPER"), "is not a job name"),
        (("snapshots", "pin", "ok"), "is not of the form JOB/NAME"),
        (("snapshots", "pin", "ok/a..b"), "is not a snapshot name"),
        (("versions", "UPPER"), "is not a job name"),
        (("--context", "nowhere", "jobs"), "There is no context 'nowhere'"),
        (("publish", "/nonexistent"), "is not a directory"),
        (("test", "/nonexistent"), "is not a directory"),
    ],
)
def test_a_wrong_request_ends_in_one_sentence(run, words, said):
    ended = run(*words)
    assert ended.exit_code == 1
    assert said in ended.output
    assert "Traceback" not in ended.output
    assert len(ended.output.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("deploy", "ok"), ("upgrade", "ok"), ("operations", "show"), ("nonsense",)])
def test_a_missing_argument_is_a_usage_error(run, words):
    assert run(*words).exit_code == 2


def test_a_plural_noun_without_a_verb_lists_and_offers_its_verbs(run):
    ended = run("operations", "--help")
    assert ended.exit_code == 0
    for verb in ("list", "show", "resume", "abort"):
        assert verb in ended.output


def test_context_is_a_name_or_a_path(run, tmp_path):
    lines = [
        f"{key}=x"
        for key in "KAFKA_BOOTSTRAP_SERVERS S3_ACCESS_KEY S3_SECRET_KEY S3_BUCKET INFLUX_ORG INFLUX_TOKEN".split()
    ]
    lines += ["S3_ENDPOINT=http://127.0.0.1:1", "INFLUX_URL=http://127.0.0.1:1", "INFLUX_BUCKET=b"]
    there = tmp_path / "config" / "streamops" / "contexts" / "other.env"
    there.parent.mkdir(parents=True)
    there.write_text("\n".join(lines))
    for context in ("other", str(there)):
        before = os.environ.get("STREAMOPS_ENV_FILE")
        ended = run("--context", context, "deploy", "ok", "v1")
        os.environ["STREAMOPS_ENV_FILE"] = before or ""
        assert "names no Airflow" in ended.output  # the other installation was read


def test_new_writes_a_job_once_and_never_over_it(run, tmp_path):
    directory = tmp_path / "clicks"
    assert run("new", str(directory)).exit_code == 0
    assert "job: clicks" in (directory / "v1.yaml").read_text()
    (directory / "clicks.py").write_text("mine")
    ended = run("new", str(directory))
    assert ended.exit_code == 1
    assert "exists already" in ended.output
    assert (directory / "clicks.py").read_text() == "mine"


def test_new_names_the_job_after_its_directory_where_that_is_a_name(run, tmp_path):
    run("new", str(tmp_path / "page-views"))
    assert "job: page-views\n" in (tmp_path / "page-views" / "v1.yaml").read_text()
    assert "code: page_views.py\n" in (tmp_path / "page-views" / "v1.yaml").read_text()
    run("new", str(tmp_path / "Not A Name"))
    assert "job: clicks\n" in (tmp_path / "Not A Name" / "v1.yaml").read_text()


def test_the_command_is_installed_and_starts_without_airflow_or_spark():
    code = (
        "import sys; import streamops.cli; "
        "sys.exit(', '.join(name for name in ('airflow', 'pyspark') if name in sys.modules) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
