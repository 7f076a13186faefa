#!/usr/bin/env python3
"""QLoRA on SmolLM2-135M, 4 x 256 tokens, bf16, rank 16 on all linears, 2 threads: nibble-trainer, PEFT + bitsandbytes.

usage: peers_qlora.py MODEL.gguf [--bin build/release/bin] [--steps 8] [--turns 2] [--json OUT.json]
Needs torch, transformers, peft, bitsandbytes. The peer trains random weights of the same shape on random tokens. The
two take turns, ours first. tokens/s: the median over the steps after the second of each turn. Peak memory: VmHWM; for
the peer only from its first step on, when its model exists. Checks that the losses of both are finite, and that our
last loss is at most 5 % above our first one.
"""
import argparse
import json
import math
import pathlib
import statistics
import tempfile

from nibbled import cpu_name, serve, train, train_peer, write_prose

PEER = """
import torch, bitsandbytes as bnb
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(2)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=2048)).to(torch.bfloat16)
for layer in model.model.layers:
    for block in (layer.self_attn, layer.mlp):
        for name, linear in list(block.named_children()):
            if not isinstance(linear, torch.nn.Linear):
                continue
            packed = bnb.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, compute_dtype=torch.bfloat16,
                                       compress_statistics=True, quant_type="nf4")
            packed.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True)
            setattr(block, name, packed.to("cpu"))
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                                               "up_proj", "down_proj"]))
vocabulary = 49152
"""


def ours(nibble, output, steps):
    step_events = train(nibble, output, steps)
    return {"rates": [step["tokens_per_s"] for step in step_events], "peak": step_events[-1]["peak_memory_bytes"],
            "losses": [step["loss"] for step in step_events]}


def make_parser(description, turns):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--json", type=pathlib.Path)
    return parser


def race(args, import_base, peer, name):
    """import_base(nibble, directory) imports the model "base". `peer`: a script that makes `model` and `vocabulary`; `name`: its name."""
    result = {"cpu": cpu_name(), "ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with serve(args.bin, directory / "state") as nibble:
            nibble("datasets", "upload", write_prose(directory / "prose.jsonl"), "--name", "prose")
            import_base(nibble, directory)
            for turn in range(args.turns):
                result["ours"].append(ours(nibble, f"turn{turn}", args.steps))
                result["peer"].append(train_peer(peer, args.steps, 1e-4, directory))
    for side in ("ours", "peer"):
        for turn in result[side]:
            assert all(map(math.isfinite, turn["losses"])), f"{side}: a loss is not finite: {turn['losses']}"
        rates = [rate for turn in result[side] for rate in turn["rates"][2:]]
        result[side + "_tokens_per_s"] = statistics.median(rates)
        result[side + "_peak_bytes"] = max(turn["peak"] for turn in result[side])
        print(f"{side}: {result[side + '_tokens_per_s']:.0f} tokens/s (median of {len(rates)}, {min(rates):.0f}-{max(rates):.0f}), "
              f"peak {result[side + '_peak_bytes'] / 2**20:.0f} MiB")
    print(f"{result['cpu']}: {result['ours_tokens_per_s'] / result['peer_tokens_per_s']:.2f}x the tokens/s at "
          f"{result['ours_peak_bytes'] / result['peer_peak_bytes']:.2f} of the peak memory of {name}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


def main():
    parser = make_parser(__doc__, turns=2)
    parser.add_argument("gguf")
    args = parser.parse_args()
    race(args, lambda nibble, _: nibble("models", "import", args.gguf, "--name", "base", "--dtype", "bf16"), PEER, "PEFT + bitsandbytes")


if __name__ == "__main__":
    main()
