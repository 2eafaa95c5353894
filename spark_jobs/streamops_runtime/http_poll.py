"""A web service as a stream: ``GET place?since=SEQUENCE&limit=N`` gives a JSON array in the order of its sequence.

The service keeps its records, so the stream can be read again from any sequence number. A service that does not answer,
or answers something else, is counted and asked again later; it never ends the job. A sequence number that comes twice
is left out, and one that is skipped is counted and logged. A service that restarts its numbering is read from its
beginning.

Where a batch ends is known from the answers alone. The records of a small batch are handed to its tasks, so that one
whose service goes away meanwhile is still written. Of a large one, and of one that is read again, each task asks for a
range of sequence numbers itself.
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
_HANDED = 1 << 20  # bytes of records that are handed to tasks; Spark warns of a task of so many


class HttpSource(PulledSource):
    """Options ``limit`` (records of one answer) and ``sequence`` (the field that counts)."""

    @classmethod
    def name(cls):
        """The name that ``format`` takes."""
        return "streamops_http"

    def streamReader(self, schema):
        """The reader."""
        return HttpReader(self.options)


class HttpReader(PulledReader):
    """Offsets: ``{source: {"sequence": last}}``, the last sequence number that was read."""

    def __init__(self, options):
        super().__init__(options)
        self.limit = int(options.get("limit", 200))
        self.field = options.get("sequence", "sequence")
        self.doubtful = True  # whether the service may be another one than before
        self._held = None  # of the batch that was planned last: its first and last sequence number, and its records

    def initialOffset(self):
        """Where a query without a checkpoint begins."""
        if "sequence" in self.offsets:
            return self._offset(int(self.offsets["sequence"]))
        last = 0
        while self.start == "latest" and (found := self._ask(last, _AGAIN_S)):
            last = max(last, *(self._number(record) or 0 for record in found))
        return self._offset(last)

    def plan(self, start):
        """The last sequence number of at most ``most`` records, give or take an answer."""
        begin = last = start[self.name]["sequence"]
        count, size, held = 0, 0, []
        try:
            if self.doubtful and last and not self._continues(last):
                begin = last = 0
            self.doubtful = False
            while count < self.most:
                records = self._ask(last)
                fresh = self._fresh(records, last)
                if fresh:
                    last = fresh[-1][0]
                count += len(fresh)
                size += sum(len(value) for _, value in fresh)
                held = held + [value for _, value in fresh] if size <= _HANDED else []
                if len(records) < self.limit or not fresh:
                    break
        except _NoAnswerError as error:
            self.doubtful = True
            self.faults.add(error.fault)
            self.log.warning("%s: %s; asked again with the next batch", self.place, error)
        self._held = (begin, last, held) if held else None
        if count:
            self.log.debug("Added %d pings. Highest sequence number is: %d", count, last)
        return self._offset(last)

    def split(self, start, end):
        """Records, or ranges of sequence numbers: after which, and up to which. A part is a whole answer at least."""
        begin, last = start[self.name]["sequence"], end[self.name]["sequence"]
        begin = 0 if last < begin else begin  # the service started over in this batch
        if self._held and self._held[:2] == (begin, last):
            values = self._held[2]
            size = self._part(len(values))
            return [values[at : at + size] for at in range(0, len(values), size)]
        size = self._part(last - begin)
        return [(at, min(at + size, last)) for at in range(begin, last, size)]

    def values(self, part):
        """Records, asked for unless they were handed over."""
        if isinstance(part, list):
            yield from part
            return
        last, end = part
        while last < end:
            fresh = self._fresh(self._ask(last, _AGAIN_S), last, told=False)
            if not fresh:
                self.log.error("%s: sequence numbers %d to %d are not there any more", self.place, last + 1, end)
                return
            for last, value in fresh:
                if last > end:
                    return
                yield value

    def _part(self, count):
        """How many of so many records a part has."""
        return -(-count // self.parts // self.limit) * self.limit or self.limit

    def _fresh(self, records, last, told=True):
        """Sequence number and value of each new record; what is wrong is counted and logged, unless it was before."""
        fresh = []
        for record in records:
            number = self._number(record)
            if told:
                self._judge(record, number, last)
            if number is not None and number > last:
                last = number
                fresh.append((number, json.dumps(record).encode()))
        return fresh

    def _judge(self, record, number, last):
        if number is None:
            self.faults.add("unnumbered")
            self.log.error("%s: a record has no whole number as %s: %.200s", self.place, self.field, record)
        elif number <= last:
            self.faults.add("repeat")
            self.log.warning("%s: sequence number %d came again after %d; left out", self.place, number, last)
        elif number > last + 1 and last:
            self.faults.add("gap", number - last - 1)
            self.log.error("%s: sequence numbers %d to %d are missing", self.place, last + 1, number - 1)

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
