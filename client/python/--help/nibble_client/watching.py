"""The state of a watch of a job, without I/O: which events have arrived, and which request brings the missing ones."""
from __future__ import annotations

import collections

from nibble_client import v1
from nibble_client.errors import malformed

_PAGE_EVENTS = 1000
# A watch fails after this number of consecutive streams that end with OK without a new event or the job's end.
_MAX_IDLE_ENDS = 5
FINAL = frozenset((v1.JOB_STATE_SUCCEEDED, v1.JOB_STATE_FAILED, v1.JOB_STATE_CANCELLED))


class JobCursor:
    """The place in the events of one job. Each event is taken once, in order."""

    def __init__(self, job: str, after_sequence: int) -> None:
        self.job_name = job
        self.last = after_sequence
        self.final = False  # every event of the job has been taken
        self.job: v1.Job | None = None  # the final job, set by the watch
        # Sequences of the last page of the log that are not below the event before which the page was read.
        self._ahead: collections.deque[int] = collections.deque()
        self._read_before = 0  # the log has no missing event before this sequence
        self._over_at_start = False
        self._last_at_start = 0
        self._had = after_sequence
        self._idle_ends = 0

    def request(self) -> v1.WatchJobRequest:
        """The request of the next stream."""
        self._over_at_start = False
        self._had = self.last
        return v1.WatchJobRequest(name=self.job_name, after_sequence=self.last)

    def take(self, event: v1.JobEvent) -> bool:
        """Takes an event of a stream whose missing events have been read. Returns whether it is new."""
        if event.WhichOneof("event") == "snapshot":
            self._over_at_start = event.snapshot.job.state in FINAL
            self._last_at_start = event.snapshot.last_sequence
            return False
        if event.sequence < 1:
            raise malformed("an event without a sequence")
        if event.sequence <= self.last:
            return False  # seen on an earlier connection
        self.last = event.sequence
        if event.WhichOneof("event") == "state":
            self.final = event.state.to in FINAL
        return True

    def missing_before(self, event: v1.JobEvent) -> v1.ListJobEventsRequest | None:
        """The request for events that the stream left out before this one; None if none is missing."""
        before = event.sequence
        while self._ahead and self._ahead[0] <= self.last:
            self._ahead.popleft()
        if self.last + 1 >= before or before == self._read_before or (self._ahead and self._ahead[0] == before):
            return None
        return v1.ListJobEventsRequest(name=self.job_name, after_sequence=self.last, page_size=_PAGE_EVENTS)

    def take_page(self, page: v1.ListJobEventsResponse, before: int) -> list[v1.JobEvent]:
        """The new events of a page below `before`. The server has removed those that are missing in the log too
        (--keep_step_events)."""
        had = self.last
        new = [event for event in page.events if event.sequence < before and self.take(event)]
        self._ahead = collections.deque(event.sequence for event in page.events if event.sequence >= before)
        if self._ahead:
            self._read_before = before
        elif self.last == had:
            raise malformed(f"the log of job {self.job_name} ends before event {self.last + 1}")
        return new

    def end_of_stream(self, lost: bool) -> None:
        """A stream has ended, with OK or because the connection was lost."""
        # The log of a final job is complete. After a broken stream, the next stream brings the missing events.
        if self._over_at_start and self.last >= self._last_at_start:
            self.final = True
        self._idle_ends = self._idle_ends + 1 if not lost and not self.final and self.last == self._had else 0
        if self._idle_ends >= _MAX_IDLE_ENDS:
            raise malformed(f"the server ended the watch of job {self.job_name}, which is not over")


class LogPlace:
    """The next byte of a trainer's log, which is also where the next connection begins."""

    def __init__(self, request: v1.WatchJobLogsRequest) -> None:
        self._attempt = 0  # 0: the server has not named one
        self.request = request

    def take(self, chunk: v1.JobLogChunk) -> bool:
        """Takes a chunk; returns whether it has bytes."""
        same = chunk.attempt == self._attempt
        if chunk.attempt < self._attempt or (same and chunk.offset != self.request.offset):
            raise malformed(f"byte {chunk.offset} of attempt {chunk.attempt} after byte {self.request.offset} of "
                            f"attempt {self._attempt}")
        self._attempt = chunk.attempt
        if self._attempt > 0:
            self.request.attempt = self._attempt
            self.request.offset = chunk.offset + len(chunk.data)
            self.request.ClearField("tail_lines")  # the offset replaces them, and the server refuses both
        return bool(chunk.data)
