"""What whoever runs it can read: all files of a directory, and of all other processes arguments and environment.

``python reach.py DIRECTORY [memory]`` prints which of the texts on its standard input it finds there, and how much it
has looked at; with ``memory`` it reads that of all other processes too. It needs the standard library alone, and is
handed to other users and into containers as ``PROGRAM``.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).read_text() if "__file__" in globals() else ""
LARGEST = 50_000_000  # bytes of a file
AT_ONCE = 8 << 20
LONGEST = 200  # of a text


def main() -> None:
    """Entry point."""
    texts = [line.encode() for line in sys.stdin.read().split()]
    found: set[bytes] = set()
    looked = {"files": 0, "processes": 0}

    def search(data: bytes) -> None:
        found.update(text for text in texts if text in data)

    for directory, folders, files in os.walk(sys.argv[1]):
        if directory == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
        for path in (Path(directory, name) for name in files):
            try:
                if path.is_file() and path.stat().st_size < LARGEST:
                    search(path.read_bytes())
                    looked["files"] += 1
            except OSError:
                continue
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            search(Path(f"/proc/{pid}/cmdline").read_bytes())
            search(Path(f"/proc/{pid}/environ").read_bytes())
            looked["processes"] += 1
            for data in memory(pid) if sys.argv[2:] == ["memory"] else ():
                search(data)
        except OSError:
            continue
    print(json.dumps({"found": sorted(text.decode() for text in found), "looked": looked}))


def memory(pid: str) -> Iterator[bytes]:
    """What a process has in its memory, piece by piece. Raises OSError: that is not for this user."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as file:
        for line in maps:
            start, end, rights = re.match("([0-9a-f]+)-([0-9a-f]+) (r?)", line).groups()  # type: ignore[union-attr]
            position, limit = int(start, 16), int(end, 16)
            while rights and position < limit:
                try:
                    file.seek(position)
                    data = file.read(min(AT_ONCE, limit - position))
                except (OSError, OverflowError, ValueError):  # of the kernel
                    break
                if not data:
                    break
                yield data
                position += len(data) - (LONGEST if position + len(data) < limit else 0)


if __name__ == "__main__":
    main()
