#!/usr/bin/env python3
"""Pre-trains one model with `full` and with the switches of `int8_mixed`, and prints the held-out losses of each.

usage: int8_mixed_run.py MODEL [--bin build/release/bin] [--steps 300] [--lr 1e-2] [--seq-len 128] [--micro-batch 8] [--json OUT.json]
MODEL (a Hugging Face directory or a GGUF file) gives shape and tokenizer; all runs begin with the same random weights and
see the same rows. Checks that all losses are finite, and that every run learns.
Columns: held-out loss of the trained model and of its int8 form, largest gradient norm of the last tenth of the steps,
median speed, peak memory.
"""
import argparse
import json
import math
import pathlib
import tempfile

from nibbled import cpu_name, serve

RUNS = {
    "full, bf16": {"full": {}},
    "forward": {"int8_mixed": {"preset": "a8w8-qat"}},
    "forward, grad_input": {"int8_mixed": {"grad_weight": False}},
    "forward, grad_weight": {"int8_mixed": {"grad_input": False}},
    "all": {"int8_mixed": {}},
    "all, stochastic gradients": {"int8_mixed": {"stochastic_gradients": True}},
    "all, gradients per tensor": {"int8_mixed": {"grad_scale": "ACTIVATION_SCALE_PER_TENSOR"}},
    "torchao": {"int8_mixed": {"preset": "torchao"}},
}


def write_paragraphs(path):
    """Writes the paragraphs of over 80 characters of Debian's licences, each once, to `path`; returns `path`."""
    files = [file for file in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()) if not file.is_symlink()]
    texts = [file.read_text(errors="replace") for file in files]
    rows = dict.fromkeys(" ".join(part.split()) for text in texts for part in text.split("\n\n"))
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows if len(row) > 80))
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    result = {"cpu": cpu_name(), "runs": {}}
    print(f"{result['cpu']}; {args.steps} steps of {args.micro_batch} x {args.seq_len} tokens, lr {args.lr}")
    print(f"{'products in int8':28} {'trained':>9} {'as int8':>9} {'grad norm':>10} {'tokens/s':>9} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with serve(args.bin, directory / "state") as nibble:
            nibble("models", "import", args.model, "--name", "base", "--dtype", "f32")
            nibble("datasets", "upload", write_paragraphs(directory / "prose.jsonl"), "--name", "prose")
            for number, (name, method) in enumerate(RUNS.items()):
                key, fields = next(iter(method.items()))
                spec = directory / f"{number}.json"
                spec.write_text(json.dumps({key: {"init": "WEIGHT_INIT_RANDOM", **fields}}))
                text = nibble("jobs", "create", "--spec", spec, "--base", "base", "--dataset", "prose", "--eval-split", 0.05,
                              "--output", f"run{number}", "--max-steps", args.steps, "--micro-batch", args.micro_batch, "--seq-len",
                              args.seq_len, "--lr", args.lr, "--save-every", 0, "--seed", 1, "--watch")
                events = [json.loads(line) for line in text.splitlines()]
                steps = [event for event in events if event.get("type") == "step"]
                losses = {event["subject"]: event["eval_loss"] for event in events if event.get("type") == "eval"}
                last = steps[-max(1, len(steps) // 10):]
                row = {"trained": losses["trained"], "served": losses["int8"], "grad_norm": max(step["grad_norm"] for step in last),
                       "tokens_per_s": sorted(step["tokens_per_s"] for step in steps)[len(steps) // 2],
                       "peak_bytes": steps[-1]["peak_memory_bytes"]}
                assert all(math.isfinite(step["loss"]) for step in steps) and steps[-1]["loss"] < 0.8 * steps[0]["loss"], name
                result["runs"][name] = row
                print(f"{name:28} {row['trained']:9.4f} {row['served']:9.4f} {row['grad_norm']:10.2f} {row['tokens_per_s']:9.0f} "
                      f"{row['peak_bytes'] / 2**20:9.0f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
