#!/usr/bin/env python3
"""Compares QLoRA with merge-aware QLoRA by the held-out loss of the int8 model that is served.

usage: merge_aware_loss.py MODEL.gguf [--bin build/release/bin] [--steps 40] [--seeds 1 ...] [--json OUT.json]
The jobs are those of `deploy/quickstart.sh --task definitions`, with each seed: rank 16, 4 x 256 tokens, learning rate
1e-3, on 16,000 WordNet glosses. Prints the evaluation losses before, as trained and as int8. Fails if the losses of the
merge-aware job as trained and as int8 differ in any bit, if `models verify` finds a difference, or, with several seeds,
if the mean loss as int8 is not below that of QLoRA. One seed does not tell the methods apart (docs/benchmarks.md).
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from nibbled import convert, cpu_name, serve, trained_losses, upload_wordnet

RUNS = {"qlora": {"qlora": {}}, "merge-aware": {"qlora": {"merge_aware_int8": True}}}


def measure(nibble, spec, name, steps, seed):
    """The evaluation losses before, as trained and as int8."""
    text = nibble("jobs", "create", "--spec", spec, "--base", "base", "--dataset", "train", "--eval-dataset", "eval", "--output", name,
                  "--max-steps", steps, "--micro-batch", 4, "--seq-len", 256, "--lr", "1e-3", "--rank", 16, "--alpha", 32, "--seed", seed,
                  "--save-every", 0, "--watch")
    losses = trained_losses(text)
    int8, equal = convert(nibble, name, "int8", f"{name}-int8")
    assert equal, f"{name}: serving does not compute what was recorded"
    return losses[0], losses[-1], int8


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    served = {name: [] for name in RUNS}
    print(f"{cpu_name()}; evaluation loss before, as trained, as int8")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with serve(args.bin, directory / "state") as nibble:
            nibble("models", "import", args.model, "--name", "base", "--dtype", "bf16")
            upload_wordnet(nibble, directory, "--task", "definitions")
            for seed in args.seeds:
                for name, method in RUNS.items():
                    spec = directory / "spec.json"
                    spec.write_text(json.dumps(method))
                    before, trained, int8 = measure(nibble, spec, f"{name}-{seed}", args.steps, seed)
                    print(f"{name:12} seed {seed}: {before:.4f}, {trained:.4f}, {int8:.4f}", flush=True)
                    assert name == "qlora" or trained == int8, f"{name}: as trained {trained!r}, as int8 {int8!r}"
                    served[name].append(int8)
    means = {name: statistics.fmean(losses) for name, losses in served.items()}
    print(f"mean as int8: qlora {means['qlora']:.4f}, merge-aware {means['merge-aware']:.4f}")
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu_name(), "int8_losses": served}, indent=1) + "\n")
    assert len(args.seeds) == 1 or means["merge-aware"] < means["qlora"], "merge-aware training does not lower the int8 loss"


if __name__ == "__main__":
    main()
