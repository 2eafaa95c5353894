"""Which ports are taken, and by whom."""

from __future__ import annotations

import socket

import psutil

from stack.layout import PORTS, Layout
from streamops.errors import RefusedError


def holder(port: int) -> str | None:
    """What listens on a port of loopback, as text; None when the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return None
        except OSError:
            pass
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # as on macOS, where only root may look
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()}, user {process.username()})"
            except psutil.NoSuchProcess:
                return f"process {connection.pid}"
    return "a process of another user"


def check(layout: Layout) -> None:
    """Refuse to start when a port is taken.

    Raises:
        RefusedError: names every taken port, what it is for, and the process that holds it.
    """
    taken = [
        f"port {layout.port(name)} ({name}) is held by {who}" for name in PORTS if (who := holder(layout.port(name)))
    ]
    if taken:
        raise RefusedError(
            f"The stack cannot start: {'; '.join(taken)}. End that process, or set {'STREAMOPS_PORT_OFFSET'} "
            "to a number that is added to every port."
        )
