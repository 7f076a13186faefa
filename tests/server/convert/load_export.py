"""Loads exports with transformers and PEFT: load_export.py HF_DIR PEFT_DIR. Exits with 0 only if all checks pass, and
PEFT gives no warning other than a FutureWarning."""
import json
import pathlib
import sys
import warnings

import numpy as np
import torch
import transformers
from peft import PeftModel
from safetensors.numpy import load_file

hf, peft = map(pathlib.Path, sys.argv[1:3])
model, info = transformers.AutoModelForCausalLM.from_pretrained(hf, output_loading_info=True)
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    assert not info[kind], (kind, info[kind])
stored = {}
for path in hf.glob("*.safetensors"):  # one file, or shards
    stored.update(load_file(path))
state = model.state_dict()
assert stored and stored.keys() <= state.keys(), stored.keys() - state.keys()
for name, value in stored.items():
    assert np.array_equal(state[name].float().numpy(), value.astype(np.float32)), name
tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
assert text == "user: hi\n", text
ids = torch.tensor([[0, 5, 9, 40]])
before = model(ids).logits

with torch.no_grad():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # PEFT calls deprecated functions of transformers
        adapted = PeftModel.from_pretrained(model, peft)
    tensors = load_file(peft / "adapter_model.safetensors")
    state = {k.replace(".default", ""): v for k, v in adapted.state_dict().items() if "lora_" in k}
    assert state.keys() == tensors.keys(), state.keys() ^ tensors.keys()
    for name, value in state.items():
        assert np.array_equal(value.float().numpy(), tensors[name]), name
    config = json.loads((peft / "adapter_config.json").read_text())
    layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.scaling["default"] == config["lora_alpha"] / config["r"]
    after = adapted(ids).logits
assert torch.isfinite(after).all() and not torch.equal(before, after)
print("ok")
