#!/usr/bin/env python3
"""Prints peak memory and tokens/s of every training method on one model, like torchao's table of quantized training.

usage: methods_table.py MODEL [--bin build/release/bin] [--steps 8] [--turns 1] [--only NAME ...] [--peer] [--json OUT.json]
MODEL is a GGUF file or a Hugging Face directory. 4 x 256 tokens per step, bf16 compute, AdamW. All methods see the same
rows from the same seed. A turn runs every method once, one after the other; --only: these methods, and the method that
the table compares with. --peer: in each turn, also transformers with nn.Linear in bf16, all parameters trained, on the
shape of SmolLM2-135M; needs torch and transformers. tokens/s: the median over the steps after the second; peak: the
largest resident memory of the trainer, or of the peer from its first step on. Checks that all losses are finite, and
that the last loss is at most 5 % above the first one.
"""
import argparse
import json
import math
import pathlib
import statistics
import tempfile

from nibbled import cpu_name, events, serve, train_peer, write_prose

BF16 = "COMPUTE_DTYPE_BF16"
RUNS = {
    "full, f32 parameters": {"full": {}},
    "full, bf16 parameters": {"full": {"param_dtype": BF16}},
    "int8_mixed, exact forward": {"int8_mixed": {}},
    "int8_mixed, torchao": {"int8_mixed": {"preset": "torchao"}},
    "int8_qt": {"int8_qt": {}},
    "int8_qt, 8-bit moments": {"int8_qt": {}, "optim": {"optimizer": "OPTIMIZER_ADAMW_8BIT"}},
    "bitnet_qat": {"bitnet_qat": {}},
    "lora": {"lora": {}},
    "qlora": {"qlora": {}},
    "qlora, merge-aware": {"qlora": {"merge_aware_int8": True}},
}
BASELINE = "full, bf16 parameters"  # the others are compared with it
PEER = "transformers, bf16"
PEER_SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(2)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=2048)).to(torch.bfloat16)
vocabulary = 49152
"""


def run(nibble, spec, output, steps):
    """Tokens/s and loss of each step of one job, and its peak memory in bytes."""
    text = nibble("jobs", "create", "--spec", spec, "--base", "base", "--dataset", "prose", "--output", output, "--max-steps", steps,
                  "--micro-batch", 4, "--seq-len", 256, "--lr", "1e-5", "--save-every", 0, "--seed", 1, "--watch")
    steps = events(text, "step")
    return {"rates": [step["tokens_per_s"] for step in steps], "losses": [step["loss"] for step in steps],
            "peak": steps[-1]["peak_memory_bytes"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    runs = {name: spec for name, spec in RUNS.items() if name in args.only or name == BASELINE}
    names = [*runs, *([PEER] if args.peer else [])]
    rates, peaks = {name: [] for name in names}, dict.fromkeys(names, 0)

    def note(name, trained):
        losses = trained["losses"]
        assert all(map(math.isfinite, losses)) and losses[-1] <= 1.05 * losses[0], (name, losses)
        rates[name] += trained["rates"][2:]
        peaks[name] = max(peaks[name], trained["peak"])

    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with serve(args.bin, directory / "state") as nibble:
            nibble("models", "import", args.model, "--name", "base", "--dtype", "bf16")
            nibble("datasets", "upload", write_prose(directory / "prose.jsonl"), "--name", "prose")
            for turn in range(args.turns):
                for number, (name, spec) in enumerate(runs.items()):
                    path = directory / "spec.json"
                    path.write_text(json.dumps(spec))
                    note(name, run(nibble, path, f"run{number}-{turn}", args.steps))
                if args.peer:
                    note(PEER, train_peer(PEER_SCRIPT, args.steps, 1e-5, directory))
    result = {"cpu": cpu_name(),
              "runs": {name: {"tokens_per_s": statistics.median(rates[name]), "peak_bytes": peaks[name]} for name in names}}
    baseline = result["runs"][BASELINE]
    print(f"{result['cpu']}; {args.turns} turns of {args.steps} steps of 4 x 256 tokens")
    print(f"{'method':28} {'peak MiB':>9} {'of ' + BASELINE:>26} {'tokens/s':>9} {'ratio':>6}")
    for name, row in result["runs"].items():
        print(f"{name:28} {row['peak_bytes'] / 2**20:9.0f} {row['peak_bytes'] / baseline['peak_bytes']:26.2f} "
              f"{row['tokens_per_s']:9.0f} {row['tokens_per_s'] / baseline['tokens_per_s']:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
