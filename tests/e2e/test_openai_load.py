"""Many, slow and hostile clients of the listener of OpenAI's API."""
import http.client
import json
import resource
import selectors
import socket
import time

import pytest

from conftest import Server, import_small
from soon import soon

BODY = json.dumps({"model": "small-int8", "prompt": "The keeper", "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
REQUEST = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)) + BODY


def connect(server, receive_bytes=None):
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    host, port = server.openai.rsplit(":", 1)
    client.connect((host, int(port)))
    return client


def status_of(server):
    """Values of /proc/PID/status: memory in KiB, number of threads."""
    text = open(f"/proc/{server.process.pid}/status").read()
    return {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.startswith(("VmRSS", "Threads"))}


@pytest.fixture
def server(request, make_server, model_directory):
    slots = getattr(request, "param", 16)
    server = make_server("--openai_address", "127.0.0.1:0", "--max_waiting_requests", 2000, "--max_running_requests", slots, "--slow_reader_s", 2)
    import_small(server, model_directory)
    return server


def complete(server, **fields):
    connection = http.client.HTTPConnection(server.openai, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"model": "small-int8", "prompt": "a", "max_tokens": 2, **fields}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    connection.close()
    return answer.status


@pytest.mark.parametrize("server", [1], indirect=True)
def test_1024_streams_cost_no_threads_and_little_memory(server):
    """All streams are open at once: one runs, most others wait in the queue with their HTTP exchange open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert complete(server) == 200  # the model is loaded
    before = status_of(server)
    streams = [connect(server) for _ in range(1024)]
    try:
        for stream in streams:
            stream.sendall(REQUEST)
        soon(lambda: server.metrics()['nibble_requests_waiting{model="small-int8"}'] >= 700, "the streams wait", 30)
        during = status_of(server)
        assert during["Threads"] <= before["Threads"] + 8  # gRPC adds some of its own while many calls begin
        per_stream = (during["VmRSS"] - before["VmRSS"]) / 1024
        print(f"{per_stream:.1f} KiB per stream, {before['Threads']} -> {during['Threads']} threads")
        assert per_stream <= 64
        selector = selectors.DefaultSelector()
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ, bytearray())
        ended, deadline = 0, time.monotonic() + 250
        while ended < 1024 and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                piece = key.fileobj.recv(1 << 16)
                key.data.extend(piece)
                if not piece or key.data.endswith(b"0\r\n\r\n"):
                    assert b"data: [DONE]\n\n" in key.data, bytes(key.data[-300:])
                    selector.unregister(key.fileobj)
                    ended += 1
        assert ended == 1024
    finally:
        for stream in streams:
            stream.close()
    assert complete(server) == 200


def test_slow_readers_lose_their_streams_and_no_one_else(server):
    assert complete(server) == 200
    large = json.dumps({"model": "small-int8", "prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 20,
                        "n": 4}).encode()
    slow = []
    for _ in range(3):
        client = connect(server, receive_bytes=4096)
        client.sendall(REQUEST[:REQUEST.index(b"Content-Length")] + b"Content-Length: %d\r\n\r\n" % len(large) + large)
        slow.append(client)
    soon(lambda: server.metrics()['nibble_requests_running{model="small-int8"}'] == 3, "the slow ones run", 20)
    assert complete(server) == 200
    soon(lambda: server.metrics()['nibble_requests_running{model="small-int8"}'] == 0, "the slow ones have lost their slots", 30)
    soon(lambda: [entry["reason"] for entry in server.logged("rpc")].count("SLOW_CONSUMER") == 3, "their calls have ended for this reason", 30)
    for client in slow:
        client.close()


def test_half_sent_requests_do_not_keep_others_waiting(server):
    halves = []
    for i in range(300):
        client = connect(server)
        client.sendall(REQUEST[:20 + i % len(REQUEST) // 2])
        halves.append(client)
    began = time.monotonic()
    assert complete(server) == 200
    assert time.monotonic() - began < 10
    for client in halves:
        client.close()
    assert complete(server) == 200


@pytest.mark.parametrize("raw", [
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nabcde",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /v1/completions HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n" * 1000, b"\x00" * 5000,
    b"GET " + b"/" * 70000 + b" HTTP/1.1\r\n\r\n", b"GET /v1/models HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
    b"GET /v1/models/%00%2e%2e%2f HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /v1/models/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xe9\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \ta\r\n\r\n"])
def test_malformed_bytes_are_refused_or_closed(shared_openai, raw):
    client = connect(shared_openai)
    client.sendall(raw)
    client.shutdown(socket.SHUT_WR)
    answer = b""
    while piece := client.recv(1 << 16):
        answer += piece
    client.close()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    if b"Authorization" in raw:
        assert answer.startswith(b"HTTP/1.1 401"), answer[:200]
    assert shared_openai.process.poll() is None


@pytest.fixture(scope="module")
def shared_openai(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("hostile") / "state", "--openai_address", "127.0.0.1:0").start()
    yield server
    server.stop()


@pytest.mark.parametrize("text", ['{"model":"m","prompt":' + "[" * 5000 + "]" * 5000 + "}", '{"model":"m","prompt":"' + "\\u0000" * 1000 + '"}',
                                  '{"model":"m","prompt":"p","n":1e308}', '{"model":"m","prompt":"p","logit_bias":{"99999999999":1}}',
                                  '{"model":"m","prompt":"p","stop":["' + "x" * 10000 + '"]}', '{"model":"../../etc","prompt":"p"}',
                                  '{"model":"m","prompt":[[],[1]]}', "null", "1", '"x"', "{}"])
def test_hostile_json_is_a_client_error(shared_openai, text):
    connection = http.client.HTTPConnection(shared_openai.openai, timeout=30)
    connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    connection.close()
    assert 400 <= answer.status < 500 and error["message"], text[:100]
