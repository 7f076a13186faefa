#!/usr/bin/env python3
"""Writes the goldens of tests/server/text from three independent programs.

Needs transformers==5.23.0, tokenizers==0.23.3, llama-cpp-python==0.3.36, gguf==0.19.0.

    make_text_golden.py [--smollm2 SmolLM2-135M-Instruct.Q4_1.gguf] [--retrain]

tiny_vocabularies.json  two vocabularies of a few hundred tokens, in the form of a GGUF file
tiny_ids.json           llama.cpp's token ids with them, for each tokenizer.ggml.pre
smollm2_ids.json        llama.cpp's token ids with the real file (only with --smollm2)
hf_*.json               two tokenizer.json in the styles of Qwen 2 and of Llama 2 since transformers 4.4x
hf_ids.json             transformers' ids with them, and the decoded texts
chat_templates.json     transformers' renderings of templates/*.jinja and of snippets
"""

import argparse
import json
import pathlib
import sys
import tempfile

import gguf
import llama_cpp
import transformers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers.utils.chat_template_utils import render_jinja_template

from chat_cases import CASES, DATA, REFUSED, SNIPPETS
from text_samples import TEXTS, TRAINING

HERE = pathlib.Path(__file__).parent
PRES = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write(name, value, indent=0):
    text = json.dumps(value, indent=indent, separators=(",", ":"))
    (HERE / name).write_text(text + "\n")
    print(f"{name}: {len(text)} bytes")


def train_byte_level():
    """Words are cut only at blanks, so that merges cross the cuts of the pre-tokenizers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s*\S+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(TRAINING, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    # A token that is searched in the text, but is not a control token.
    tokens.append("<user_defined>")
    types.append(4)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {"model": "gpt2", "tokens": tokens, "token_types": types, "merges": merges,
            "bos_id": 0, "eos_id": 2, "unk_id": 0, "pad_id": 2}


def train_sentence_piece():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False, limit_alphabet=90)
    tokenizer.train_from_iterator(TRAINING, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learnt = [a + b for a, b in model["merges"]]
    alphabet = [t for t in sorted(model["vocab"], key=model["vocab"].get) if t not in set(learnt)]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>"] + byte_tokens + learnt + alphabet
    types = [2, 3, 3] + [6] * 256 + [1] * (len(learnt) + len(alphabet))
    # As SentencePiece writes scores: minus the rank.
    scores = [0.0] * 259 + [-float(i) for i in range(len(learnt) + len(alphabet))]
    return {"model": "llama", "tokens": tokens, "token_types": types, "scores": scores,
            "bos_id": 1, "eos_id": 2, "unk_id": 0}


def write_gguf(path, vocabulary, pre, **flags):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(vocabulary["model"])
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["token_types"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    writer.add_bos_token_id(vocabulary["bos_id"])
    writer.add_eos_token_id(vocabulary["eos_id"])
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def llama_ids(path, texts):
    llama = llama_cpp.Llama(model_path=str(path), vocab_only=True, verbose=False)
    return [llama.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


def tiny_goldens(retrain):
    # Training breaks ties at random, so keep the committed vocabularies.
    if retrain:
        write("tiny_vocabularies.json", {"byte_level": train_byte_level(), "sentence_piece": train_sentence_piece()})
    vocabularies = json.loads((HERE / "tiny_vocabularies.json").read_text())
    byte_level, sentence_piece = vocabularies["byte_level"], vocabularies["sentence_piece"]
    hugging_face_goldens(byte_level, sentence_piece)
    cases = [("byte_level", pre, {}) for pre in PRES]
    cases += [("byte_level", "", {}), ("byte_level", "smollm", {"add_bos_token": True, "add_eos_token": True})]
    cases += [("sentence_piece", "", {}), ("sentence_piece", "default", {"add_space_prefix": False}),
              ("sentence_piece", "default", {"add_bos_token": False, "add_eos_token": True})]
    texts = TEXTS + ["a<user_defined>b <s>x</s> y"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary, pre, flags in cases:
            path = pathlib.Path(folder) / "tiny.gguf"
            write_gguf(path, byte_level if vocabulary == "byte_level" else sentence_piece, pre, **flags)
            rows.append({"vocabulary": vocabulary, "pre": pre, "flags": flags, "ids": llama_ids(path, texts)})
    write("tiny_ids.json", {"llama_cpp_python": llama_cpp.__version__, "texts": texts, "cases": rows})


def qwen_style(vocabulary):
    """NFC, one pattern, byte level, and a template that adds tokens on both sides."""
    vocab = {token: i for i, token in enumerate(vocabulary["tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in vocabulary["merges"]]))
    tokenizer.normalizer = normalizers.NFC()
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
               r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def llama_style(vocabulary):
    """Metaspace, byte fallback, truncation that transformers omits, a stripping token."""
    vocab = {token: i for i, token in enumerate(vocabulary["tokens"])}
    order = sorted(vocab, key=vocab.get)[259:]
    merges = [(token[:cut], token[cut:]) for token in order for cut in range(1, len(token))
              if token[:cut] in vocab and token[cut:] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ["<unk>", "<s>", "</s>"]])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.enable_truncation(4)
    return tokenizer


def hugging_face_goldens(byte_level, sentence_piece):
    rows = []
    texts = TEXTS + ["hello <mask> world", "cats<|im_end|> e\u0301", "a<s>b</s> c"]
    for name, tokenizer in [("hf_qwen.json", qwen_style(byte_level)), ("hf_llama.json", llama_style(sentence_piece))]:
        (HERE / name).write_text(tokenizer.to_str(pretty=False) + "\n")
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(HERE / name))
        ids = [fast(text).input_ids for text in texts]
        rows.append({"file": name, "ids": ids,
                     "plain_ids": [fast(text, add_special_tokens=False).input_ids for text in texts],
                     "decoded": [fast.decode(i) for i in ids],
                     "decoded_skipping": [fast.decode(i, skip_special_tokens=True) for i in ids]})
    write("hf_ids.json", {"transformers": transformers.__version__, "texts": texts, "cases": rows})


def render(source, messages, options):
    text, _ = render_jinja_template(conversations=[messages], chat_template=source, **options)
    return text[0]


def template_goldens():
    rows = []
    for case in CASES:
        source = (HERE / "templates" / (case["template"] + ".jinja")).read_text()
        rows.append(case | {"rendered": render(source, case["messages"], case["special_tokens"] | case["options"])})
    snippets = []
    for source in SNIPPETS:
        snippets.append({"source": source, "rendered": render(source, [], DATA)})
    refused = []
    for source in REFUSED:
        try:
            render(source, [], DATA)
        except Exception as error:
            refused.append({"source": source, "error": type(error).__name__})
            continue
        sys.exit(f"transformers renders {source!r}")
    write("chat_templates.json", {"transformers": transformers.__version__, "cases": rows, "data": DATA,
                                  "snippets": snippets, "refused": refused}, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--smollm2")
    parser.add_argument("--retrain", action="store_true")
    arguments = parser.parse_args()
    template_goldens()
    tiny_goldens(arguments.retrain)
    if arguments.smollm2:
        texts = TEXTS + ["\n\n".join(TEXTS)]
        write("smollm2_ids.json", {"llama_cpp_python": llama_cpp.__version__, "texts": texts,
                                   "ids": llama_ids(arguments.smollm2, texts)})


if __name__ == "__main__":
    main()
