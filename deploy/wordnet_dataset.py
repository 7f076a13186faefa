#!/usr/bin/env python3
"""Makes chat-format training files from WordNet 3.0's noun glosses (Debian package wordnet-base; WordNet licence).

usage: wordnet_dataset.py OUT_DIR [--task definitions | kinds] [--rows 16000] [--eval-rows 64]
                          [--source /usr/share/wordnet/data.noun]

Writes OUT_DIR/train.jsonl and OUT_DIR/eval.jsonl, one {"messages": [...]} per line. definitions: the user asks for a
definition, and the assistant answers with only the gloss. kinds: the user gives a word and its definition, and the
assistant answers with one word, its kind (KINDS). The choice of rows depends only on the words, so every run makes the
same bytes.
"""
import argparse
import hashlib
import json
import pathlib
import sys


# Lexicographer files of WordNet (lexnames(5WN)) whose nouns people tell apart at once.
KINDS = {"04": "activity", "05": "animal", "06": "artifact", "08": "body", "12": "feeling", "13": "food", "15": "place",
         "18": "person", "20": "plant", "27": "substance", "28": "time"}


def glosses(path):
    """Yields (word, definition, lexicographer file) of each synset; wndb(5WN) describes the file's format."""
    for line in path.open(encoding="utf-8"):
        if line.startswith("  "):  # the licence at the start of the file
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split(" ")
        word = parts[4].replace("_", " ")
        definition = gloss.split('; "')[0].strip()
        if word.isascii() and word.islower() and 20 <= len(definition) <= 300:
            yield word, definition, parts[1]


def question_and_answer(task, word, definition, file):
    if task == "definitions":
        return f"Define: {word}", definition
    return f"What kind of thing is this? {word}: {definition}", KINDS[file]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--task", choices=("definitions", "kinds"), default="definitions")
    parser.add_argument("--rows", type=int, default=16000)
    parser.add_argument("--eval-rows", type=int, default=64)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path("/usr/share/wordnet/data.noun"))
    args = parser.parse_args()
    if not args.source.exists():
        sys.exit(f"{args.source} does not exist: install the Debian package wordnet-base")
    first = {}
    for word, definition, file in glosses(args.source):
        if args.task == "definitions" or file in KINDS:
            first.setdefault(word, (definition, file))
    order = sorted(first, key=lambda word: hashlib.sha256(word.encode()).digest())
    chosen = order[: args.rows + args.eval_rows]
    if len(chosen) <= args.eval_rows:
        sys.exit(f"{args.source} has {len(first)} usable words, wanted more than {args.eval_rows}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, words in (("eval", chosen[: args.eval_rows]), ("train", chosen[args.eval_rows:])):
        with (args.out / f"{name}.jsonl").open("w", encoding="utf-8") as output:
            for word in words:
                question, answer = question_and_answer(args.task, word, *first[word])
                messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
                output.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    size = (args.out / "train.jsonl").stat().st_size
    print(f"{args.out}/train.jsonl: {len(chosen) - args.eval_rows} rows, {size / 1e6:.1f} MB; eval.jsonl: {args.eval_rows} rows")


if __name__ == "__main__":
    main()
