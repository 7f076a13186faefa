"""nibbled as a process: the files that it leaves, its signals, its log (docs/faults.md, C12)."""
import concurrent.futures
import datetime
import fcntl
import json
import os
import signal
import ssl
import stat
import subprocess
import threading
import time

import grpc
import pytest

import pki
from conftest import BIN, TRAIN, Server
from test_reliability import prepare
from test_security import NEW, Secure, handshake
from soon import soon

LIST_MODELS = "/nibble.v1.ModelService/ListModels"


def open_to_others(root):
    """Files and directories with a permission for others."""
    found = []
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode) and mode & 0o007:
                found.append(f"{path} {stat.filemode(mode)}")
    return found


@pytest.mark.parametrize("wrong, right", [("--state-dir", "--state_dir"), ("--grpc_adress=127.0.0.1:0", "--grpc_address"),
                                          ("--max-waiting-requests-per-principal", "--max_waiting_requests_per_principal"),
                                          ("--quantize", None)])
def test_an_unknown_flag_is_named_with_the_nearest_one(wrong, right):
    refused = subprocess.run([BIN / "nibbled", wrong, "x"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and refused.stdout == ""
    suggestion = f"; did you mean {right}?" if right else ""
    assert refused.stderr == f"unknown flag {wrong.split('=')[0]}{suggestion}\nRun with --help for more information.\n"


def test_c12_no_file_is_open_to_other_users(tmp_path, model_directory, text_file):
    server = Server(tmp_path / "state")
    server.program = ["sh", "-c", 'umask 0; exec "$@"', "sh", *server.program]
    server.start()
    try:
        prepare(server, model_directory, text_file)
        job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", *TRAIN, "--max-steps", 2,
                          "--output", "tuned")["id"]
        server.run("jobs", "watch", job)
        assert (server.state / "nibble.db").exists() and open_to_others(server.state) == []
        # The next start removes permissions that an earlier version left on files.
        assert server.stop() == 0
        for name in ("nibble.db", "nibble.db-wal", "nibble.db-shm"):
            if (server.state / name).exists():
                os.chmod(server.state / name, 0o644)
        server.start()
        assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"
        assert open_to_others(server.state) == []
    finally:
        server.stop()


def test_c12_sighup_reads_token_and_tls_files_and_ends_nothing(tmp_path):
    rejected = "token file rejected; the last valid one stays in use"
    secure = Secure(tmp_path)
    try:
        # No call arrives: the server looks by itself, and on a signal.
        for text in ("not a token file\n", "{}\n"):
            before = len(secure.server.logged(rejected))
            (secure.folder / "tokens").write_text(text)
            [entry] = soon(lambda: secure.server.logged(rejected)[before:])
            assert entry["level"] == "error" and "line 1" in entry["error"]
            secure.server.process.send_signal(signal.SIGHUP)
            soon(lambda: len(secure.server.logged("reading TLS and token files again")) == before + 1)
        secure.run("server", "info")
        assert len(secure.server.logged(rejected)) == 2, "once for each content"
        # A rejected file that then goes missing is logged once too, however often the server looks.
        (secure.folder / "tokens").unlink()
        soon(lambda: secure.server.logged(rejected)[2:])
        for looks in range(3, 6):
            secure.server.process.send_signal(signal.SIGHUP)
            soon(lambda: len(secure.server.logged("reading TLS and token files again")) == looks)
        assert len(secure.server.logged(rejected)) == 3
        assert secure.server.process.poll() is None
    finally:
        assert secure.server.stop() == 0


def test_c12_sighup_serves_a_new_certificate(tmp_path):
    secure = Secure(tmp_path)

    def replace(certificate, key):
        """Returns a function that lists the times at which the server began to use new files."""
        used = len(secure.server.logged("new TLS files are in use"))
        pki.put_in_place(tmp_path / "served", certificate, key)
        return lambda: [entry["time"] for entry in secure.server.logged("new TLS files are in use")[used:]]

    try:
        first, second = (secure.ca.issue(name, "DNS:localhost,IP:127.0.0.1") for name in ("first", "second"))
        by_timer = replace(*first)
        soon(by_timer)
        # The server has just looked at the files; without the signal it looks again 4 s later (kTlsLook).
        by_signal = replace(*second)
        secure.server.process.send_signal(signal.SIGHUP)
        soon(by_signal)
        took = datetime.datetime.fromisoformat(by_signal()[0]) - datetime.datetime.fromisoformat(by_timer()[0])
        assert took < datetime.timedelta(seconds=3), took
        wanted = ssl.PEM_cert_to_DER_cert(second[0].read_text())
        soon(lambda: handshake(secure.server.grpc, *NEW, secure.ca.certificate, secure.client)[1] == wanted)
        secure.run("server", "info")
    finally:
        assert secure.server.stop() == 0


def test_r9_a_start_below_the_watermark_is_logged(tmp_path):
    wanted = 1 << 60
    server = Server(tmp_path / "state", "--min_free_bytes", wanted)
    server.start()
    try:
        [low] = server.logged("free disk space is below the watermark: new jobs, models and datasets are refused")
        assert low["level"] == "warning" and low["wanted_bytes"] == wanted and 0 < low["free_bytes"] < wanted
        assert 0 < server.metrics()['nibble_disk_free_bytes{volume="state"}'] < wanted
    finally:
        server.stop()


def test_numbers_in_the_log_are_numbers(tmp_path):
    server = Server(tmp_path / "state", "--threads", 2)
    server.start()
    try:
        server.run("models", "list")
        [ready] = server.logged("ready")
        assert ready["threads"] == 2 and ready["grpc_port"] == int(server.grpc.rpartition(":")[2])
        soon(lambda: server.logged("rpc"))
        assert all(isinstance(call["ms"], int) for call in server.logged("rpc"))
    finally:
        server.stop()


def test_c12_stalled_log_pipe_stops_nothing(tmp_path):
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    read = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, 4096)
    server = Server(tmp_path / "state")
    server.program = ["sh", "-c", f'exec "$@" 2>{fifo}', "sh", *server.program]
    server.start()
    os.set_blocking(read, True)
    try:
        with grpc.insecure_channel(server.grpc) as channel, concurrent.futures.ThreadPoolExecutor(8) as pool:
            call = channel.unary_unary(LIST_MODELS)
            # Each call logs a line of about 200 bytes: together more than pipe and queue hold.
            assert all(answer == b"" for answer in pool.map(lambda _: call(b"", timeout=30), range(9000)))
        dropped = server.metrics()["nibble_log_lines_dropped_total"]
        assert dropped > 0
        lines = []

        def follow():
            with os.fdopen(read, "rb") as log:
                for line in log:
                    lines.append(json.loads(line))

        reader = threading.Thread(target=follow)
        reader.start()
        soon(lambda: any("dropped" in line["message"] for line in lines))
        with grpc.insecure_channel(server.grpc) as channel:
            channel.unary_unary(LIST_MODELS)(b"", timeout=30)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
        reader.join(60)
        reported = sum(int(line["lines"]) for line in lines if "dropped" in line["message"])
        assert reported >= dropped and lines[-1]["message"] == "stopped"
    finally:
        server.stop()
