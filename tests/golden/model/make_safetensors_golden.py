#!/usr/bin/env python3
"""Writes the results of the `safetensors` crate (0.8.0, through its Python package) for every file of
tests/fuzz/corpus/safetensors: each tensor with the SHA-256 of its bytes, or null for a refused file. Our reader must
agree, except where safetensors.h says that it is stricter. Run after tests/fuzz/make_corpus.py with an interpreter that
has the package (build/deps/venv)."""
import hashlib
import json
import pathlib

import safetensors

assert safetensors.__version__ == "0.8.0", safetensors.__version__
HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parent.parent / "fuzz/corpus/safetensors"

verdicts = {}
for path in sorted(CORPUS.iterdir()):
    try:
        tensors = safetensors.deserialize(path.read_bytes())
    except Exception:  # the package's error, or pyo3's if a header makes it panic
        verdicts[path.name] = None
        continue
    verdicts[path.name] = {name: {"dtype": tensor["dtype"], "shape": tensor["shape"],
                                  "sha256": hashlib.sha256(bytes(tensor["data"])).hexdigest()} for name, tensor in tensors}
(HERE / "safetensors_corpus.json").write_text(json.dumps(verdicts, indent=1, ensure_ascii=True) + "\n")
