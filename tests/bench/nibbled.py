"""Shared by the benchmarks: a nibbled of their own, datasets, training jobs and the training of peers."""
import contextlib
import json
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from soon import soon


def cpu_name():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())


@contextlib.contextmanager
def serve(programs, state, *flags):
    """Runs nibbled with 2 threads; yields a function that runs `nibble --json ARGUMENT...` and returns its output. Its
    attributes are `addresses`, the content of server.json, and `pid`."""
    programs, state = pathlib.Path(programs), pathlib.Path(state)
    server = subprocess.Popen([programs / "nibbled", "--state_dir", state, "--grpc_address", "127.0.0.1:0", "--http_address", "127.0.0.1:0",
                               "--threads", "2", *map(str, flags)], stderr=subprocess.DEVNULL)
    try:
        soon(lambda: server.poll() is not None or (state / "server.json").exists(), "nibbled has started", 20)
        assert server.poll() is None, "nibbled did not start"
        addresses = json.loads((state / "server.json").read_text())

        def nibble(*arguments):
            return subprocess.run([programs / "nibble", "--server", addresses["grpc_address"], "--json", *map(str, arguments)], check=True,
                                  capture_output=True, text=True).stdout
        nibble.addresses, nibble.pid = addresses, server.pid
        yield nibble
    finally:
        server.terminate()
        server.wait()


def write_prose(path):
    """Writes a dataset of one row, a text of about 400 kB, to `path`; returns `path`."""
    path.write_text(json.dumps({"text": pathlib.Path("/usr/share/common-licenses/GPL-3").read_text() * 12}) + "\n")
    return path


def events(text, kind):
    """The events of a type that `nibble --json jobs create --watch` printed."""
    return [event for event in map(json.loads, text.splitlines()) if event.get("type") == kind]


def trained_losses(text):
    """The evaluation losses of the trained form that the command printed (see events), from the base to the result."""
    return [event["eval_loss"] for event in events(text, "eval") if event["subject"] == "trained"]


def convert(nibble, trained, to, name):
    """Converts a model, evaluates the result on dataset "eval", and returns its loss and whether `models verify` finds
    equal bits."""
    report = json.loads(nibble("models", "convert", trained, "--to", to, "--name", name, "--eval-dataset", "eval"))
    return report["conversion"]["eval_loss_after"], json.loads(nibble("models", "verify", name))["equal"]


def upload_wordnet(nibble, directory, *options):
    """Writes train.jsonl and eval.jsonl of deploy/wordnet_dataset.py to `directory` and uploads them as "train" and
    "eval"."""
    subprocess.run([sys.executable, ROOT / "deploy/wordnet_dataset.py", directory, *options], check=True, stdout=subprocess.DEVNULL)
    for name in ("train", "eval"):
        nibble("datasets", "upload", directory / f"{name}.jsonl", "--name", name, "--format", "chat")


# Runs after a peer's script, which leaves `model` and `vocabulary`: steps of 4 x 256 random tokens.
TRAIN = """
import json, sys, time
open("/proc/self/clear_refs", "w").write("5")  # resets VmHWM, the peak memory
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=float(sys.argv[2]))
ids = torch.randint(0, vocabulary, (4, 256))
rates, losses = [], []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    rates.append(1024 / (time.perf_counter() - began))
    losses.append(loss.item())
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"rates": rates, "peak": peak, "losses": losses}))
"""


def train_peer(script, steps, lr, directory):
    """Trains the `model` that `script` makes, in a process of its own. Returns tokens/s and loss of each step, and the
    peak memory in bytes from the first step on."""
    output = subprocess.run([sys.executable, "-c", script + TRAIN, str(steps), str(lr)], check=True, capture_output=True, text=True,
                            cwd=directory).stdout
    return json.loads(output.splitlines()[-1])


def train(nibble, output, steps):
    """Runs a QLoRA job of 4 x 256 tokens, rank 16, on base "base" and dataset "prose"; returns its step events."""
    text = nibble("jobs", "create", "--method", "qlora", "--base", "base", "--dataset", "prose", "--output", output, "--max-steps", steps,
                  "--micro-batch", 4, "--seq-len", 256, "--lr", "1e-4", "--rank", 16, "--alpha", 32, "--save-every", 0, "--watch")
    step_events = events(text, "step")
    assert len(step_events) == steps and all(step["tokens"] == 1024 for step in step_events), \
        f"not {steps} steps of 4 x 256 tokens"
    assert step_events[-1]["loss"] < step_events[0]["loss"] * 1.05
    return step_events
