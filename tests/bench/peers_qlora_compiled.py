#!/usr/bin/env python3
"""QLoRA on a Llama shape of 107 million parameters, 4 x 256 tokens, bf16, rank 16 on all linears, 2 threads:
nibble-trainer and torchao's NF4 under torch.compile.

usage: peers_qlora_compiled.py [--bin build/release/bin] [--steps 8] [--turns 3] [--json OUT.json]
Needs torch, transformers, torchao. The weights are random on both sides. Turns, medians, peaks and checks are those of
peers_qlora.py; torch compiles in the first step.
"""
import json

from peers_qlora import make_parser, race

CONFIG = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816,
          "vocab_size": 8192, "tie_word_embeddings": False, "max_position_embeddings": 2048}
PEER = f"""
import torch
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(2)
torch.manual_seed(0)

class Nf4WithAdapter(torch.nn.Module):
    def __init__(self, linear, rank=16, alpha=32):
        super().__init__()
        self.base = torch.nn.Parameter(to_nf4(linear.weight.data, block_size=64, scaler_block_size=256), requires_grad=False)
        self.down = torch.nn.Linear(linear.in_features, rank, bias=False, dtype=torch.bfloat16)
        self.up = torch.nn.Linear(rank, linear.out_features, bias=False, dtype=torch.bfloat16)
        torch.nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, rows):
        return linear_nf4(input=rows, weight=self.base) + self.scale * self.up(self.down(rows))

model = LlamaForCausalLM(LlamaConfig(use_cache=False, **{CONFIG!r})).to(torch.bfloat16).requires_grad_(False)
for layer in model.model.layers:
    for block in (layer.self_attn, layer.mlp):
        for name, linear in list(block.named_children()):
            if isinstance(linear, torch.nn.Linear):
                setattr(block, name, Nf4WithAdapter(linear))
model, vocabulary = torch.compile(model), {CONFIG["vocab_size"]}
"""


def import_base(nibble, directory):
    source = directory / "shape"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                                                    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **CONFIG}))
    nibble("models", "import", source, "--name", "base", "--random", "--tokenizer-dataset", "prose")


def main():
    race(make_parser(__doc__, turns=3).parse_args(), import_base, PEER, "torchao's NF4 under torch.compile")


if __name__ == "__main__":
    main()
