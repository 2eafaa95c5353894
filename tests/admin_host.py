"""A host that has an installed StreamOps and a context file, and nothing of the stack.

It is a network and a mount namespace: of the stack it reaches the ports that it is given, and the directories of stack
and checkout are empty there. ``python admin_host.py SOCKETS PORT...`` is the process that holds the namespaces.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("include", "plugins", "spark_jobs")
COMMAND_S = 500  # finds what hangs

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AdminHost:
    """Runs the installed command there.

    Args:
        home: of its user; the context ``there`` is in it.
        holder: the process that holds the namespaces.
    """

    def __init__(self, home: Path, installed: Path, holder: int) -> None:
        self.home, self._installed, self._holder = home, installed, holder

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command of ``streamops`` prints."""
        found = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(self._installed)}
        command = ["nsenter", "--target", str(self._holder), "--net", "--mount", "--"]
        command += [str(self._installed / "bin" / "streamops"), "--context", "there", *words]
        done = subprocess.run(
            command, env=found, cwd="/", capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@contextmanager
def admin_host(
    directory: Path, context: Mapping[str, str], ports: list[int], hidden: list[Path]
) -> Iterator[AdminHost]:
    """Such a host, whose 127.0.0.1 has these ports of this one's.

    Args:
        hidden: directories that are empty there, beside the checkout's.
    """
    sockets, home = directory / "sockets", directory / "home"
    file = home / ".config" / "streamops" / "contexts" / "there.env"
    for path in (sockets, file.parent):
        path.mkdir(parents=True)
    file.touch(0o600)
    file.write_text("".join(f"{key}={value}\n" for key, value in context.items()))
    installed = install(directory)
    covered = [*hidden, *(ROOT / name for name in (*SOURCES, "dags"))]
    inside = "ip link set lo up && for path in {}; do mount -t tmpfs none $path || exit; done && exec {}".format(
        " ".join(map(str, covered)), " ".join(map(str, (sys.executable, __file__, sockets, *ports)))
    )
    with relays(lambda: [relay(sockets / str(port), ("127.0.0.1", port)) for port in ports]):
        command = ["unshare", "--net", "--mount", "sh", "-c", inside]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            yield AdminHost(home, installed, holder.pid)
        finally:
            holder.terminate()
            holder.wait(20)


def install(directory: Path) -> Path:
    """The project as pip installs it, without what it needs, which this interpreter has."""
    copy, installed = directory / "copy", directory / "installed"
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(installed), str(copy)], check=True)
    return installed


@contextmanager
def relays(made: Callable[[], list[Coroutine[Any, Any, None]]]) -> Iterator[None]:
    """Relays at work in a thread."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_all(made()))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


async def _all(made: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*made)


async def relay(listen: Path | tuple[str, int], connect: Path | tuple[str, int]) -> None:
    """Pass on what comes to one address to the other, and back."""

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await (asyncio.open_unix_connection(connect) if isinstance(connect, Path) else _open(connect))
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))

    if isinstance(listen, Path):
        await asyncio.start_unix_server(passed, listen)
    else:
        await asyncio.start_server(passed, *listen)


async def _open(place: tuple[str, int]) -> Streams:
    return await asyncio.open_connection(*place)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()  # either side may leave when it likes


async def _hold(sockets: Path, ports: list[int]) -> None:
    await _all([relay(("127.0.0.1", port), sockets / str(port)) for port in ports])
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_hold(Path(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
