"""Runs nibble and grpcurl in another network namespace, over mutual TLS with a token: the whole path, and a watch whose
connection is cut. Needs root and `ip`; grpcurl comes with deploy/setup.sh --full."""
import base64
import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import threading

import pytest

from conftest import BIN, ROOT, TRAIN
from test_security import Secure
from soon import soon


class Namespace:
    """A separate network with one link to this one."""

    def __init__(self):
        number = os.getpid() % 250
        self.name = f"nibble{os.getpid()}"
        self.here, self.there = f"10.231.{number}.1", f"10.231.{number}.2"
        self.wire = f"nb{os.getpid() % 10000000}"
        self.ip("netns", "add", self.name)
        try:
            self.ip("link", "add", self.wire + "a", "type", "veth", "peer", "name", self.wire + "b")
            self.ip("link", "set", self.wire + "b", "netns", self.name)
            self.ip("addr", "add", self.here + "/30", "dev", self.wire + "a")
            self.ip("link", "set", self.wire + "a", "up")
            self.ip("-n", self.name, "addr", "add", self.there + "/30", "dev", self.wire + "b")
            self.ip("-n", self.name, "link", "set", self.wire + "b", "up")
            self.ip("-n", self.name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    @staticmethod
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def close(self):
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
        subprocess.run(["ip", "link", "del", self.wire + "a"], capture_output=True)

    def run(self, *command, timeout=300, **options):
        return subprocess.run(["ip", "netns", "exec", self.name, *map(str, command)], capture_output=True, text=True, timeout=timeout,
                              **options)


class Proxy:
    """Forwards connections to `target`. cut() closes all open ones; later ones are forwarded again."""

    def __init__(self, host, target):
        self.listener = socket.create_server((host, 0))
        self.address = f"{host}:{self.listener.getsockname()[1]}"
        self.target = target
        self.open, self.lock, self.accepted, self.bytes_back = [], threading.Lock(), 0, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            server = socket.create_connection((host, int(port)))
            with self.lock:
                self.open += [client, server]
                self.accepted += 1
            threading.Thread(target=self.copy, args=(client, server), kwargs={"back": False}, daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client), kwargs={"back": True}, daemon=True).start()

    def copy(self, source, sink, back):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
                self.bytes_back += len(data) if back else 0
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            for end in self.open:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.open.clear()


@pytest.fixture(scope="module")
def namespace():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the program ip, to make a network namespace")
    try:
        namespace = Namespace()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot make a network namespace: {error.stderr}")
    yield namespace
    namespace.close()


@pytest.fixture(scope="module")
def remote(namespace, tmp_path_factory):
    secure = Secure(tmp_path_factory.mktemp("remote"), "--reflection", names=f"IP:{namespace.here}", address=f"{namespace.here}:0")
    yield secure
    secure.server.stop()


def nibble(namespace, remote, *arguments, server=None):
    result = namespace.run(BIN / "nibble", "--server", server or remote.server.grpc, *remote.flags("train"), "--json", *arguments, env={
        "PATH": os.environ["PATH"]})
    assert result.returncode == 0, f"nibble {arguments}: exit {result.returncode}: {result.stderr}"
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_nibble_runs_the_whole_path(namespace, remote, model_directory, text_file):
    def run(*arguments):
        return nibble(namespace, remote, *arguments)

    run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    run("datasets", "upload", text_file, "--name", "page")
    job = ["--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 6, *TRAIN]
    lines = run("jobs", "create", *job, "--output", "tuned", "--watch")
    events = [line for line in lines if "sequence" in line]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert [event["state"] for event in events if event["type"] == "state"][-1] == "SUCCEEDED"
    run("models", "convert", "tuned", "--to", "int8", "--name", "tuned-int8")
    answer = run("generate", "tuned-int8", "--prompt", "The keeper of", "--max-tokens", 8, "--ignore-eos")[0]
    assert len(answer["token_ids"]) == 8


def test_nibble_plans_a_job(namespace, remote):
    """Uses the model and the dataset of test_nibble_runs_the_whole_path."""
    plan = nibble(namespace, remote, "jobs", "plan", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 6,
                  *TRAIN)[0]
    assert plan["max_steps"] == 6 and plan["memory_total_bytes"] == sum(plan["memory"].values()) > 0


def test_watch_that_loses_its_connection_neither_loses_nor_repeats_events(namespace, remote):
    """Uses the model and the dataset of test_nibble_runs_the_whole_path."""
    proxy = Proxy(namespace.here, remote.server.grpc)
    created = nibble(namespace, remote, "jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 40,
                     "--output", "watched", *TRAIN)[0]
    nibble(namespace, remote, "jobs", "get", created["id"], server=proxy.address)
    # The bytes of a handshake and an answer. Each cut waits for more bytes than these, because a watch that has received
    # nothing yet gives up after four attempts (ClientOptions.attempts).
    first_answer = proxy.bytes_back
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        watch = pool.submit(nibble, namespace, remote, "jobs", "watch", created["id"], server=proxy.address)
        cuts = 0
        while not watch.done():
            seen = proxy.bytes_back
            with contextlib.suppress(AssertionError):  # after 5 s it is cut anyway
                soon(lambda: watch.done() or proxy.bytes_back >= seen + first_answer + 1000, seconds=5)
            if not watch.done() and cuts < 8:
                proxy.cut()
                cuts += 1
    events = [line for line in watch.result() if "sequence" in line]
    assert proxy.accepted >= 3, "the connection was not cut often enough to show anything"
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    again = [line for line in nibble(namespace, remote, "jobs", "watch", created["id"]) if "sequence" in line]
    assert events == again
    assert [event["step"] for event in events if event["type"] == "step"] == list(range(1, 41))
    assert events[-1]["type"] == "state" and events[-1]["state"] == "SUCCEEDED"


@pytest.fixture(scope="module")
def grpcurl(namespace, remote):
    program = shutil.which("grpcurl") or ROOT / "build/deps/tools/bin/grpcurl"
    if not os.access(program, os.X_OK):
        pytest.skip("grpcurl is not there: deploy/setup.sh --full builds it")
    certificate, key = remote.client

    def call(method, *messages, token="train", check=True):
        """Returns the answers, or the whole result with check=False."""
        header = ["-H", "authorization: Bearer ${TOKEN}", "-expand-headers"] if token else []
        data = ["-d", "@"] if messages else []
        result = namespace.run(program, "-cacert", remote.ca.certificate, "-cert", certificate, "-key", key, *header, *data,
                               remote.server.grpc, method, input="\n".join(map(json.dumps, messages)), env={
                                   "TOKEN": remote.tokens[token].read_text().strip() if token else "", "PATH": os.environ["PATH"]})
        if not check:
            return result
        assert result.returncode == 0, f"{method}: {result.stderr}"
        if method == "list":
            return result.stdout.split()
        answers, decoder, text = [], json.JSONDecoder(), result.stdout.strip()
        while text:
            answer, end = decoder.raw_decode(text)
            answers.append(answer)
            text = text[end:].lstrip()
        return answers

    return call


def test_grpcurl_needs_the_token_too(grpcurl):
    assert "TOKEN_MISSING" in grpcurl("list", token=None, check=False).stderr
    services = grpcurl("list")
    assert {"nibble.v1.FineTuneService", "nibble.v1.InferenceService", "google.longrunning.Operations",
            "grpc.health.v1.Health"} <= set(services)
    drain = grpcurl("nibble.v1.ServerService/Drain", {}, check=False)
    assert drain.returncode != 0 and "PermissionDenied" in drain.stderr


def test_grpcurl_plans_a_job(grpcurl):
    """Uses the model and the dataset of test_nibble_runs_the_whole_path."""
    spec = {"baseModel": "small", "trainDataset": "page", "qlora": {"r": 4, "alpha": 8}, "run": {"maxSteps": "4"}}
    operation = grpcurl("nibble.v1.FineTuneService/PlanJob", {"spec": spec})[0]
    done = grpcurl("google.longrunning.Operations/WaitOperation", {"name": operation["name"], "timeout": "120s"})[0]
    assert int(done["response"]["memory_total_bytes"]) > 0


def test_grpcurl_runs_the_whole_path(grpcurl, model_directory, text_file):
    def wait(operation):
        done = grpcurl("google.longrunning.Operations/WaitOperation", {"name": operation["name"], "timeout": "120s"})[0]
        assert done.get("done") and "error" not in done, done
        return done

    rows = text_file.read_bytes()
    grpcurl("nibble.v1.DatasetService/UploadDataset", {"header": {"name": "page2"}}, {"chunk": base64.b64encode(rows).decode()},
            {"finish": {"sha256": hashlib.sha256(rows).hexdigest()}})
    messages, digest = [{"header": {"name": "small2"}}], hashlib.sha256()
    for path in sorted(model_directory.iterdir()):
        data = path.read_bytes()
        digest.update(data)
        messages.append({"file": {"path": path.name, "sizeBytes": len(data)}})
        messages += [{"chunk": base64.b64encode(data[at:at + (1 << 20)]).decode()} for at in range(0, len(data), 1 << 20)]
    messages.append({"finish": {"sha256": digest.hexdigest()}})
    upload = grpcurl("nibble.v1.ModelService/UploadModel", *messages)[0]
    wait(grpcurl("nibble.v1.ModelService/ImportModel", {"name": "small2", "uploadId": upload["upload_id"], "dtype": "MODEL_FORMAT_F32"})[0])
    spec = {"baseModel": "small2", "trainDataset": "page2", "qlora": {"r": 4, "alpha": 8}, "optim": {"lr": 5e-3},
            "data": {"maxSeqLen": 96}, "run": {"maxSteps": "4", "microBatch": 2}, "publish": {"outputModel": "tuned2"}}
    job = grpcurl("nibble.v1.FineTuneService/CreateJob", {"spec": spec})[0]
    events = [event for event in grpcurl("nibble.v1.FineTuneService/WatchJob", {"name": job["name"]}) if "sequence" in event]
    assert [int(event["sequence"]) for event in events] == list(range(1, len(events) + 1))
    assert grpcurl("nibble.v1.FineTuneService/GetJob", {"name": job["name"]})[0]["state"] == "JOB_STATE_SUCCEEDED"
    wait(grpcurl("nibble.v1.ModelService/ConvertModel", {"model": "tuned2", "target": "MODEL_FORMAT_INT8", "name": "tuned2-int8"})[0])
    wait(grpcurl("nibble.v1.ModelService/LoadModel", {"name": "tuned2-int8"})[0])
    answer = grpcurl("nibble.v1.InferenceService/Generate", {"model": "tuned2-int8", "text": "The keeper of", "stopping": {
        "maxTokens": 8, "ignoreEos": True}})[0]
    assert len(answer["outputs"][0]["token_ids"]) == 8
