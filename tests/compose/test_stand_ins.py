"""Which images are stood in for, and which are left as they are; with a Docker that only answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import own_engine
import pytest
import stand_ins

DOCKER = """#!{python}
import json, pathlib, sys
there = json.loads(pathlib.Path({there!r}).read_text())
if sys.argv[1:3] == ["image", "inspect"] and sys.argv[-1] in there:
    print(json.dumps(there[sys.argv[-1]]))
elif sys.argv[1] == "pull" and sys.argv[-1] in there.get("pullable", []):
    print(sys.argv[-1])
else:
    sys.exit(1)
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(python=sys.executable, there=str(tmp_path / "there.json")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return dict(os.environ)


def have(tmp_path: Path, images: dict[str, object]) -> None:
    """The engine has these images, with these labels."""
    (tmp_path / "there.json").write_text(json.dumps(images))


def test_images_made_here_are_none_of_the_published_ones(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM golang:1 AS build\nFROM debian:slim AS own\nFROM own\nFROM build AS x\n")
    services = {"a": {"build": ".", "image": "mine"}, "b": {"image": "mine"}, "c": {"image": "postgres:1"}}
    (tmp_path / "docker-compose.yaml").write_text(json.dumps({"services": services}))
    assert stand_ins.published(tmp_path) == ("debian:slim", "golang:1", "postgres:1")


def test_every_published_image_but_grafana_has_a_stand_in() -> None:
    without = {name for name in stand_ins.published() if name.partition(":")[0] not in stand_ins.RECIPES_OF}
    assert {name.partition(":")[0] for name in without} == {"grafana/grafana"}


def test_a_published_image_is_left_as_it_is(environment: dict[str, str], tmp_path: Path) -> None:
    have(tmp_path, {"influxdb:2": {"maintainer": "someone"}, "pullable": ["debian:slim"]})
    kinds = [image.kind for image in stand_ins.prepare(environment, ["influxdb:2", "debian:slim"])]
    assert kinds == ["published", "published"]


def test_an_image_without_a_recipe_is_missing_and_the_report_says_so(
    environment: dict[str, str], tmp_path: Path
) -> None:
    have(tmp_path, {})
    images = stand_ins.prepare(environment, ["grafana/grafana:12"])
    assert images[0].kind == "missing"
    assert "grafana/grafana:12" in stand_ins.report(images)
    assert "cannot be pulled" in stand_ins.report(images)


def test_a_server_of_another_version_stands_in_for_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    have(tmp_path, {})
    (image,) = stand_ins.prepare(environment, ["apache/kafka:3.1.0"])
    assert (image.kind, "3.1.0 is asked for" in image.detail) == ("missing", True)


def test_a_stand_in_of_an_older_recipe_is_made_again(environment: dict[str, str], tmp_path: Path) -> None:
    name = "postgres:15.18-bookworm"
    key = stand_ins._key(stand_ins.RECIPES_OF["postgres"], name)
    labels = {stand_ins.LABEL: "true", stand_ins.KEY: key}
    have(tmp_path, {name: labels})
    assert stand_ins.prepare(environment, [name])[0].kind == "stand-in"
    have(tmp_path, {name: labels | {stand_ins.KEY: "older"}})
    assert "building its stand-in failed" in stand_ins.prepare(environment, [name])[0].detail


def test_without_root_it_is_said_that_no_engine_can_be_started(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(tmp_path, {})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(own_engine.NoEngineError, match="only root can start one"), own_engine.engine(tmp_path):
        pass


def test_a_directory_too_deep_for_a_socket_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    have(tmp_path, {})
    with pytest.raises(own_engine.NoEngineError, match="too long"), own_engine.engine(tmp_path / ("d" * 100)):
        pass
