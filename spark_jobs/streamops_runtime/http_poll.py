"""A web service as a stream: ``GET place?since=SEQUENCE&limit=N`` gives a JSON array in the order of its sequence.

The service keeps its records, so the stream can be read again from any sequence number. A service that does not answer,
or answers something else, is counted and asked again later; it never ends the job. A sequence number that comes twice
is left out, and one that is skipped is counted and logged. A service that restarts its numbering is read from its
beginning.
"""

import http.client
import json
import time
import urllib.error
import urllib.request

from streamops_runtime.pull import PulledReader, PulledSource

_TIMEOUT_S = 5.0
_ANSWER_S = 30.0  # for the whole of an answer
_MOST_BYTES = 64 << 20
_TRIES = 3  # for one poll; the next one follows with the next batch
_AGAIN_S = 60.0  # for a batch that was planned before: without its records nothing continues


class HttpSource(PulledSource):
    """Options ``limit`` (records of one answer) and ``sequence`` (the field that counts)."""

    @classmethod
    def name(cls):
        """The name that ``format`` takes."""
        return "streamops_http"

    def simpleStreamReader(self, schema):
        """The reader; runs in a process of the driver's node."""
        return HttpReader(self.options)


class HttpReader(PulledReader):
    """Offsets: ``{source: {"sequence": last}}``, the last sequence number that was read."""

    def __init__(self, options):
        super().__init__(options)
        self.limit = int(options.get("limit", 200))
        self.field = options.get("sequence", "sequence")
        self.doubtful = True  # whether the service may be another one than before

    def initialOffset(self):
        """Where a query without a checkpoint begins."""
        if "sequence" in self.offsets:
            return self._offset(int(self.offsets["sequence"]))
        last = 0
        while self.start == "latest" and (found := self._ask(last, _AGAIN_S)):
            last = max(last, *(self._number(record) or 0 for record in found))
        return self._offset(last)

    def read(self, start):
        """Records after ``start``, at most ``most``, and where the next read begins."""
        self.look_at_level()
        last, rows = start[self.name]["sequence"], []
        try:
            if self.doubtful and last and not self._continues(last):
                last = 0
            self.doubtful = False
            while len(rows) < self.most:
                records = self._ask(last)
                fresh, last = self._take(records, last)
                rows += fresh
                if len(records) < self.limit:
                    break
        except _NoAnswerError as error:
            self.doubtful = True
            self.faults.add(error.fault)
            self.log.warning("%s: %s; asked again with the next batch", self.place, error)
        if rows:
            self.log.debug("Added %d pings. Highest sequence number is: %d", len(rows), last)
        return iter([self.row(value) for value in rows]), self._offset(last)

    def readBetweenOffsets(self, start, end):
        """The same records again: a batch that was planned and not committed."""
        last, stop = start[self.name]["sequence"], end[self.name]["sequence"]
        last = 0 if stop < last else last  # the service started over in this batch
        while last < stop:
            records = [record for record in self._ask(last, _AGAIN_S) if (self._number(record) or 0) <= stop]
            fresh, highest = self._take(records, last)
            if highest <= last:
                return
            last = highest
            for value in fresh:
                yield self.row(value)

    def _take(self, records, last):
        """Values of new records, and the highest sequence number; gaps and repeats are counted."""
        fresh = []
        for record in records:
            number = self._number(record)
            if number is None:
                self.log.error("%s: a record has no whole number as %s: %.200s", self.place, self.field, record)
                fresh.append(b"not a record")  # counted as malformed like every other bad value
                continue
            if number <= last:
                self.faults.add("repeat")
                self.log.warning("%s: sequence number %d came again after %d; left out", self.place, number, last)
                continue
            if number > last + 1 and last:
                self.faults.add("gap", number - last - 1)
                self.log.error("%s: sequence numbers %d to %d are missing", self.place, last + 1, number - 1)
            last = number
            fresh.append(json.dumps(record).encode())
        return fresh, last

    def _continues(self, last):
        """Whether the service still counts from where it was read; only asked after it was away."""
        if self._ask(last - 1, limit=1) or not self._ask(0, limit=1):
            return True
        self.faults.add("restarted")
        self.log.error(
            "%s: the service restarted its numbering and has nothing from %d on; it is read from its beginning",
            self.place, last,
        )  # fmt: skip
        return False

    def _number(self, record):
        number = record.get(self.field) if isinstance(record, dict) else None
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    def _ask(self, since, patience_s=0.0, limit=None):
        """One answer, after some tries with longer and longer pauses."""
        deadline, pause, tries = time.monotonic() + patience_s, 0.2, 0
        while True:
            tries += 1
            try:
                return self._answer(since, limit or self.limit)
            except _NoAnswerError:
                if tries >= _TRIES and time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def _answer(self, since, limit):
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.place}?since={since}&limit={limit}", timeout=_TIMEOUT_S) as answer:
                body = _body(answer)
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            raise _NoAnswerError("unreachable", f"no answer ({error!r})") from None
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _NoAnswerError("bad_answer", f"the answer is not JSON ({error})") from None
        if not isinstance(found, list):
            raise _NoAnswerError("bad_answer", f"the answer is not an array but {type(found).__name__}")
        return found

    def _offset(self, last):
        return {self.name: {"sequence": last}}


def _body(answer):
    """The whole answer, as long as it is of a size and comes in a time that one would expect."""
    deadline, parts, size = time.monotonic() + _ANSWER_S, [], 0
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise _NoAnswerError("bad_answer", f"the answer is larger than {_MOST_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _NoAnswerError("unreachable", f"the answer did not end in {_ANSWER_S:g} s")
    if answer.length:  # what was announced and did not come
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


class _NoAnswerError(Exception):
    """The service gave nothing that can be used; ``fault`` is what it is counted as."""

    def __init__(self, fault, text):
        super().__init__(text)
        self.fault = fault
