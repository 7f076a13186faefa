"""Interrupts, resumes and cancels uploads with the real client, and checks that a crash leaves none (docs/faults.md,
C10)."""
import hashlib
import os
import signal
import threading

import grpc

from wire import Api, message
from soon import soon

ROWS = b'{"text": "The keeper counted the boats."}\n' * 500


def begin(api, name, upload_id, content):
    """Begins a stream that sends this content and then hangs. Returns the call, and the event that ends the stream."""
    invoke, _ = api.bind(api.channel.stream_unary, "DatasetService", "UploadDataset")
    hang = threading.Event()

    def messages():
        yield message("UploadDatasetRequest", header={"name": name, "upload_id": upload_id})
        yield message("UploadDatasetRequest", chunk=content)
        hang.wait(120)

    return invoke.future(messages()), hang


def interrupt(server, name, upload_id, content):
    api = Api(server.grpc)
    call, hang = begin(api, name, upload_id, content)
    soon(lambda: any(one["id"] == upload_id and one["bytes"] == len(content) for one in server.json("uploads", "list")["uploads"]))
    call.cancel()
    hang.set()
    soon(lambda: [one["state"] for one in server.json("uploads", "list")["uploads"] if one["id"] == upload_id] == ["interrupted"])
    api.close()


def test_C10_an_interrupted_upload_is_resumed_by_another_client(make_server, tmp_path):
    server = make_server()
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ROWS)
    interrupt(server, "page", "mine", ROWS[:10_001])
    (upload,) = server.json("uploads", "list")["uploads"]
    assert upload == {"id": "mine", "kind": "dataset", "state": "interrupted", "name": "page", "bytes": 10_001, "files": 1,
                      "principal": "local"}
    uploaded = server.json("datasets", "upload", file, "--name", "page", "--resume", "mine")
    assert uploaded["sha256"] == hashlib.sha256(ROWS).hexdigest() and uploaded["rows"] == 500
    assert server.json("uploads", "list")["uploads"] == [] and os.listdir(server.state / "uploads") == []
    gone = server.run("datasets", "upload", file, "--name", "other", "--resume", "mine", check=False)
    assert gone.returncode == 3 and "UPLOAD" in gone.stderr


def test_C10_a_cancelled_upload_ends_its_stream_and_frees_the_disk(make_server):
    server = make_server()
    api = Api(server.grpc)
    call, hang = begin(api, "page", "mine", ROWS)
    soon(lambda: server.json("uploads", "list")["uploads"])
    assert server.json("uploads", "cancel", "mine") == {"id": "mine", "cancelled": True}
    assert call.exception(timeout=60).code() == grpc.StatusCode.CANCELLED, "although its client sends nothing"
    hang.set()
    assert os.listdir(server.state / "uploads") == []
    assert server.run("uploads", "cancel", "mine", check=False).returncode == 3


def test_C10_a_crash_leaves_nothing_of_an_upload(make_server):
    server = make_server()
    interrupt(server, "page", "mine", ROWS)
    assert os.listdir(server.state / "uploads")
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.start()
    assert server.json("uploads", "list")["uploads"] == [] and os.listdir(server.state / "uploads") == []


def test_C10_upload_that_is_not_resumed_expires(make_server):
    server = make_server("--upload_kept_s", "0.5")
    limits = server.json("server", "info")["limits"]
    assert limits["upload_kept"] == "0.500s"
    api = Api(server.grpc)
    call, hang = begin(api, "page", "mine", ROWS)
    soon(lambda: os.listdir(server.state / "uploads"))
    call.cancel()
    hang.set()
    soon(lambda: os.listdir(server.state / "uploads") == [])


def test_C10_bytes_of_one_principal_are_bounded(make_server, tmp_path):
    server = make_server("--max_upload_bytes_per_principal", "10000")
    interrupt(server, "page", "mine", ROWS[:6000])
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ROWS[:4200])
    refused = server.run("datasets", "upload", file, "--name", "other", check=False)
    assert refused.returncode == 7 and "UPLOAD_QUOTA" in refused.stderr
    server.run("uploads", "cancel", "mine")
    server.run("datasets", "upload", file, "--name", "other")
