"""Real programs on a real state directory: nibbled, nibble and nibble-trainer from the release build."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import small_model
from no_skips import pytest_addoption, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 (pytest finds them here)
from soon import soon

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NIBBLE_BIN", ROOT / "build/release/bin"))

PAGE = ("The keeper of the light walked down to the harbour every morning before the tide turned. He counted the boats, wrote the "
        "number in his book, and climbed back up the hill to wind the clockwork of the lamp. ")


class Server:
    """One nibbled process. It chooses its ports at the first start and keeps them when it is restarted."""

    def __init__(self, state, *flags):
        self.state = pathlib.Path(state)
        self.flags = [str(flag) for flag in flags]
        if "--min_free_bytes" not in self.flags:
            self.flags += ["--min_free_bytes", str(1 << 20)]  # independent of the free space of the test machine
        self.program = [BIN / "nibbled"]
        self.environment = {}
        self.client_flags = []  # first arguments of every `run`: --tls-ca, --token-file ...
        self.process = None
        self.grpc = None
        self.http = None
        self.openai = None  # address of OpenAI's API, with --openai_address

    def start(self):
        address_file = self.state / "server.json"
        address_file.unlink(missing_ok=True)
        self.log = open(self.state.parent / (self.state.name + ".log"), "ab")
        self.process = subprocess.Popen(
            [*self.program, "--state_dir", self.state, "--grpc_address", self.grpc or "127.0.0.1:0", "--http_address",
             self.http or "127.0.0.1:0", *self.flags], env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

        def ready():
            assert self.process.poll() is None, f"nibbled ended with {self.process.returncode}: {self.read_log()}"
            if not address_file.exists():
                return False
            addresses = json.loads(address_file.read_text())
            self.grpc, self.http = addresses["grpc_address"], addresses["http_address"]
            self.openai = addresses.get("openai_address")
            try:
                with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=2) as answer:
                    return answer.status == 200
            except OSError:
                return False
        soon(ready, lambda: f"/readyz is 200; the log: {self.read_log()}", 20)
        return self

    def read_log(self):
        return (self.state.parent / (self.state.name + ".log")).read_text(errors="replace")[-4000:]

    def logged(self, message):
        """Log entries with this message, from every start of the server."""
        with open(self.state.parent / (self.state.name + ".log"), errors="replace") as log:
            entries = [json.loads(line) for line in log if line.startswith("{") and message in line]
        return [entry for entry in entries if entry["message"] == message]

    def run(self, *arguments, check=True, timeout=300):
        result = subprocess.run([BIN / "nibble", "--server", self.grpc, *map(str, [*self.client_flags, *arguments])], env={},
                                capture_output=True, text=True, timeout=timeout)
        if check:
            assert result.returncode == 0, f"nibble {arguments}: exit {result.returncode}: {result.stderr}"
        return result

    def json(self, *arguments, **options):
        return json.loads(self.run("--json", *arguments, **options).stdout)

    def lines(self, *arguments, **options):
        return [json.loads(line) for line in self.run("--json", *arguments, **options).stdout.splitlines()]

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Sends SIGTERM and returns the exit code; None if the server does not run."""
        if self.process is None or self.process.poll() is not None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def trainers(server):
    found = subprocess.run(["pgrep", "-f", f"nibble-trainer.*{server.state}"], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in found]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    return small_model.write(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "page.jsonl"
    path.write_text("".join(json.dumps({"text": PAGE[i * 7 % 90:] + PAGE}) + "\n" for i in range(40)))
    return path


@pytest.fixture
def make_server(tmp_path):
    servers = []

    def make(*flags, state=None):
        server = Server(state or tmp_path / f"state{len(servers)}", *flags)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


def import_small(server, model_directory):
    """Gives the server the small model (f32) as "small" and its int8 form as "small-int8"."""
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("models", "convert", "small", "--to", "int8", "--name", "small-int8")


@pytest.fixture(scope="module")
def shared(tmp_path_factory, model_directory, text_file):
    """One server with the small model (f32) and its int8 and ternary forms, for tests that leave these unchanged."""
    server = Server(tmp_path_factory.mktemp("shared") / "state").start()
    import_small(server, model_directory)
    server.run("models", "convert", "small", "--to", "ternary", "--name", "small-ternary")
    server.run("datasets", "upload", text_file, "--name", "page")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def openai_server(tmp_path_factory, model_directory):
    """One server of OpenAI's API with the models of import_small, for tests that leave these unchanged."""
    server = Server(tmp_path_factory.mktemp("openai") / "state", "--openai_address", "127.0.0.1:0").start()
    import_small(server, model_directory)
    yield server
    server.stop()


TRAIN = ["--micro-batch", 2, "--seq-len", 96, "--lr", "5e-3", "--rank", 4, "--alpha", 8, "--seed", 3]
