"""A real InfluxDB, and nothing else of a stack."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack import builds, configure, private, ready
from stack.layout import Layout


@contextmanager
def stack(home: Path) -> Iterator[Layout]:
    """A stack of which only InfluxDB runs, as a start has left it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    layout = Layout(home, 0)
    pairs = private.prepare_env(layout, home / "spark") | {"INFLUX_URL": f"http://127.0.0.1:{port}"}
    private.write_private(layout.env_file, private.render_pairs("", pairs))
    with _running(layout.data / "influxdb", port):
        ready.wait("influxd", ready.influxd, layout, 60)
        configure.write_all(layout, pairs)
        yield layout


@contextmanager
def _running(directory: Path, port: int) -> Iterator[None]:
    """The pinned InfluxDB on a port of loopback, with what ``directory`` holds."""
    directory.mkdir(parents=True, exist_ok=True)
    binary = builds.INFLUXD.find() or builds.INFLUXD.build(directory / "build.log")
    files = [f"--{name}-path={directory / name}" for name in ("bolt", "sqlite", "engine")]
    command = [str(binary), "--reporting-disabled", f"--http-bind-address=127.0.0.1:{port}", *files]
    with (directory / "influxd.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        server.terminate()
        server.wait(30)
