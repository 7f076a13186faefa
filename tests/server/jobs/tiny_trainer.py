#!/usr/bin/env python3
"""A fake trainer: it reads and writes the files of an attempt (server/jobs/attempt.h) and behaves as its spec's label
"behaviour" says. The tests of the local runner start it in place of nibble-trainer."""
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time

STEPS = 6
directory = sys.argv[sys.argv.index("--job_dir") + 1]
order = json.load(open(os.path.join(directory, "attempt.json")))
behaviour = order["spec"]["labels"].get("behaviour", "ok")
sequence = 0
terminated = False


def on_term(*_):
    global terminated
    os.write(1, b"SIGTERM\n")  # not print: this signal may have interrupted a print, which cannot be entered twice
    terminated = behaviour != "deaf"


def write(kind, **fields):
    global sequence
    sequence += 1
    line = {"sequence": sequence, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "type": kind, **fields}
    with open(os.path.join(directory, "journal.jsonl"), "a") as journal:
        journal.write(json.dumps(line) + "\n")


def publish(path, files):
    temporary = f"{path}.tmp.w-{secrets.token_hex(8)}"
    os.makedirs(temporary)
    entries = []
    for name, text in sorted(files.items()):
        with open(os.path.join(temporary, name), "w") as file:
            file.write(text)
        entries.append({"name": name, "size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()})
    with open(os.path.join(temporary, "manifest.json"), "w") as file:
        json.dump({"version": 1, "files": entries}, file)
    os.rename(temporary, path)


def exit_with_outcome(kind, exit_code, **fields):
    path = os.path.join(directory, "outcome.json")
    with open(path + ".tmp", "w") as file:
        json.dump({"version": 1, "outcome": kind, "exit_code": exit_code, **fields}, file)
    os.rename(path + ".tmp", path)
    sys.exit(exit_code)


def checkpoint(step):
    publish(os.path.join(directory, "checkpoints", f"step-{step:08d}"), {"adapter.bin": f"step {step}"})
    write("checkpoint", step=step)


signal.signal(signal.SIGTERM, on_term)
print("hello from the trainer", sorted(os.environ), flush=True)
first = order["attempt"] == 1
behaviour, _, mark = behaviour.partition(" ")
if behaviour.startswith("breed"):
    # "breed MARK": a test finds the processes by MARK, the argument of sleep. One third of them stays in the trainer's
    # process group. The others have their own sessions; half of those have also closed all inherited descriptors.
    for i in range(200):
        subprocess.Popen(["sleep", mark], start_new_session=i % 3 > 0, close_fds=i % 3 == 2)
    behaviour = {"breed": "ok", "breed-forever": "forever"}[behaviour]
if behaviour == "bad_input":
    exit_with_outcome("failed", 42, code="INVALID_ARGUMENT", reason="NO_TRAINABLE_TOKENS", message="nothing to learn")
if behaviour == "fork":
    subprocess.Popen(["sleep", "1000"], close_fds=False)
start = order["resume_step"]
write("state", state="RUNNING", step=start, max_steps=STEPS)
for step in range(start + 1, STEPS + 1):
    time.sleep(0.02)
    while behaviour in ("forever", "deaf") and not terminated:
        time.sleep(0.01)
    if terminated:
        try:
            command = json.load(open(os.path.join(directory, "control.json")))["command"]
        except FileNotFoundError:
            command = "preempt"
        if command == "cancel":
            exit_with_outcome("cancelled", 0)
        checkpoint(step - 1)
        exit_with_outcome("paused", 75)
    write("step", step=step, loss=1.0 / step, tokens=64, step_ms=20.0, peak_memory_bytes=1000, kernel_launches=3)
    if step % 2 == 0:
        checkpoint(step)
    if first and step == 5 and behaviour == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if first and step == 3 and behaviour == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if step == 3:
        # Lets a test pause the trainer here.
        while os.path.exists(os.path.join(os.path.dirname(order["train_data_path"]), "hold")):
            time.sleep(0.005)
publish(order["output_directory"], {"nibble.json": json.dumps({"format": "lora", "weights_digest": "d" * 64})})
exit_with_outcome("ok", 0, output_directory=order["output_directory"], final={"eval_loss_int8": 0.5})
