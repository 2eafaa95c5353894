"""supervisord's configuration and its start."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

from stack.layout import REPOSITORY, Layout
from stack.private import write_private
from stack.programs import Program, Traffic, common_environment, programs
from streamops.clients.supervisor import Supervisor
from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError
from streamops.settings import read_pairs
from streamops.store import waiting


def connect(layout: Layout) -> Supervisor:
    """The interface of this stack's supervisord, which may not be running.

    Raises:
        NotFoundError: no stack was ever started here.
    """
    pairs = read_pairs(layout.env_file)
    if "SUPERVISOR_PASSWORD" not in pairs:
        raise NotFoundError(f"No stack is set up in {layout.home}; run 'make up' first.")
    return Supervisor(pairs["SUPERVISOR_URL"], pairs["SUPERVISOR_USER"], pairs["SUPERVISOR_PASSWORD"])


def running(layout: Layout) -> Supervisor | None:
    """This stack's supervisord when it answers to this stack's password, else None."""
    try:
        supervisor = connect(layout)
        supervisor.pid()
    except (NotFoundError, UnreachableError):
        return None
    return supervisor


def start(layout: Layout, deadline_s: float = 20) -> Supervisor:
    """Start supervisord; it stays when the caller ends, and starts no program by itself."""
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(layout.supervisor_conf)]
    done = subprocess.run(
        command, env=common_environment(layout), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StreamOpsError(f"supervisord did not start: {(done.stderr or done.stdout).strip()[-300:]}")
    supervisor = waiting.until(lambda: running(layout), deadline_s, 0.1)
    if supervisor is None:
        raise StreamOpsError(f"supervisord did not answer in {deadline_s:g} s; see {layout.log}/supervisord.log.")
    return supervisor


def traffic(layout: Layout) -> Traffic:
    """What the generator was last asked for."""
    saved = layout.run / "traffic.json"
    return Traffic(**json.loads(saved.read_text())) if saved.is_file() else Traffic()


def write_configuration(layout: Layout, pairs: Mapping[str, str], wanted: Traffic) -> None:
    """Write supervisord's private configuration, for all programs of a stack on one machine."""
    layout.run.mkdir(parents=True, exist_ok=True)
    (layout.run / "traffic.json").write_text(json.dumps(asdict(wanted)))
    common = common_environment(layout)
    sections = [_section(layout, program, common, _to_file(layout, program)) for program in programs(layout, wanted)]
    write_private(layout.supervisor_conf, "\n".join([_head(layout, pairs), *sections]))


def write_node_configuration(layout: Layout, pairs: Mapping[str, str], program: Program, *, start: bool) -> None:
    """Write the private configuration of a node's own supervisord, which stays in the foreground.

    Args:
        start: whether the node's program starts with it, or only when an operation asks for it.
    """
    layout.run.mkdir(parents=True, exist_ok=True)
    to_console = {"stdout_logfile": "/dev/fd/1", "stdout_logfile_maxbytes": "0", "autostart": str(start).lower()}
    section = _section(layout, program, common_environment(layout), to_console)
    write_private(layout.supervisor_conf, "\n".join([_head(layout, pairs, foreground=True), section]))


def _head(layout: Layout, pairs: Mapping[str, str], *, foreground: bool = False) -> str:
    return f"""\
[supervisord]
logfile={layout.log}/supervisord.log
logfile_maxbytes=10MB
logfile_backups=3
pidfile={layout.run}/supervisord.pid
childlogdir={layout.log}
nodaemon={str(foreground).lower()}
minfds={_open_files()}
umask=077
identifier=streamops

[inet_http_server]
port={layout.bind}:{layout.port("supervisor")}
username={pairs["SUPERVISOR_USER"]}
password={pairs["SUPERVISOR_PASSWORD"]}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""


def _to_file(layout: Layout, program: Program) -> dict[str, str]:
    return {
        "stdout_logfile": f"{layout.log}/{program.name}.log",
        "stdout_logfile_maxbytes": "10MB",
        "stdout_logfile_backups": "3",
    }


def _open_files(wanted: int = 65536) -> int:
    """As many open files as wanted, or as the machine allows; supervisord refuses to start when asked for more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _section(layout: Layout, program: Program, common: Mapping[str, str], changed: Mapping[str, str]) -> str:
    environment = {**common, **program.environment}
    lines = {
        "command": shlex.join(program.command),
        "directory": str(layout.run),
        "environment": ",".join(f'{key}="{value}"' for key, value in environment.items()),
    }
    group = str(program.whole_group).lower()
    return f"[program:{program.name}]\n" + "".join(
        f"{key}={value}\n"
        for key, value in {
            **{key: value.replace("%", "%%") for key, value in lines.items()},
            "autostart": "false",  # 'up' starts programs in the order of what they need
            "autorestart": program.restart,
            "startsecs": "1",
            "startretries": "10",
            "stopsignal": program.stop_signal,
            "stopwaitsecs": str(program.stop_seconds),
            "stopasgroup": group,
            "killasgroup": group,
            "redirect_stderr": "true",
            **changed,
        }.items()
    )
