"""Set-up by parts: an image asks for what it runs, and everything is the default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack import builds, install


def test_everything_that_the_local_stack_runs_is_set_up_by_default() -> None:
    asked = install.arguments([])
    assert asked.parts == ("python", "streamops", *(server.name for server in builds.ALL))
    assert not asked.browser


def test_parts_come_in_the_order_of_the_set_up_whatever_the_order_they_are_named_in() -> None:
    assert install.arguments(["--parts", "minio,python"]).parts == ("python", "minio")


def test_a_part_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        install.arguments(["--parts", "minio,grafana"])
    assert "there is no part 'grafana'; the parts are python, streamops, minio" in capsys.readouterr().err


def test_a_part_that_is_there_already_asks_for_no_tool_and_changes_nothing(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "STREAMOPS_MINIO": sys.executable, "PATH": str(tmp_path)}
    command = [sys.executable, install.__file__, "--parts", "minio"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_part_alone_asks_for_its_own_tools_only(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, install.__file__, "--parts", "minio"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Go 1.26" in done.stderr
    assert "Java" not in done.stderr
    assert "Rust" not in done.stderr


def test_steps_are_taken_once_for_the_same_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "VENV", tmp_path)
    lock, count = tmp_path / "lock", tmp_path / "count"
    step = [sys.executable, "-c", f"open({os.fspath(count)!r}, 'a').write('x')"]

    def take() -> bool:
        return install._once("lock", [lock], "packages", [step], tmp_path)

    lock.write_text("a==1\n")
    assert [take(), take()] == [True, False]
    lock.write_text("a==2\n")
    assert take()
    assert count.read_text() == "xx"
