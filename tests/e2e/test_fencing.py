"""A trainer that lost its attempt ends and writes nothing more: on a cluster, it may run on a node that the server has
given up, or be a second pod of the same attempt."""
import json
import os
import pathlib
import signal
import subprocess

from conftest import BIN, TRAIN, Server, trainers
from soon import soon

CLAIMED = 73  # exit code (server/jobs/attempt.h)


def begin(server, model_directory, text_file):
    """Starts a job that would run for minutes. Returns its attempt's directory, once a step is in the journal."""
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    job = server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", "20000", *TRAIN)["id"]
    attempt = server.state / "jobs" / job / "attempts" / "1"
    journal = attempt / "journal.jsonl"
    soon(lambda: journal.exists() and '"type":"step"' in journal.read_text())
    return attempt


def test_second_trainer_of_an_attempt_writes_nothing(tmp_path, model_directory, text_file):
    server = Server(tmp_path / "state").start()
    try:
        attempt = begin(server, model_directory, text_file)
        (pid,) = trainers(server)

        def files():
            return {path: path.read_bytes() for path in attempt.rglob("*") if path.is_file()}
        os.kill(pid, signal.SIGSTOP)  # so that only the second trainer could write
        soon(lambda: pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
        try:
            before = files()
            second = subprocess.run([BIN / "nibble-trainer", "--job_dir", attempt], capture_output=True, text=True, timeout=60)
            assert files() == before
        finally:
            os.kill(pid, signal.SIGCONT)
        assert second.returncode == CLAIMED, second.stderr
        (line,) = [json.loads(text) for text in second.stderr.splitlines()]
        assert line["message"] == "cannot claim the attempt" and (attempt / "claim").read_text() in line["error"]
        assert trainers(server) == [pid] and not (attempt / "outcome.json").exists()
    finally:
        server.stop()


def test_trainer_whose_directory_is_replaced_ends_and_writes_nothing_more(tmp_path, model_directory, text_file):
    server = Server(tmp_path / "state", "--no_progress_timeout_s", "20").start()  # so a trainer looks at its claim every 5 s
    try:
        attempt = begin(server, model_directory, text_file)
        (pid,) = trainers(server)
        server.kill()
        lost = attempt.with_name("1.lost")
        attempt.rename(lost)
        attempt.write_text("given up\n")
        soon(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of the fenced trainer", 30)
        assert attempt.read_text() == "given up\n" and sorted(attempt.parent.iterdir()) == [attempt, lost]
        assert not (lost / "outcome.json").exists() and not (lost / "output").exists()
    finally:
        server.stop()
