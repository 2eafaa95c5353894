"""Set-up by parts: an image asks for what it runs, and everything is the default."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import Future
from pathlib import Path
from typing import IO

import pytest

from stack import builds, install
from streamops.spark import jvm


def test_everything_that_the_local_stack_runs_is_set_up_by_default() -> None:
    asked = install.arguments([])
    assert asked.parts == ("python", "streamops", *(server.name for server in builds.ALL), "postgres")
    assert not asked.browser
    assert not asked.tools  # a demo needs none


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
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"[ 0:00] minio: {Path(sys.executable).resolve()} is used\n"


def test_a_part_alone_asks_for_its_own_tools_only(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, install.__file__, "--parts", "kafka"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Maven" in done.stderr
    assert "Java" not in done.stderr
    assert "Rust" not in done.stderr


def test_sparks_classes_and_the_browser_do_not_wait_for_a_server_that_is_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds.cache().mkdir()
    done = {name: threading.Event() for name in ("python", "jars", "classes", "browser")}

    def build(servers: list[builds.GoServer | builds.Jars], logs: Path) -> bool:
        if builds.KAFKA in servers:
            done["jars"].set()
        else:
            assert all(event.wait(30) for event in done.values())
        return True

    def python(*_: object) -> bool:
        done["python"].set()
        return True

    def classes(logs: Path) -> bool:
        assert done["python"].is_set()
        assert done["jars"].is_set()
        done["classes"].set()
        return True

    def packages(names: tuple[str, ...]) -> bool:
        if names == install.BROWSER:
            done["browser"].set()
        return True

    for name, stand_in in {
        "_build": build,
        "_python": python,
        "_classes": classes,
        "debian_packages": packages,
    }.items():
        monkeypatch.setattr(install, name, stand_in)
    monkeypatch.setattr(install, "_refuse", lambda *_: None)
    monkeypatch.setattr(install, "_tools", lambda *_: [])
    assert install._set_up((install.PACKAGES, install.CHECKOUT, *install.SERVERS), True, True)


POLICY = """cargo:
  Installed: (none)
  Candidate: {cargo}
  Version table:
     0.66.0+ds1-1 500
cargo-web:
  Installed: (none)
  Candidate: 1.85.0+dfsg3-1~deb12u3
"""


@pytest.mark.parametrize(
    ("cargo", "chosen"), [("0.66.0+ds1-1", "cargo-web"), ("1.85.0+dfsg3-1", "cargo"), ("(none)", "cargo-web")]
)
def test_debians_rust_is_taken_where_it_is_new_enough(cargo: str, chosen: str) -> None:
    policy = POLICY.format(cargo=cargo)
    assert install.offered(("cargo", "cargo-web"), policy, install.RUST) == chosen
    assert install.offered(("cargo",), POLICY.format(cargo="1.82.0"), install.RUST) is None


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(builds.BuildError) as raised:
        install._tools([builds.MINIO, builds.INFLUXD, builds.KAFKA], True, ["streamops-no-such-package"])
    for part in ("Java 17 or 21", "Maven", "Rust 1.83", "streamops-no-such-package"):
        assert part in str(raised.value)


def test_builds_use_the_go_of_a_wheel_only_where_the_machine_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel, machine = builds.wheel(builds.GO_WHEEL) / "go" / "bin", tmp_path / "bin"
    for place in (wheel, machine):
        place.mkdir(parents=True)
        (place / "go").write_text("#!/bin/sh\n")
        (place / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(machine))
    assert shutil.which("go", path=builds.go_path()) == str(machine / "go")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("go", path=builds.go_path()) == str(wheel / "go")


def test_steps_are_taken_once_for_the_same_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "VENV", tmp_path)
    lock, count = tmp_path / "lock", tmp_path / "count"

    def step(_: IO[str]) -> None:
        with count.open("a") as file:
            file.write("x")

    def take() -> bool:
        return install._once("lock", [lock], "packages", [step], tmp_path)

    lock.write_text("a==1\n")
    assert [take(), take()] == [True, False]
    lock.write_text("a==2\n")
    assert take()
    assert count.read_text() == "xx"


def test_every_package_that_runs_is_the_same_where_it_is_developed() -> None:
    lines = {lock: set(lock.read_text().splitlines()) for lock in (install.LOCK, install.TOOLS_LOCK)}
    names = [{line.partition("==")[::2] for line in found if "==" in line} for found in lines.values()]
    versions = [{name: rest.split(" ;")[0] for name, rest in pairs} for pairs in names]
    assert versions[0].items() < versions[1].items()
    assert not {"pytest", "ruff", "mypy", "selenium"} & versions[0].keys()


def test_uv_uses_the_registry_that_pip_is_configured_with() -> None:
    settings = "\n".join(
        [
            ":env:.cert='/etc/here.pem'",
            ":env:.no-cache-dir='1'",
            "global.cert='/etc/other.pem'",
            "global.disable-pip-version-check='1'",
            "global.index-url='https://packages.example/simple'",
            r"install.extra-index-url='\nhttps://one.example/simple\nhttps://two.example/simple'",
            "download.index-url='https://elsewhere.example/simple'",
        ]
    )
    assert install.as_pip(settings) == {
        "SSL_CERT_FILE": "/etc/here.pem",
        "UV_NO_CACHE": "1",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert install.as_pip("") == {}


def test_the_lock_lacks_nothing_that_its_packages_need() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    left_out = tomllib.loads((install.REPOSITORY / "pyproject.toml").read_text())["tool"]["uv"]["exclude-dependencies"]
    lacking = [line for line in done.stdout.splitlines() if not any(f"requires {name}," in line for name in left_out)]
    assert not [line for line in lacking if line != "No broken requirements found."]


def test_java_takes_the_archive_of_classes_that_set_up_has_made() -> None:
    home = builds.spark_home()
    proof = jvm.proof(home, builds.java(), jvm.archive(home))
    done = subprocess.run(proof, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_maintenance_of_state_is_at_work_when_the_training_ends() -> None:
    """Set-up took six minutes longer when it was."""
    script = builds.PINS / "spark-classes" / "training.py"
    training = runpy.run_path(str(script))
    assert training["settings"]()["spark.sql.streaming.stateStore.maintenanceInterval"] == "1h"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment and a cache of their own, and a Java that does what the file ``behaviour`` says."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n. {tmp_path}/behaviour\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "cache" / "streamops" / "spark-1"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core.jar").touch()
    monkeypatch.setattr(builds, "spark_home", lambda: home)
    return tmp_path


WRITES = """for part in "$@"; do case "$part" in *AtExit=*) echo classes > "${part#*=}";; esac; done\n"""


def trainings(environment: Path) -> int:
    return (environment / "calls").read_text().count("ArchiveClassesAtExit")


def test_classes_are_archived_once_and_again_when_the_archive_is_cut_short(environment: Path) -> None:
    archive = jvm.archive(builds.spark_home())
    (environment / "behaviour").write_text(WRITES)
    assert [install._classes(environment), install._classes(environment)] == [True, False]
    assert archive.read_text() == "classes\n"
    assert trainings(environment) == 1
    archive.write_text("cla")
    assert install._classes(environment)
    assert archive.read_text() == "classes\n"


def test_classes_are_archived_again_when_an_environment_was_made_anew_at_the_same_place(environment: Path) -> None:
    (environment / "behaviour").write_text(WRITES)
    install._classes(environment)
    os.utime(builds.spark_home() / "jars" / "spark-core.jar", (0, 0))
    assert [install._classes(environment), install._classes(environment)] == [True, False]


@pytest.mark.parametrize("falls", ["*ArchiveClassesAtExit=*", "*-Xshare:on*"])
def test_without_an_archive_set_up_goes_on_and_does_not_try_at_every_start(
    environment: Path, falls: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (environment / "behaviour").write_text(f'{WRITES}case "$*" in {falls}) exit 1;; esac\n')
    assert [install._classes(environment), install._classes(environment)] == [True, False]
    assert "Spark starts without an archive of its classes" in capsys.readouterr().out
    assert {file.name for file in builds.spark_home().iterdir()} == {"classes.mark", "jars"}


def test_what_belongs_to_an_environment_that_is_gone_is_removed(environment: Path) -> None:
    gone, kept = (builds.cache() / name for name in ("spark-2", "spark-3"))
    for home, target in ((gone, environment / "nowhere"), (kept, environment)):
        home.mkdir()
        (home / "bin").symlink_to(target)
    builds.clear_spark_homes()
    assert [home.exists() for home in (gone, kept, builds.spark_home())] == [False, True, True]


def test_debians_postgresql_is_installed_without_a_server_for_the_whole_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says_no, seen = tmp_path / "createcluster.d" / "streamops.conf", dict[str, str]()

    def packages(names: list[str]) -> bool:
        seen.update(dict.fromkeys(names, says_no.read_text()))
        return True

    monkeypatch.setattr(install, "NO_CLUSTER", str(says_no))
    monkeypatch.setattr(install, "_sudo", lambda: [])
    monkeypatch.setattr(install, "_refuse", lambda names: None)
    monkeypatch.setattr(install, "debian_packages", packages)
    monkeypatch.setattr(builds, "postgres", dict)
    assert install._debian_postgres(install.DEFAULT)
    assert seen == {"postgresql": "create_main_cluster = false\n"}
    assert not says_no.exists()
    assert not install._debian_postgres(("python", "streamops"))  # as an image asks
    monkeypatch.setattr(builds, "postgres", lambda: {"15": tmp_path})
    assert not install._debian_postgres(install.DEFAULT)
    assert len(seen) == 1


def test_where_debians_may_not_be_installed_a_wheel_has_postgresql_unless_it_is_root_who_could_not_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(names: list[str]) -> None:
        raise builds.BuildError("run: sudo apt-get")

    ran: list[list[str]] = []
    monkeypatch.setattr(install, "_refuse", refuse)
    monkeypatch.setattr(builds, "postgres", dict)

    def run(command: list[str], *_: object) -> None:
        ran.append(command)
        Path(command[command.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builds, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    python = Future[bool]()
    python.set_result(False)
    assert not install._debian_postgres(install.DEFAULT)
    assert install._postgres_wheel(install.DEFAULT, python, tmp_path)
    assert [command[-1] for command in ran] == [builds.POSTGRES_WHEEL]
    assert builds.wheel(builds.POSTGRES_WHEEL).is_dir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(builds.BuildError, match="run: sudo apt-get"):
        install._debian_postgres(install.DEFAULT)
