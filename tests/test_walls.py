"""Who imports whom: what ``pyproject.toml`` says of it is true, and would be noticed if it were not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("include", "plugins", "spark_jobs")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "builds", "grafana", "trade_analyser", "fleet_*", "transactions")


def contracts(sources: Path) -> subprocess.CompletedProcess[str]:
    """The contracts, checked on the packages below a directory."""
    places = os.pathsep.join(str(sources / name) for name in SOURCES)
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        env=os.environ | {"PYTHONPATH": places, "COLUMNS": "200"},
        cwd=sources,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_wall_stands() -> None:
    found = contracts(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("include/streamops/store/jobs.py", "def _() -> None:\n    from streamops.operations import engine", "Rooms"),
        ("include/streamops/cluster/view.py", "if TYPE_CHECKING:\n    from streamops import snapshots", "Rooms"),
        ("include/streamops/model/names.py", "import streamops.model.records", "circle"),
        ("include/streamops/upkeep/scheduled.py", "import airflow.models", "Airflow"),
        ("include/streamops/cli/jobs.py", "from demos import upgrade", "story command"),
        ("spark_jobs/streamops_runtime/gate.py", "from streamops.upkeep import scheduled", "decides nothing"),
    ],
)
def test_an_import_through_a_wall_is_noticed(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for name in SOURCES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n\n{line}\n")
    found = contracts(tmp_path)
    assert found.returncode == 1
    assert any(contract in text for text in found.stdout.splitlines() if "BROKEN" in text), found.stdout


def test_a_room_without_a_place_in_the_order_is_noticed(tmp_path: Path) -> None:
    for name in SOURCES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    (tmp_path / "include" / "streamops" / "attic.py").touch()
    found = contracts(tmp_path)
    assert found.returncode == 1
    assert "streamops.attic" in found.stdout
