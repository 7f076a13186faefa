#!/usr/bin/env python3
"""Prints the figures of a quickstart: losses, the loss curve, held-out answers, speed and memory.

usage: quickstart_summary.py WORK_DIR METRICS_URL MODEL

Reads events.jsonl, job.json and last_answer.json of WORK_DIR. If they exist, it also reads trained.jsonl (`nibble
--json models compare` of the base with the trained model), int8.jsonl (the same of the trained model with its int8
form) and data/score.jsonl, the questions of both with the right answers. METRICS_URL is the /metrics of the server,
which must have loaded MODEL, the trained adapter. Fails if the evaluation loss did not decrease.
"""
import json
import pathlib
import sys
import urllib.request

WIDTH, HEIGHT = 60, 8  # of the loss curve, in characters


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def curve(losses):
    """Yields the lines of a plot: the mean loss in at most WIDTH equal parts of the run."""
    width = min(WIDTH, len(losses))
    cuts = [round(i * len(losses) / width) for i in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in zip(cuts, cuts[1:])]
    low, high = min(means), max(means)
    step = (high - low) / (HEIGHT - 1)
    rows = [[" "] * width for _ in range(HEIGHT)]
    for x, mean in enumerate(means):
        rows[round((high - mean) / step) if step else 0][x] = "*"
    for y, row in enumerate(rows):
        yield f"{high - y * step:8.3f} |{''.join(row)}"
    yield f"{'':8} +{'-' * width}"
    first, last = "step 1", f"step {len(losses)}"
    yield f"{'':10}{first}{last:>{max(width - len(first), 0)}}"


def is_right(answer, wanted):
    words = answer["text"].split()
    return bool(words) and words[0].strip(".,:;\"*").lower() == wanted


def print_answers(work):
    if not (work / "trained.jsonl").exists():
        return
    wanted = [row["messages"][-1]["content"] for row in lines_of(work / "data/score.jsonl")]
    trained, int8 = lines_of(work / "trained.jsonl"), lines_of(work / "int8.jsonl")
    for name, answers in (("before", [line["a"] for line in trained]), ("after (trained)", [line["b"] for line in trained]),
                          ("after (int8)", [line["b"] for line in int8])):
        right = sum(map(is_right, answers, wanted))
        print(f"{'held-out answers right ' + name:40}{right / len(wanted):.2f}  ({right} of {len(wanted)})")


def main():
    work, url, model = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    events = lines_of(work / "events.jsonl")
    steps = [event for event in events if event["type"] == "step"]
    evals = [event for event in events if event["type"] == "eval"]
    trained = [event["eval_loss"] for event in evals if event.get("subject") != "int8"]
    int8 = [event["eval_loss"] for event in evals if event.get("subject") == "int8"]
    print("training loss")
    print("\n".join(curve([step["loss"] for step in steps])))
    print()
    for name, loss in (("before", trained[0]), ("after (trained)", trained[-1]), ("after (int8)", int8[-1])):
        print(f"{'evaluation loss ' + name:40}{loss:.4f}")
    print_answers(work)
    speed = sorted(step["tokens_per_s"] for step in steps)[len(steps) // 2]
    print(f"{'training tokens/s':40}{speed:.1f}  (median of {len(steps)} steps)")
    progress = json.loads((work / "job.json").read_text())["progress"]
    print(f"{'peak memory of the trainer':40}{progress['peak_memory_bytes'] / 2**20:.0f} MiB")
    print(f"{'kernel launches per step':40}{steps[-1]['kernel_launches']}")
    metric = f'nibble_train_serve_logprob_max_abs_difference{{model="{model}"}} '
    exposition = urllib.request.urlopen(url, timeout=30).read().decode().splitlines()
    difference = float(next(line for line in exposition if line.startswith(metric)).removeprefix(metric))
    print(f"{'adapter, server vs. trainer':40}{difference:.1e} nats, largest logprob difference")
    usage = json.loads((work / "last_answer.json").read_text())["usage"]
    rate = (usage["completion_tokens"] - 1) / max(usage["decode_ms"], 1e-9) * 1000
    print(f"{'last answer':40}{usage['completion_tokens']} tokens, {usage['kernel_launches']} launches, "
          f"first token after {usage['ttft_ms']:.0f} ms, {rate:.1f} tokens/s")
    if not trained[-1] < trained[0]:  # also NaN
        sys.exit("quickstart: the evaluation loss did not decrease")


if __name__ == "__main__":
    main()
