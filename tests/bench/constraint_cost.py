#!/usr/bin/env python3
"""Measures what a constraint costs a step of generation with 8 outputs at a time.

usage: constraint_cost.py MODEL.gguf [--bin build/release/bin] [--turns 7] [--json OUT.json]
Requests of one prompt with 8 outputs of 256 tokens take turns on one server: without a constraint, and with
JSON schemas whose texts are longer than 256 tokens. The time of a step is the request's time without its first
token, divided by the tokens of one output. Checks that every output has 256 tokens and begins as the constraint demands.
"""
import argparse
import json
import pathlib
import re
import statistics
import tempfile
import time
import urllib.request

from nibbled import cpu_name, serve

TOKENS, OUTPUTS = 256, 8


def items(city):
    item = {"type": "object", "properties": {"city": city, "degrees": {"type": "integer"}, "wind": {"enum": ["north", "south", "east", "west"]},
                                             "wet": {"type": "boolean"}},
            "required": ["city", "degrees", "wind", "wet"], "additionalProperties": False}
    return {"guided_json": {"type": "array", "items": item, "minItems": 200}}


CASES = {
    "none": ({"ignore_eos": True}, "(?s:.*)"),
    "schema": (items({"type": "string"}), r'\[\{"city":"(?s:.*)'),
    "schema, short texts": (items({"type": "string", "maxLength": 40}), r'\[\{"city":"(?s:.*)'),
}


def ask(url, tokens, fields):
    body = {"model": "int8", "prompt": "The weather of the week:", "n": OUTPUTS, "max_tokens": tokens, "temperature": 0.7, "seed": 1, **fields}
    request = urllib.request.Request(f"http://{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == OUTPUTS * tokens, answer["usage"]
    return time.perf_counter() - began, [choice["text"] for choice in answer["choices"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    steps = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as directory:
        state = pathlib.Path(directory) / "state"
        with serve(args.bin, state, "--openai_address", "127.0.0.1:0") as nibble:
            nibble("models", "import", args.gguf, "--name", "base")
            nibble("models", "convert", "base", "--to", "int8", "--name", "int8")
            url = json.loads((state / "server.json").read_text())["openai_address"]
            for fields, _ in CASES.values():
                ask(url, 8, fields)  # loads the model, compiles the constraint
            for _ in range(args.turns):
                for name, (fields, form) in CASES.items():
                    first, _ = ask(url, 1, fields)
                    whole, texts = ask(url, TOKENS, fields)
                    assert all(re.fullmatch(form, text) for text in texts), texts
                    steps[name].append((whole - first) / (TOKENS - 1) * 1000)
    result = {"cpu": cpu_name(), "step_ms": {name: statistics.median(values) for name, values in steps.items()}}
    for name in CASES:
        # Ratios of one turn, because the machine's speed changes.
        ratios = [one / none for one, none in zip(steps[name], steps["none"], strict=True)]
        print(f"{name:19}  {result['step_ms'][name]:.2f} ms a step, {statistics.median(ratios):.3f} of a step without a constraint")
        result.setdefault("ratio", {})[name] = statistics.median(ratios)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
