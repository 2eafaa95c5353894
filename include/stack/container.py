"""The stack inside a container: generated secrets for its neighbours, and a process that stays in the foreground."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from pathlib import Path

from stack import builds, lifecycle
from stack.layout import Layout
from stack.private import prepare_env, write_private

GRAFANA_USER = 472  # the user id that Grafana's image runs as


def write_secrets(layout: Layout) -> None:
    """Write one private file for each secret that another container reads; those that exist are kept."""
    pairs = prepare_env(layout, builds.spark_home())
    directory = layout.home / "secrets"
    postgres = _kept(directory / "postgres-password", secrets.token_urlsafe(24))
    _kept(directory / "airflow-database", f"postgresql+psycopg2://airflow:{postgres}@127.0.0.1:5433/airflow")
    _kept(directory / "grafana-password", secrets.token_urlsafe(12))
    write_private(directory / "influx-token", pairs["INFLUX_TOKEN"])
    if os.geteuid() == 0:
        # Its neighbours are other users: they may pass through, and each may read only what is its own.
        layout.home.chmod(0o711)
        directory.chmod(0o711)
        for name in ("grafana-password", "influx-token"):
            os.chown(directory / name, GRAFANA_USER, 0)


def run() -> None:
    """Start the stack, stay until asked to end, stop the stack."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    lifecycle.up()
    over.wait()
    lifecycle.down()


def _kept(path: Path, value: str) -> str:
    if not path.is_file():
        write_private(path, value)
    return path.read_text()


if __name__ == "__main__":
    if sys.argv[1:] == ["secrets"]:
        write_secrets(Layout.find())
    elif sys.argv[1:] == ["run"]:
        run()
    else:
        sys.exit("Say what to do: 'secrets' or 'run'.")
