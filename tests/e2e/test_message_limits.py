"""Messages that are too large, too many, or claim a false size (docs/faults.md, L6) are refused, and take little
memory; one that does not end takes little more than the quota."""
import pathlib
import re
import struct

import grpc
import pytest

from http2 import DATA, GOAWAY, HEADERS, RST_STREAM, Connection, call_headers, frame

GROWTH = 32 << 20
MESSAGES = 1_000_000
ENHANCE_YOUR_CALM = 11  # in HTTP/2; a gRPC client maps it to RESOURCE_EXHAUSTED (PROTOCOL-HTTP2.md, Errors)


def resident(server, what="VmRSS"):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what}")


class Growth:
    """Growth of the server's memory since this object was made: its peak, also after the memory is freed."""

    def __init__(self, server):
        self.server = server
        reset = pathlib.Path(f"/proc/{server.process.pid}/clear_refs")
        if reset.exists():  # without it the peak until now counts too, which only makes a test stricter
            reset.write_text("5")
        self.before = resident(server)

    def peak(self):
        return resident(self.server, "VmHWM") - self.before


@pytest.fixture
def server(make_server):
    server = make_server()
    channel = grpc.insecure_channel(server.grpc)
    for _ in range(50):  # Memory that first calls allocate must not count.
        channel.unary_unary("/nibble.v1.ModelService/ListModels")(b"")
    return server


def field(number, payload):
    """A length-delimited protobuf field."""
    size, digits = len(payload), b""
    while True:
        digits += bytes([size & 127 | (128 if size > 127 else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + digits + payload


def code_of(call):
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code()


def test_L6_message_of_four_mebibytes_and_one_byte_is_refused(server):
    growth = Growth(server)
    channel = grpc.insecure_channel(server.grpc, [("grpc.max_send_message_length", -1)])
    create = channel.unary_unary("/nibble.v1.FineTuneService/CreateJob")
    upload = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset")
    for i in range(10):
        header = field(1, field(1, b"name-%d" % i))
        assert code_of(lambda: create(field(2, b"x" * ((4 << 20) + 1)))) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert code_of(lambda: upload(iter([header, field(2, b"x" * ((4 << 20) + 1))]))) == grpc.StatusCode.RESOURCE_EXHAUSTED
    # Below gRPC's limit, above ours for a chunk.
    assert code_of(lambda: upload(iter([field(1, field(1, b"chunk")), field(2, b"x" * ((1 << 20) + 1))]))) in (
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    assert growth.peak() < GROWTH
    assert server.json("datasets", "list")["datasets"] == []


def test_L6_a_million_tiny_messages_are_refused(server):
    growth = Growth(server)
    channel = grpc.insecure_channel(server.grpc)
    upload = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset")

    def messages():
        yield field(1, field(1, b"name"))
        for _ in range(MESSAGES):
            yield field(2, b"x")

    assert code_of(lambda: upload(messages())) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert growth.peak() < GROWTH
    assert server.json("datasets", "list")["datasets"] == []


def claim(connection, size):
    """Begins a call whose message claims to have `size` bytes."""
    connection.send(frame(HEADERS, 4, 1, call_headers(b"/nibble.v1.ModelService/ListModels"))
                    + frame(DATA, 0, 1, b"\0" + struct.pack(">I", size)))


def trailer_code(payload):
    """The status code in trailers: gRPC's core writes names and digits uncompressed (RFC 7541, 6.2), and in full the
    first time."""
    (digits,) = re.findall(rb"\x0bgrpc-status[\x01\x02](\d{1,2})", payload)
    return int(digits)


@pytest.mark.parametrize("claimed", [0x80000001, 0xFFFFFFFF])
def test_L6_claim_of_more_than_two_gibibytes_allocates_nothing(server, claimed):
    growth = Growth(server)
    connections = [Connection(server.grpc) for _ in range(20)]
    for connection in connections:
        claim(connection, claimed)
        connection.send(frame(DATA, 0, 1, b"x" * 1000))
    assert server.json("models", "list")["models"] == []
    assert growth.peak() < GROWTH, "a claim alone must cost nothing"
    for connection in connections:
        connection.send(frame(DATA, 1, 1, b""))  # END_STREAM, in the middle of the message
        kind, payload = next(((kind, payload) for kind, flags, stream, payload in connection.frames(10)
                              if kind in (RST_STREAM, GOAWAY) or kind == HEADERS and flags & 1), (None, b""))
        assert kind is not None, "the call did not end"
        if kind == HEADERS:
            # gRPC 1.51 gets no message, and so no length to refuse: its callback API answers UNIMPLEMENTED to a request
            # that it cannot read (docs/adr/0011-a-false-message-length-costs-only-the-bytes-that-are-sent.md).
            assert trailer_code(payload) in (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], grpc.StatusCode.UNIMPLEMENTED.value[0])
        connection.close()


@pytest.mark.parametrize("quota", [16 << 20, pytest.param(None, marks=pytest.mark.full)])
def test_L6_message_that_does_not_end_is_cut_by_the_quota(make_server, quota):
    """gRPC 1.51 checks the size of a message only when it is complete; until then --rpc_memory_bytes (256 MiB) bounds
    the message."""
    server = make_server(*(["--rpc_memory_bytes", quota] if quota else []))
    quota = quota or 256 << 20
    server.json("models", "list")
    growth = Growth(server)
    for attempt in range(2):  # the second costs no more than the first
        connection = Connection(server.grpc)
        claim(connection, 0x80000001)
        cut, sent = connection.flood(1, 4 * quota, used=5)
        grown = growth.peak()
        print(f"quota {quota >> 20} MiB, attempt {attempt}: {sent / (1 << 20):.1f} MiB sent, {grown / (1 << 20):.1f} MiB taken at most")
        assert cut in (RST_STREAM, GOAWAY, "closed"), "four times the quota for a message of at most 4 MiB"
        assert cut == "closed" or connection.cut_code == ENHANCE_YOUR_CALM
        assert 4 << 20 < sent < 2 * quota, "the quota did not end the stream"
        assert grown < quota + GROWTH // 2
        assert server.json("models", "list")["models"] == [], "other calls are answered"
        connection.close()


def test_L6_client_gets_resource_exhausted_when_the_quota_cuts_its_message(make_server):
    quota = 16 << 20
    server = make_server("--rpc_memory_bytes", quota)
    channel = grpc.insecure_channel(server.grpc, [("grpc.max_send_message_length", -1)])
    create = channel.unary_unary("/nibble.v1.FineTuneService/CreateJob")
    message = field(2, b"x" * (4 * quota))
    for _ in range(3):
        # The quota also closes idle connections, which gRPC then opens again: a call that begins just then gets
        # UNAVAILABLE.
        for _ in range(5):
            code = code_of(lambda: create(message, timeout=60))
            if code != grpc.StatusCode.UNAVAILABLE:
                break
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.json("models", "list")["models"] == [], "other calls are answered"
