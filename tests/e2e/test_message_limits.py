"""Messages that are too large, too many, or lie about their size (ops.md, L6): refused, and nothing is allocated for them."""
import struct
import time

import grpc
import pytest

from http2 import DATA, HEADERS, Connection, call_headers, frame

GROWTH = 32 << 20
MESSAGES = 1_000_000


def resident(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.fixture
def server(make_server):
    server = make_server()
    channel = grpc.insecure_channel(server.grpc)
    for _ in range(50):  # What a first call allocates is not counted.
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


def test_L6_message_of_four_mebibytes_and_one_byte(server):
    before = resident(server)
    channel = grpc.insecure_channel(server.grpc, [("grpc.max_send_message_length", -1)])
    create = channel.unary_unary("/nibble.v1.FineTuneService/CreateJob")
    upload = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset")
    for i in range(10):
        header = field(1, field(1, b"name%d" % i))  # an upload that is being given up holds its name a little longer
        assert code_of(lambda: create(field(2, b"x" * ((4 << 20) + 1)))) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert code_of(lambda: upload(iter([header, field(2, b"x" * ((4 << 20) + 1))]))) == grpc.StatusCode.RESOURCE_EXHAUSTED
    # Below gRPC's limit, above ours for a chunk.
    assert code_of(lambda: upload(iter([field(1, field(1, b"chunk")), field(2, b"x" * ((1 << 20) + 1))]))) in (
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    assert resident(server) - before < GROWTH
    assert server.json("datasets", "list")["datasets"] == []


def test_L6_a_million_tiny_messages(server):
    before = resident(server)
    channel = grpc.insecure_channel(server.grpc)
    upload = channel.stream_unary("/nibble.v1.DatasetService/UploadDataset")

    def messages():
        yield field(1, field(1, b"name"))
        for _ in range(MESSAGES):
            yield field(2, b"x")

    assert code_of(lambda: upload(messages())) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert resident(server) - before < GROWTH
    assert server.json("datasets", "list")["datasets"] == []


@pytest.mark.parametrize("claimed", [0x80000001, 0xFFFFFFFF])
def test_L6_claim_of_more_than_two_gibibytes(server, claimed):
    before = resident(server)
    connection = Connection(server.grpc)
    connection.send(frame(HEADERS, 4, 1, call_headers(b"/nibble.v1.ModelService/ListModels"))
                    + frame(DATA, 0, 1, b"\0" + struct.pack(">I", claimed) + b"x" * 1000))
    # gRPC waits for bytes that never come: what counts is that it keeps no room for them, and that others are served.
    time.sleep(2)
    assert resident(server) - before < GROWTH
    assert server.json("models", "list")["models"] == []
    connection.close()
