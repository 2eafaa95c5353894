"""A port in use is found before anything is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from stack import lifecycle, ports
from stack.layout import PORTS, Layout
from streamops.model.errors import RefusedError


@pytest.fixture
def offset() -> int:
    """An offset at which every port is free."""
    return next(
        offset
        for offset in range(15_000, 21_000, 37)
        if not any(ports.holder(port + offset) for port in PORTS.values())
    )


def test_a_taken_port_is_refused_with_its_number_and_holder_before_anything_starts(
    tmp_path: Path, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMOPS_PORT_OFFSET", str(offset))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", PORTS["minio"] + offset))
        taken.listen()
        with pytest.raises(RefusedError) as refused:
            lifecycle.up(tmp_path)
    assert f"port {PORTS['minio'] + offset} (minio)" in str(refused.value)
    assert f"process {os.getpid()} ({psutil.Process().name()}" in str(refused.value)
    assert "kafka" not in str(refused.value)
    assert not Layout.find(tmp_path).env_file.exists()


def test_a_port_that_a_process_leaves_while_it_ends_is_waited_for(
    tmp_path: Path, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a port is still bound, and no one listens on it."""
    monkeypatch.setenv("STREAMOPS_PORT_OFFSET", str(offset))
    layout, seen = Layout.find(tmp_path), []
    with socket.socket() as ending:
        ending.bind(("127.0.0.1", layout.port("minio")))
        ask = ports.holder

        def until_seen(port: int) -> str | None:
            found = ask(port)
            if found:
                seen.append(found)
                ending.close()
            return found

        monkeypatch.setattr(ports, "holder", until_seen)
        ports.check(layout)
    assert seen == [ports.UNKNOWN]


def test_ports_do_not_collide_with_each_other_or_with_the_test_stack() -> None:
    every = [port + offset for offset in (0, 10_000) for port in PORTS.values()]
    assert len(set(every)) == len(every)
    assert max(every) < 32_768  # above that the system hands ports to outgoing connections


def test_the_offset_of_the_first_start_is_remembered(tmp_path: Path, clean_environment: None) -> None:
    (tmp_path / "stack.env").write_text("STREAMOPS_PORT_OFFSET=300\n")
    assert Layout.find(tmp_path).port("kafka") == PORTS["kafka"] + 300
