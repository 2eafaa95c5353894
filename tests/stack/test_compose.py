"""docker-compose.yaml: as much as can be checked without an engine."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from stack import container
from stack.layout import REPOSITORY, Layout

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())


def mounts() -> list[tuple[str, str, str]]:
    return [
        (name, *volume.split(":")[:2]) for name, service in COMPOSE["services"].items() for volume in service["volumes"]
    ]


def test_every_file_and_volume_it_names_exists() -> None:
    for service, source, _ in mounts():
        assert (REPOSITORY / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"], service
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    for named in ("include/stack/install.py", "include/stack/compose/requirements.txt"):
        assert named in dockerfile
        assert (REPOSITORY / named).is_file()


def test_every_service_waits_for_one_that_exists() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in services, name
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[needed], name


def test_no_secret_is_spelled_out_or_passed_in_the_environment() -> None:
    for name, service in COMPOSE["services"].items():
        for key in service.get("environment", {}):
            secret = any(word in key for word in ("PASSWORD", "TOKEN", "SECRET_KEY", "DATABASE"))
            assert not secret or key.endswith("FILE"), f"{name}: {key}"


def test_every_secret_file_it_names_is_written(tmp_path: Path) -> None:
    container.write_secrets(Layout(tmp_path))
    text = (REPOSITORY / "docker-compose.yaml").read_text()
    named = {part.split("/secrets/")[1].split("}")[0] for part in text.split() if "/secrets/" in part}
    written = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert named == set(written) & named
    assert len(named) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.values()} == {0o600}
    before = {name: path.read_text() for name, path in written.items()}
    container.write_secrets(Layout(tmp_path))
    assert {name: path.read_text() for name, path in written.items()} == before
