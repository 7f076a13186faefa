#!/usr/bin/env python3
"""Many clients stream chats from nibbled (int8) while a job trains, then in turns from nibbled and llama.cpp's server
(Q8_0): the same weights and prompts, 2 threads and as many slots each.

usage: peers_streams.py MODEL.gguf WORK_DIR [--bin build/release/bin] [--minutes 10] [--turns 3] [--turn_minutes 1]
                        [--clients 64] [--grpc_clients 16] [--slots 16] [--tokens 64] [--json OUT.json]
Two phases:
- load: --clients of OpenAI's library and --grpc_clients of nibble_client for --minutes beside a job of QLoRA. Fails if
  an error is not a limit, if the job does not train, or if nibbled's resident memory is not flat.
- turns: --clients of OpenAI's library for --turn_minutes, at nibbled and llama-server in turns, without a job. The first
  --turn_minutes of each server warm it up and do not count. The prompts of the first turn are those of the load; fails
  if nibbled gives one of them another answer than beside the job.
WORK_DIR takes 1 GB and keeps the models. The first run compiles llama-server (tests/bench/llama_server.py).
"""
import argparse
import contextlib
import datetime
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import llama_server
from nibbled import ROOT, cpu_name, serve, soon, write_prose

THREADS = 2
CLIENTS = pathlib.Path(__file__).with_name("stream_clients.py")
KV_TOKENS_PER_SLOT = 2048
BEGIN = 100_000  # number of the first request of a client in the load and in turn 1, and distance of the turns
FLAT = 0.05  # maximum spread() of nibbled's resident memory over the last half of the load, as in tests/e2e/test_soak.py


def spread(values, windows=10):
    """For the medians of equal parts: (largest - smallest) / smallest."""
    size = len(values) // windows
    assert size > 0, "too few samples"
    medians = [statistics.median(values[at * size:(at + 1) * size]) for at in range(windows)]
    return (max(medians) - min(medians)) / min(medians)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_seconds(pid):
    """Processor time of a process, without its children."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # clock ticks


def resident(pid):
    line = next(line for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


class Memory(threading.Thread):
    """Samples the resident memory of a process each half second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.values, self.over = pid, [], threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            self.values.append(resident(self.pid))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.join()


def stream(pid, groups, seconds, tokens, begin):
    """Runs groups of clients (kind, address, model, number of clients, options) at once against the server `pid`.
    Returns for each group its requests and errors, and the processor seconds of server and clients per second."""
    started, first = [], 0
    for kind, address, model, count, *options in groups:
        # Two processes for 64 clients: one Python process could be busy with one core.
        for part in ([count // 2, count - count // 2] if count > 16 else [count]):
            command = [sys.executable, CLIENTS, kind, address, model, "--first", first, "--count", part, "--begin", begin,
                       "--seconds", seconds, "--tokens", tokens, *options]
            started.append((kind, subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)))
            first += part
    try:
        for _, process in started:
            assert process.stdout.readline() == "ready\n", "a client did not start"
        began, cpu = time.monotonic(), cpu_seconds(pid)
        for _, process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=seconds + 1800)[0] for _, process in started]
        wall, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
    finally:
        for _, process in started:
            process.kill()
            process.wait()
    found = {kind: {"requests": [], "errors": [], "cpu_s": 0.0} for kind, *_ in groups}
    for (kind, _), output in zip(started, outputs):
        for name, value in json.loads(output).items():
            found[kind][name] += value
    return {"wall_s": wall, "server_cores": cpu / wall, "client_cores": sum(group["cpu_s"] for group in found.values()) / wall,
            "groups": found}


def summary(group, wall):
    """Figures of one group of clients."""
    requests, kinds = group["requests"], {}
    assert requests, f"no request was answered; the first errors: {group['errors'][:3]}"
    for error in group["errors"]:
        kinds[error["kind"]] = kinds.get(error["kind"], 0) + 1
    figures = {"requests": len(requests), "tokens_per_s": sum(request["tokens"] for request in requests) / wall, "errors": kinds,
               "examples": [error["text"] for error in group["errors"] if error["kind"] != "limit"][:5]}
    for name in ("ttft", "per_token"):
        for share in (50, 99):
            figures[f"{name}_p{share}_ms"] = 1000 * percentile([request[name] for request in requests], share / 100)
    return figures


def show(name, figures):
    times = [f"{figures[f'{kind}_p{share}_ms']:.1f}" for kind in ("ttft", "per_token") for share in (50, 99)]
    print(f"{name}: {figures['requests']} requests, {figures['tokens_per_s']:.0f} tokens/s; first token p50 {times[0]} ms, "
          f"p99 {times[1]} ms; later tokens p50 {times[2]} ms, p99 {times[3]} ms; errors {figures['errors'] or 'none'}", flush=True)


@contextlib.contextmanager
def serve_llama(program, model, slots, log):
    """Runs llama-server; yields its process and address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A thread for each connection: else clients would wait for a thread, not for a slot. Without a cache of past prompts
    # in memory (8 GiB), because no prompt comes twice.
    command = [program, "--model", model, "--host", "127.0.0.1", "--port", port, "--threads", THREADS, "--threads-batch", THREADS,
               "--parallel", slots, "--ctx-size", slots * KV_TOKENS_PER_SLOT, "--threads-http", 256, "--cache-ram", 0, "--alias", "int8"]
    with open(log, "w") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output)

    def ready():
        assert process.poll() is None, f"llama-server ended with {process.returncode}: {log}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False
    try:
        soon(ready, "llama-server has loaded the model", 60)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def write_q8_0(source, path):
    """Writes the model as Q8_0, with the embedding, which is also the head, in Q8_0 too."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, THREADS, True
    params.output_tensor_type = params.token_embedding_type = 8  # Q8_0
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0


def prepare(nibble, q8, work):
    """Makes the models "base" and "int8" and the dataset "prose", unless the state directory has them."""
    models = [model["name"] for model in json.loads(nibble("models", "list"))["models"]]
    if "int8" not in models:
        nibble("models", "import", q8, "--name", "base", "--dtype", "bf16")
        nibble("models", "convert", "base", "--to", "int8", "--name", "int8")
        nibble("datasets", "upload", write_prose(work / "prose.jsonl"), "--name", "prose")
    nibble("models", "load", "int8")


def steps_of(nibble, job):
    answer = json.loads(nibble("jobs", "get", job))
    return answer["progress"]["step"], answer["state"]


def load(nibble, args, package):
    """The phase beside a job. Returns its figures, and the answers by client and number of the request."""
    job = json.loads(nibble("jobs", "create", "--method", "qlora", "--base", "base", "--dataset", "prose", "--max-steps", 1_000_000,
                            "--micro-batch", 4, "--seq-len", 256, "--lr", "1e-4", "--rank", 16, "--alpha", 32, "--save-every", 50))["id"]
    groups = [("openai", nibble.addresses["openai_address"], "int8", args.clients),
              ("grpc", nibble.addresses["grpc_address"], "int8", args.grpc_clients, "--package", package)]
    try:
        soon(lambda: steps_of(nibble, job)[0] > 0, "the job trains", 120)
        before, _ = steps_of(nibble, job)
        with Memory(nibble.pid) as memory:
            found = stream(nibble.pid, groups, args.minutes * 60, args.tokens, begin=BEGIN)
        after, state = steps_of(nibble, job)
    finally:
        nibble("jobs", "cancel", job)
    soon(lambda: steps_of(nibble, job)[1] == "CANCELLED", "the trainer has ended", 120)
    half = memory.values[len(memory.values) // 2:]
    figures = {kind: summary(group, found["wall_s"]) for kind, group in found["groups"].items()}
    result = {"minutes": args.minutes, "steps": after - before, "state": state, "rss_spread": spread(half),
              "rss_last_half": [min(half), max(half)], "server_cores": found["server_cores"], "client_cores": found["client_cores"],
              **figures}
    for kind in figures:
        show(f"beside a job, {kind}", figures[kind])
    print(f"the job made {result['steps']} steps and is {state}; nibbled: {result['server_cores']:.2f} cores, clients: "
          f"{result['client_cores']:.2f} cores; memory over the last half: {min(half) >> 20} to {max(half) >> 20} MiB, medians of 10 parts "
          f"{result['rss_spread']:.1%} apart", flush=True)
    answered = found["groups"]["openai"]["requests"]
    return result, {(request["client"], request["number"]): request["answer"] for request in answered}


def turns(nibble, llama, address, answers, args):
    """The phase in turns. Returns the figures of each turn, and how many answers of nibbled equal those of the load."""
    sides = {"nibbled": (nibble.pid, nibble.addresses["openai_address"]), "llama-server": (llama.pid, address)}
    result = {**{side: {"turns": []} for side in sides}, "equal_answers": 0, "different_answers": 0}
    lengths = {}
    for turn in range(args.turns + 1):
        for side, (pid, at) in sides.items():
            found = stream(pid, [("openai", at, "int8", args.clients)], args.turn_minutes * 60, args.tokens, begin=turn * BEGIN)
            group = found["groups"]["openai"]
            for request in group["requests"]:
                asked = request["client"], request["number"]
                if side == "nibbled" and asked in answers:
                    result["equal_answers" if answers[asked] == request["answer"] else "different_answers"] += 1
                assert lengths.setdefault(asked, request["prompt_tokens"]) == request["prompt_tokens"], \
                    f"the servers count other tokens in the prompt {asked}"
            figures = {**summary(group, found["wall_s"]), "server_cores": found["server_cores"], "client_cores": found["client_cores"],
                       "rss": resident(pid)}
            show(f"{'warm-up' if turn == 0 else f'turn {turn}'}, {side}", figures)
            if turn > 0:
                result[side]["turns"].append(figures)
    for name in ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "per_token_p50_ms", "per_token_p99_ms", "server_cores", "client_cores"):
        for side in sides:
            result[side][name] = statistics.median(figures[name] for figures in result[side]["turns"])
        ratio = [ours[name] / theirs[name] for ours, theirs in zip(result["nibbled"]["turns"], result["llama-server"]["turns"])]
        result[f"{name}_ratio"] = statistics.median(ratio)
        print(f"{name}: nibbled {result['nibbled'][name]:.4g}, llama-server {result['llama-server'][name]:.4g}, "
              f"ratio {result[f'{name}_ratio']:.2f} ({min(ratio):.2f}-{max(ratio):.2f})", flush=True)
    return result


def wrong(result):
    """The faults that the run found."""
    found, beside, raced = [], result["load"], result["turns"]
    every = [beside["openai"], beside["grpc"], *(figures for side in ("nibbled", "llama-server") for figures in raced[side]["turns"])]
    found += [f"errors that are not limits: {figures['errors']}: {figures['examples']}" for figures in every
              if set(figures["errors"]) - {"limit"}]
    if beside["steps"] < 1:
        found.append("the job did not train beside the clients")
    if beside["rss_spread"] > FLAT:
        found.append(f"nibbled's memory is not flat: {beside['rss_spread']:.1%}, wanted at most {FLAT:.0%}")
    if raced["different_answers"] or not raced["equal_answers"]:
        found.append(f"answers of nibbled beside the job and in turn 1: {raced['equal_answers']} equal, {raced['different_answers']} not")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn_minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--grpc_clients", type=int, default=16)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    program, q8 = llama_server.build(), args.work / "q8_0.gguf"
    args.work.mkdir(parents=True, exist_ok=True)
    if not q8.exists():
        write_q8_0(args.source, q8)
    result = {"cpu": cpu_name(), "date": datetime.date.today().isoformat(), "peer": llama_server.pinned(),
              "options": {name: value for name, value in vars(args).items() if isinstance(value, (int, float))}}
    with tempfile.TemporaryDirectory() as package:
        subprocess.run([sys.executable, ROOT / "client/python/generate.py", package], check=True)
        (args.work / "state/server.json").unlink(missing_ok=True)
        flags = ["--openai_address", "127.0.0.1:0", "--max_running_requests", args.slots, "--kv_tokens", args.slots * KV_TOKENS_PER_SLOT,
                 "--max_waiting_requests", args.clients + args.grpc_clients]
        with serve(args.bin, args.work / "state", *flags) as nibble:
            prepare(nibble, q8, args.work)
            result["load"], answers = load(nibble, args, package)
            if args.json:
                args.json.write_text(json.dumps(result, indent=1))  # a later failure does not lose it
            with serve_llama(program, q8, args.slots, args.work / "llama-server.log") as (llama, address):
                result["turns"] = turns(nibble, llama, address, answers, args)
    result["wrong"] = wrong(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    sys.exit("\n".join(result["wrong"]) or 0)


if __name__ == "__main__":
    main()
