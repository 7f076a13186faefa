"""Makes tests/golden/model/families: a tiny random model of every family, saved by transformers, and the logprobs that
transformers computes with it in f32. Run it in a virtual environment with

    transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3 numpy==2.4.6 torch==2.11.0

    python tests/golden/model/make_family_golden.py [OUT [FAMILY...]]

With names it makes only those families and leaves the others in OUT unchanged. Everything is seeded: the same versions
write the same bytes.
"""
import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers

from make_model_golden import tokenizer_json

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, TOKENS = 112, 256

COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=2)

FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, dict(tie_word_embeddings=True, mlp_bias=True)),
    # 64 positions, so that one frequency is unchanged, one blended and the others stretched.
    "llama3": (transformers.LlamaConfig, transformers.LlamaForCausalLM,
               dict(head_dim=12, attention_bias=True, rope_parameters=dict(
                   rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64))),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM,
                dict(sliding_window=300, head_dim=12, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, dict(tie_word_embeddings=True)),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM,
              dict(head_dim=16, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM, dict(rms_norm_eps=1e-5)),
    "bitnet": (transformers.BitNetConfig, transformers.BitNetForCausalLM, dict(rms_norm_eps=1e-5)),
}


def make(family, seed=0, **changes):
    """A random model in which every part affects the result, including biases, norms and the keys that attention
    sees."""
    config_class, model_class, own = FAMILIES[family]
    torch.manual_seed(sum(map(ord, family)) + seed)
    model = model_class(config_class(**{**COMMON, **own, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        else:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def token_ids(vocab=VOCAB, count=TOKENS, seed=1):
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def logprobs(model, ids):
    """[len(ids) - 1]: logprob of each token given the tokens before it, in f32."""
    logits = model(torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits.double(), -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def main(out, only=()):
    answers = json.loads((out / "logprobs.json").read_text()) if only else {}
    for old in [out / family for family in only] or [out]:
        shutil.rmtree(old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    for family in only or FAMILIES:
        model = make(family)
        for parameter in model.parameters():  # not model.to(bfloat16): that would round the rotary frequencies too
            parameter.data = parameter.data.to(torch.bfloat16).float()
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out / family)
        (out / family / "generation_config.json").unlink(missing_ok=True)
        answers[family] = {"token_ids": token_ids(), "logprobs": [round(x, 6) for x in logprobs(model, token_ids())]}
    tokenizer_json().save(str(out / "tokenizer.json"))
    (out / "logprobs.json").write_text(json.dumps({family: answers[family] for family in FAMILIES}) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "families", sys.argv[2:])
