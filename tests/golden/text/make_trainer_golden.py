#!/usr/bin/env python3
"""Writes trained_bpe.json: what the Python package tokenizers trains on the texts of text_samples.py, in two sizes.

Needs tokenizers==0.23.3.
"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from text_samples import TRAINING

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train(vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(TRAINING, trainer)
    return json.loads(tokenizer.to_str())


cases = [{"vocab_size": size, "tokenizer": train(size)} for size in (300, 100_000)]
text = json.dumps({"texts": TRAINING, "special_tokens": SPECIAL, "cases": cases}, ensure_ascii=True, separators=(",", ":"))
(HERE / "trained_bpe.json").write_text(text + "\n")
print(f"trained_bpe.json: {len(text)} bytes")
