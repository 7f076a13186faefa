#!/usr/bin/env python3
"""Measures how much QLoRA on SmolLM2-135M and generation from its int8 form, on the same server, slow each other down.

usage: train_beside_serve.py MODEL.gguf [--bin build/release/bin] [--steps 8] [--turns 3] [--json OUT.json]
Two servers take turns: one unchanged, and one whose trainers' OpenMP threads wait as libgomp does by default
(GOMP_SPINCOUNT unset). tokens/s are medians: for training over the steps after the second of each job, for generation
over the requests, each one stream of 128 tokens. Checks that all jobs have equal losses, step by step.
"""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import tempfile
import threading
import time

from nibbled import cpu_name, serve, train, write_prose

TOKENS = 128


def generate(nibble):
    began = time.perf_counter()
    answer = json.loads(nibble("generate", "int8", "--prompt", "The boat", "--max-tokens", TOKENS, "--ignore-eos"))
    assert len(answer["token_ids"]) == TOKENS
    return TOKENS / (time.perf_counter() - began)


def beside(nibble, output, steps):
    """Trains while one client generates without a pause; returns the steps and the rates of the requests."""
    over = threading.Event()

    def ask():
        rates = []
        while not over.is_set():
            rates.append(generate(nibble))
        return rates
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            step_events = train(nibble, output, steps)
        finally:
            over.set()
        return step_events, asked.result()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    result = {"cpu": cpu_name()}
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        spinning = directory / "spinning-trainer"
        spinning.write_text(f'#!/bin/sh\nunset GOMP_SPINCOUNT\nexec {(args.bin / "nibble-trainer").resolve()} "$@"\n')
        spinning.chmod(0o755)
        prose = write_prose(directory / "prose.jsonl")
        with serve(args.bin, directory / "a") as ours, serve(args.bin, directory / "b", "--trainer", spinning) as libgomps:
            sides = {"ours": ours, "libgomp": libgomps}
            alone, both, rates, answers = ({side: [] for side in sides} for _ in range(4))
            for nibble in sides.values():
                nibble("models", "import", args.gguf, "--name", "base", "--dtype", "bf16")
                nibble("models", "convert", "base", "--to", "int8", "--name", "int8")
                nibble("datasets", "upload", prose, "--name", "prose")
                generate(nibble)  # loads the model
            result["generate_alone"] = statistics.median(generate(ours) for _ in range(5))
            curves = []
            for turn in range(args.turns):
                for side, nibble in sides.items():
                    step_events = train(nibble, f"alone{turn}", args.steps)
                    alone[side] += [step["tokens_per_s"] for step in step_events[2:]]
                    curves.append([step["loss"] for step in step_events])
                    step_events, asked = beside(nibble, f"beside{turn}", args.steps)
                    both[side] += [step["tokens_per_s"] for step in step_events[2:]]
                    answers[side] += asked
                    curves.append([step["loss"] for step in step_events])
            assert all(curve == curves[0] for curve in curves), "generation changed a loss"
    print(f"{result['cpu']}: generate alone {result['generate_alone']:.0f} tokens/s")
    for side in sides:
        result[side] = {"train_alone": statistics.median(alone[side]), "train_beside": statistics.median(both[side]),
                        "generate_beside": statistics.median(answers[side])}
        print(f"{side}: training {result[side]['train_alone']:.0f} tokens/s alone ({min(alone[side]):.0f}-{max(alone[side]):.0f}), "
              f"{result[side]['train_beside']:.0f} beside ({min(both[side]):.0f}-{max(both[side]):.0f}), "
              f"generating {result[side]['generate_beside']:.0f} tokens/s beside ({min(answers[side]):.0f}-{max(answers[side]):.0f})")
    print(f"ours beside: {result['ours']['train_beside'] / result['libgomp']['train_beside']:.2f}x the training, "
          f"{result['ours']['generate_beside'] / result['libgomp']['generate_beside']:.2f}x the generation")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
