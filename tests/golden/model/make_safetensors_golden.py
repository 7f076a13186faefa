#!/usr/bin/env python3
"""What the `safetensors` crate (0.8.0, through its Python package) says of every file of tests/fuzz/corpus/safetensors: each
tensor with the SHA-256 of its bytes, or null where it refuses the file. Ours must agree, but where safetensors.h says that it
is stricter. Run after tests/fuzz/make_corpus.py with an interpreter that has the package (build/deps/venv)."""
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
    except Exception:  # the package's own error, or pyo3's for a header that it panics on
        verdicts[path.name] = None
        continue
    verdicts[path.name] = {name: {"dtype": tensor["dtype"], "shape": tensor["shape"],
                                  "sha256": hashlib.sha256(bytes(tensor["data"])).hexdigest()} for name, tensor in tensors}
(HERE / "safetensors_corpus.json").write_text(json.dumps(verdicts, indent=1, ensure_ascii=True) + "\n")
