"""Calls of a soak, each with a deadline, counted by how they ended."""
import collections
import contextlib
import http.client
import threading
import time

import grpc

from wire import Api

DEADLINE_S = 30
LONG_S = 120  # for conversions, imports and generations that queue behind others
Code = grpc.StatusCode
UNANSWERED = {Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.CANCELLED}
# Besides OK, this workload may get these codes while others pause, delete and unload what it names. Any other code is a
# fault.
REFUSALS = {Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED, Code.ALREADY_EXISTS, Code.ABORTED}


class Life:
    """Whether the server is up. A call that was in progress when the server was killed counts as cut, not as
    unanswered."""

    def __init__(self):
        self.number, self.up = 0, threading.Event()  # `number` is odd between a kill and the next start
        self.up.set()

    def kill(self):
        self.up.clear()
        self.number += 1

    def start(self):
        self.number += 1
        self.up.set()


class Calls:
    """Thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.seconds = collections.defaultdict(list)  # kind -> duration of each answered call
        self.ends = collections.defaultdict(collections.Counter)  # kind -> ok, refused, cut, unanswered, faulty
        self.examples = []  # errors of unanswered and faulty calls

    def count(self, kind, end, seconds, error=None):
        with self.lock:
            self.ends[kind][end] += 1
            if end in ("ok", "refused"):
                self.seconds[kind].append(seconds)
            if end in ("unanswered", "faulty"):
                self.examples.append(f"{kind} after {seconds:.2f} s: {error!r}"[:600])

    def total(self, end):
        return sum(ends[end] for ends in self.ends.values())

    def table(self):
        """One row for each kind of call."""
        rows = []
        for kind in sorted(self.ends):
            took = sorted(self.seconds[kind]) or [0.0]
            rows.append({"kind": kind, **{end: self.ends[kind][end] for end in ("ok", "refused", "cut", "unanswered", "faulty")},
                         "p50_ms": took[len(took) // 2] * 1e3, "p99_ms": took[len(took) * 99 // 100] * 1e3, "max_ms": took[-1] * 1e3})
        return rows


class CountedApi(Api):
    """An Api for one thread. Reconnects after a kill of the server. Counts each call; raises its error."""

    def __init__(self, address, calls, life):
        super().__init__(address)
        self.address, self.calls, self.life, self.connected = address, calls, life, life.number

    def renew(self):
        if self.connected != self.life.number:
            self.life.up.wait()
            self.close()
            self.connected = self.life.number
            super().__init__(self.address)

    @contextlib.contextmanager
    def counted(self, kind):
        """Counts a call. Yields a list: its first number, if the caller adds one, counts as the call's duration."""
        self.renew()
        began, life, durations = time.monotonic(), self.life.number, []
        try:
            yield durations
            end, error = "ok", None
        except (grpc.RpcError, OSError, http.client.HTTPException) as failure:
            error, code = failure, failure.code() if isinstance(failure, grpc.RpcError) else Code.UNAVAILABLE
            # The last answer of a killed server may be incomplete: the call counts as cut whatever its code.
            cut = life % 2 or life != self.life.number
            end = "cut" if cut else "refused" if code in REFUSALS else "unanswered" if code in UNANSWERED else "faulty"
        self.calls.count(kind, end, durations[0] if durations else time.monotonic() - began, error)
        if error is not None:
            raise error

    def call(self, service, method, request=None, /, timeout=DEADLINE_S, **fields):
        with self.counted(method):
            return super().call(service, method, request, timeout=timeout, **fields)

    def read(self, service, method, /, timeout=LONG_S, **fields):
        """All messages of a stream."""
        with self.counted(method):
            return list(super().stream(service, method, timeout=timeout, **fields))

    def look_at(self, service, method, seconds, /, timeout=LONG_S, **fields):
        """Reads a stream for `seconds`, or until its first message if that is later, and cancels it. Counts the time to
        the first message."""
        with self.counted(method) as durations:
            began, messages, ended = time.monotonic(), [], threading.Event()
            call = super().stream(service, method, timeout=timeout, **fields)

            def leave():
                ended.wait(seconds)
                while not messages and not ended.wait(0.05):
                    pass
                call.cancel()
            watcher = threading.Thread(target=leave, daemon=True)
            watcher.start()
            try:
                for one in call:
                    durations[:] = durations or [time.monotonic() - began]
                    messages.append(one)
            except grpc.RpcError as error:
                if error.code() != Code.CANCELLED or not messages:
                    raise
            finally:
                ended.set()
                watcher.join()
            return messages

    def send(self, service, method, messages, timeout=LONG_S):
        with self.counted(method):
            return self.bind(self.channel.stream_unary, service, method)[0](messages, timeout=timeout)
