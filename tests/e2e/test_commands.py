"""Commands and options that the main job (test_main_job.py) does not cover, on a real server. client/cli/app.h lists the exit codes."""
import datetime
import json
import re
import signal
import subprocess
import time

from conftest import BIN, TRAIN
from soon import soon


def state_of(server, job, *wanted):
    found = server.json("jobs", "get", job)
    return found if found["state"] in wanted else None


def test_jobs_are_paused_resumed_cancelled_and_deleted(shared):
    job = shared.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", "long",
                      "--max-steps", 5000, "--save-every", 2, *TRAIN)
    # max_steps is shown before the trainer reports any step.
    assert job["state"] in ("QUEUED", "PREPARING") and job["progress"]["max_steps"] == 5000
    name = job["id"]
    soon(lambda: shared.json("jobs", "get", name)["progress"]["step"] >= 3)
    for _ in range(2):  # a second pause changes nothing
        assert shared.json("jobs", "pause", name)["state"] in ("PAUSING", "PAUSED")
    paused = soon(lambda: state_of(shared, name, "PAUSED"))
    kept = shared.json("jobs", "checkpoints", name)["checkpoints"]
    assert kept and kept[0]["step"] == paused["progress"]["step"] and kept[0]["resumable"] is True
    assert shared.run("jobs", "delete", name, check=False).returncode == 6
    assert shared.run("models", "delete", "small", check=False).returncode == 6
    assert shared.json("jobs", "resume", name)["state"] in ("QUEUED", "PREPARING", "RUNNING")
    running = soon(lambda: state_of(shared, name, "RUNNING"))
    assert running["attempt"] == 2
    assert shared.json("jobs", "cancel", name)["state"] in ("CANCELLING", "CANCELLED")
    soon(lambda: state_of(shared, name, "CANCELLED"))
    watched = shared.run("--json", "jobs", "watch", name, check=False)
    assert watched.returncode == 8 and '"CANCELLED"' in watched.stdout.splitlines()[-1]
    assert shared.json("jobs", "cancel", name)["state"] == "CANCELLED"
    suggested = re.search("`nibble (jobs publish [^`]+)`", shared.json("jobs", "get", name)["message"]).group(1)
    assert suggested in watched.stdout.splitlines()[-1], "the last event has the same message"
    assert shared.json(*suggested.replace("NAME", "rescued").split())["trained_format"] == "text"
    shared.run("models", "delete", "rescued")
    assert shared.json("jobs", "delete", name) == {"id": name, "deleted": True}
    assert shared.run("jobs", "get", name, check=False).returncode == 3


def test_progress_is_at_most_a_second_old(shared):
    """Compares the progress with the journal of the trainer, whose lines have times."""
    name = shared.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 5000, *TRAIN)["id"]
    soon(lambda: state_of(shared, name, "RUNNING"))
    journal, compared = shared.state / "jobs" / name / "attempts" / "1" / "journal.jsonl", 0
    while compared < 10:
        a_second_ago = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
        lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
        steps = [line["step"] for line in lines if line["type"] == "step" and datetime.datetime.fromisoformat(line["time"]) <= a_second_ago]
        progress = shared.json("jobs", "get", name)["progress"]
        if steps:
            assert progress["step"] >= steps[-1], f"the trainer finished step {steps[-1]} more than a second ago"
            compared += 1
        time.sleep(0.2)
    shared.json("jobs", "cancel", name)
    soon(lambda: state_of(shared, name, "CANCELLED"))


def test_models_are_loaded_unloaded_and_deleted(shared):
    shared.run("models", "convert", "small", "--to", "nf4", "--name", "spare")
    assert shared.json("models", "load", "spare")["loaded"] is True
    resident = {model["name"]: model for model in shared.json("server", "load")["residents"]["models"]}["spare"]
    assert resident["format"] == "nf4" and resident["bytes"] > 0 and resident["load_time"]
    busy = shared.run("models", "delete", "spare", check=False)
    assert busy.returncode == 6 and "MODEL_IN_USE" in busy.stderr
    assert shared.json("models", "unload", "spare")["loaded"] is False
    assert shared.run("models", "unload", "spare", check=False).returncode == 6
    assert shared.json("models", "delete", "spare") == {"name": "spare", "deleted": True}
    assert shared.run("models", "get", "spare", check=False).returncode == 3


def test_datasets_are_previewed_and_deleted(shared, tmp_path):
    rows = tmp_path / "pairs.jsonl"
    rows.write_text('{"prompt": "a", "completion": "bc"}\n')
    sent = shared.json("datasets", "upload", rows, "--name", "pairs")
    assert sent["format"] == "prompt_completion" and sent["rows"] == 1
    assert "pairs" in [entry["name"] for entry in shared.json("datasets", "list")["datasets"]]
    row, = shared.json("datasets", "preview", "pairs", "--model", "small", "-n", 1)["rows"]
    assert len(row["token_ids"]) == len(row["mask"]) == len(row["tokens"])
    copy = tmp_path / "copy.jsonl"
    assert shared.json("datasets", "download", "pairs", "--out", copy)["bytes"] == sent["bytes"]
    assert copy.read_bytes() == rows.read_bytes() and {path.name for path in tmp_path.iterdir()} == {"copy.jsonl", "pairs.jsonl"}
    # The prompt is only read; the completion and its end token are trained.
    assert row["mask"][0] == 0 and row["mask"][-1] == 1 and sum(row["mask"]) == 3
    assert shared.json("datasets", "delete", "pairs") == {"name": "pairs", "deleted": True}
    assert shared.run("datasets", "delete", "pairs", check=False).returncode == 3


def test_score_reads_the_tokens_of_tokenize(shared):
    text = "naïve 漢字 😀"
    tokens = shared.json("tokenize", "small", "--text", text)
    scored = shared.json("score", "small", "--text", text)
    assert tokens["token_ids"] == list(text.encode()) == scored["token_ids"]
    assert scored["logprobs"][0] is None and all(value < 0 for value in scored["logprobs"][1:])
    usage = scored["usage"]
    assert usage["prompt_tokens"] == len(tokens["token_ids"]) and usage["prefill_ms"] > 0 and usage["kernel_launches"] > 0
    assert shared.json("tokenize", "small", "--text", "") == {"token_ids": [], "tokens": []}


def test_load_counts_requests_and_tokens(shared):
    before = shared.json("server", "load")
    answer = shared.json("generate", "small", "--prompt", "abc", "--max-tokens", 5, "--ignore-eos")
    assert answer["queue_ms"] > 0
    after = shared.json("server", "load")
    assert after["requests_total"] - before["requests_total"] == 1
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == 3
    assert after["generated_tokens_total"] - before["generated_tokens_total"] == 5
    assert after["ready"] is True and after["rss_bytes"] > 0
    info = shared.json("server", "info")
    assert info["devices"][0]["device"]["kind"] == "cpu" and info["limits"]["max_waiting_requests"] > 0
    assert "int8" in info["serve_formats"] and info["version"]
    assert (info["runner"], info["kubernetes_namespace"], info["kubernetes_queue"]) == ("local", "", "")
    assert re.search("^trainers run +local$", shared.run("server", "info").stdout, re.M)


def test_disk_operations_are_measured(shared):
    metrics = shared.metrics()
    for operation in ("open", "sync", "rename", "sync_directory"):
        assert metrics[f'nibble_store_op_duration_seconds_count{{backend="file",op="{operation}"}}'] > 0
    assert metrics['nibble_store_errors_total{backend="file",reason="DISK_FULL"}'] == 0


def test_jobs_are_listed_by_state_and_watched_from_an_event_on(shared):
    job = shared.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 3, *TRAIN)["id"]
    events = shared.lines("jobs", "watch", job)
    assert shared.lines("jobs", "watch", job, "--after", events[4]["sequence"]) == events[5:]
    succeeded = shared.json("jobs", "list", "--state", "succeeded")["jobs"]
    assert job in [one["id"] for one in succeeded] and {one["state"] for one in succeeded} == {"SUCCEEDED"}
    assert [one["id"] for one in shared.json("jobs", "list", "--limit", 1)["jobs"]] == [job]
    wrong = shared.run("jobs", "list", "--state", "happy", check=False)
    assert wrong.returncode == 4 and "happy" in wrong.stderr


def test_interrupted_client_names_the_job_that_still_runs(shared):
    # Tests that run in the background ignore SIGINT, and the client would inherit that.
    started = subprocess.Popen([BIN / "nibble", "--server", shared.grpc, "jobs", "create", "--method", "qlora", "--base", "small",
                                "--dataset", "page", "--max-steps", "5000", "--watch", *map(str, TRAIN)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    job = started.stdout.readline().split()[1]
    soon(lambda: state_of(shared, job, "RUNNING"))
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=30)
    assert started.returncode == -signal.SIGINT
    assert f"job {job} continues on the server; see: nibble jobs watch|cancel {job}" in err
    assert state_of(shared, job, "RUNNING")
    shared.run("jobs", "cancel", job)
    soon(lambda: state_of(shared, job, "CANCELLED"))


def test_operations_are_listed_waited_for_and_cancelled(shared):
    shared.run("models", "convert", "small", "--to", "nf4", "--name", "by-operation")
    ended = shared.json("operations", "list")["operations"]
    one = next(operation for operation in ended if operation["state"] == "done")
    assert one["error"] is None and shared.json("operations", "get", one["id"]) == one == shared.json("operations", "wait", one["id"])
    assert shared.json("operations", "cancel", one["id"]) == one, "cancel does not change an operation that has ended"
    shared.run("models", "convert", "small", "--to", "int8", "--name", "by-operation-int8")
    kinds = {}
    for command in (["models", "verify", "by-operation-int8"], ["models", "load", "by-operation"],
                    ["jobs", "plan", "--method", "qlora", "--base", "small", "--dataset", "page", "--max-steps", 3]):
        begun = shared.json(*command, "--no-wait")
        assert begun["id"].startswith("operations/"), begun
        assert shared.json("operations", "wait", begun["id"])["state"] == "done"
        kinds[begun["id"]] = {"kind": command[1], "model": "small" if command[1] == "plan" else command[2]}
    listed = shared.json("operations", "list")["operations"]
    assert {entry["id"]: {key: entry[key] for key in ("kind", "model")} for entry in listed if entry["id"] in kinds} == kinds
    assert {"import", "convert"} <= {entry["kind"] for entry in listed}, listed
    table = [line.split() for line in shared.run("operations", "list").stdout.splitlines()]
    assert table[0][:4] == ["ID", "KIND", "MODEL", "STATE"]
    shown = [row[:3] for row in table]
    assert all([name, *fields.values()] in shown for name, fields in kinds.items())
    shared.run("models", "unload", "by-operation")
    for command in ("get", "wait", "cancel"):
        missing = shared.run("operations", command, "nothing", check=False)
        assert missing.returncode == 3 and "OPERATION" in missing.stderr


def test_health_follows_a_drain_and_version_equals_that_of_the_server(make_server):
    version = subprocess.run([BIN / "nibble", "--version"], capture_output=True, text=True, check=True).stdout
    server = make_server()
    assert version == f"nibble {server.json('server', 'info')['version']}\n"
    assert server.run("health", "--http", server.http).stdout == "ready\n"
    assert server.run("health", "--http", "127.0.0.1:1", check=False).returncode == 5
    assert server.run("health", "--grpc").stdout == "ready\n" and server.json("health", "--grpc") == {"ready": True}
    both = server.run("health", "--grpc", "--http", server.http, check=False)
    assert both.returncode == 2 and "--http" in both.stderr
    assert server.json("server", "drain", "--deadline", 1) == {"draining": True}
    refused = server.run("health", "--http", server.http, check=False)
    assert refused.returncode == 5 and "not ready" in refused.stderr
    refused = server.run("health", "--grpc", check=False)
    assert refused.returncode == 5 and refused.stdout == "" and "not ready: NOT_SERVING" in refused.stderr
    assert "DRAINING" in server.run("datasets", "upload", __file__, "--name", "late", "--format", "text", check=False).stderr
    assert server.stop() == 0
    assert server.run("health", "--grpc", check=False).returncode == 5


def test_environment_variables_name_server_and_token_file(shared, tmp_path):
    token = tmp_path / "token"
    token.write_text("t\n")
    environment = {"NIBBLE_SERVER": shared.grpc, "NIBBLE_TOKEN_FILE": str(token)}
    result = subprocess.run([BIN / "nibble", "--json", "server", "info"], env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and json.loads(result.stdout)["version"]
    token.write_text("")
    result = subprocess.run([BIN / "nibble", "server", "info"], env=environment, capture_output=True, text=True)
    assert result.returncode == 4 and "--token-file" in result.stderr
