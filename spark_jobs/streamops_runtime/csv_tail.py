"""A directory of files that someone appends lines to, as a stream: rewindable, because offsets are bytes.

The files of a batch are shared out among its tasks.

New files are found by themselves. A last line without its newline waits. A file that became shorter, or that does not
hold any more what stood before the offset, was truncated or replaced: that is counted and logged, and the file is
read from its beginning. What was removed from it before it was read is lost to everybody.
"""

import fnmatch
import heapq
import os
import zlib

from streamops_runtime.pull import PulledReader, PulledSource

_MARK = 64  # bytes before the offset, to recognise the file by
_READ = 1 << 20
_MOST_LINE = 16 << 20  # bytes; no table has such rows


class CsvTailSource(PulledSource):
    """Option ``files``: which files, like ``*.csv``."""

    @classmethod
    def name(cls):
        """The name that ``format`` takes."""
        return "streamops_csv_tail"

    def streamReader(self, schema):
        """The reader."""
        return CsvTailReader(self.options)


class CsvTailReader(PulledReader):
    """Offsets: ``{source: {file: bytes}, "marks": "file=checksum/..."}``."""

    def __init__(self, options):
        super().__init__(options)
        self.files = options.get("files", "*.csv")
        self._looked = {}  # file -> what it was like when it was found to be the one that was read

    def initialOffset(self):
        """Where a query without a checkpoint begins."""
        if self.offsets:
            return self._offset({name: int(at) for name, at in self.offsets.items()}, {})
        if self.start == "latest":
            ends = {name: self._last_line_end(name) for name in self._names()}
            return self._offset(ends, {name: self._mark(name, at) for name, at in ends.items()})
        return self._offset({}, {})

    def plan(self, start):
        """The end of the last whole line of each file, as far as these are ``most`` lines."""
        at, marks, lines = dict(start[self.name]), _marks(start), 0
        for name in self._names():
            if lines >= self.most:
                break
            try:
                begin = self._begin(name, at.get(name, 0), marks.get(name))
                found, end = self._count(name, begin, self.most - lines)
                if end != begin or begin != at.get(name, 0):
                    marks[name] = self._mark(name, end)
                    at[name] = end
            except OSError as error:
                self.faults.add("unreadable")
                self.log.error("%s cannot be read and waits: %s", os.path.join(self.place, name), error)
                continue
            lines += found
        if lines:
            self.log.debug("Added %d lines of %s", lines, self.place)
        return self._offset(at, marks)

    def split(self, start, end):
        """Files, each from which byte to which, in parts of about as many bytes."""
        before, after, marks, now = start[self.name], end[self.name], _marks(start), _marks(end)
        pieces = []
        for name in sorted(after):
            begin = before.get(name, 0)
            if (after[name], now.get(name)) == (begin, marks.get(name)):
                continue
            try:
                if not self._holds(name, after[name], now.get(name)):
                    continue
                if after[name] < begin or (name in marks and self._mark(name, begin) != marks[name]):
                    begin = 0  # the file started over in this batch
            except FileNotFoundError as error:
                if not self._names():  # a directory that is away, rather than a file that was removed
                    raise
                self.log.error("%s was removed before it was read: %s", name, error)
                continue
            if begin < after[name]:
                pieces.append((after[name] - begin, name, begin, after[name], now.get(name)))
        parts = [(0, number, []) for number in range(min(self.parts, len(pieces)))]
        for size, *piece in sorted(pieces, reverse=True):
            filled, number, part = parts[0]
            part.append(tuple(piece))
            heapq.heapreplace(parts, (filled + size, number, part))
        return sorted(sorted(part) for _, _, part in parts)

    def values(self, part):
        """Whole lines."""
        for name, begin, end, mark in part:
            if self._holds(name, end, mark):
                yield from (line for _, line in self._lines(name, begin, end) if line)

    def _holds(self, name, end, mark):
        """Whether a file still is the one in which a batch ends; otherwise the next batch reads it from its start."""
        if mark is None or self._mark(name, end) == mark:
            return True
        self.log.error("%s was truncated or replaced before all of it was read", os.path.join(self.place, name))
        return False

    def _names(self):
        try:
            found = os.listdir(self.place)
        except OSError as error:
            self.faults.add("unreadable")
            self.log.error("Directory %s cannot be read and waits: %s", self.place, error)
            return []
        return sorted(name for name in found if fnmatch.fnmatch(name, self.files))

    def _begin(self, name, at, mark):
        """The offset to read from: ``at``, or 0 when the file is not the one that was read."""
        path = os.path.join(self.place, name)
        found = os.stat(path)
        size, looks = found.st_size, (found.st_ino, found.st_size, found.st_mtime_ns, at, mark)
        if size >= at and (not mark or self._looked.get(name) == looks or self._mark(name, at) == mark):
            self._looked[name] = looks
            return at
        self.faults.add("truncated")
        self.log.error(
            "%s was truncated or replaced: %d bytes had been read, it has %d now; it is read from its beginning, "
            "and what was removed before it was read is lost",
            path, at, size,
        )  # fmt: skip
        return 0

    def _count(self, name, begin, most):
        """How many lines there are from ``begin``, at most ``most``, and the offset after the last of them."""
        lines, at = 0, begin
        for end, line in self._lines(name, begin):
            if line is None:
                self.faults.add("too_long")
                self.log.error("%s has a line of %d bytes; left out", os.path.join(self.place, name), end - at)
            at = end
            lines += bool(line)
            if lines >= most:
                break
        return lines, at

    def _lines(self, name, begin, end=None):
        """Whole lines from ``begin``: the offset after each, and the line without its newline.

        A line of blanks is empty, and None stands for one that is too long.
        """
        at = begin
        with open(os.path.join(self.place, name), "rb") as file:
            file.seek(begin)
            while end is None or at < end:
                line = file.readline(_MOST_LINE)
                length = len(line)
                while len(line) == _MOST_LINE and not line.endswith(b"\n"):
                    line = file.readline(_MOST_LINE)  # the rest of it, so that memory does not grow with it
                    length += len(line)
                if not line.endswith(b"\n"):
                    return
                at += length
                yield at, None if length > _MOST_LINE else line.rstrip(b"\r\n") if line.strip() else b""

    def _last_line_end(self, name):
        with open(os.path.join(self.place, name), "rb") as file:
            at = file.seek(0, os.SEEK_END)
            while at > 0:
                begin = max(0, at - _READ)
                file.seek(begin)
                newline = file.read(at - begin).rfind(b"\n")
                if newline >= 0:
                    return begin + newline + 1
                at = begin
            return 0

    def _mark(self, name, at):
        """A checksum of what stands before the offset; equal for the same file, whatever comes after."""
        if not at:
            return ""
        with open(os.path.join(self.place, name), "rb") as file:
            file.seek(max(0, at - _MARK))
            return format(zlib.crc32(file.read(min(at, _MARK))), "08x")

    def _offset(self, at, marks):
        told = "/".join(f"{name}={marks[name]}" for name in sorted(marks) if marks[name])
        return {self.name: {name: at[name] for name in sorted(at)}, "marks": told}


def _marks(offset):
    return dict(entry.rsplit("=", 1) for entry in offset.get("marks", "").split("/") if entry)
