"""Compares our safetensors reader with the `safetensors` crate (through its Python package): on the corpus of F1, on
files that each show one difference, and on hundreds of files from a seeded generator. We refuse every file that the
crate refuses. Files that both accept give the same names, types, shapes, bytes and metadata. Files that only the crate
accepts are refused for a reason listed in DIFFERENCES."""
import collections
import hashlib
import json
import pathlib
import random
import re
import struct
import subprocess

import pytest
import safetensors

from conftest import BIN, ROOT

CORPUS = ROOT / "tests/fuzz/corpus/safetensors"
PROGRAM = BIN / "safetensors_verdicts"
SEED, NUM_BUILT, NUM_FLIPPED = 20251122, 400, 300

# Reasons for which we refuse what the crate accepts, and patterns for our messages (server/model/safetensors.h explains
# them).
DIFFERENCES = {
    "duplicate keys": r'duplicate (name|key) "',
    "a dimension above 2^63 - 1": r"has a dimension of \d+$",
    "another serde spelling": r'an object or array at "',
    "cap: rank": r"rank above 8$",
    "cap: length of a name": r"a name longer than 512 bytes$",
    "cap: fields of a tensor": r"a tensor with more than 64 fields$",
    "cap: nesting of an unknown field": r"nested deeper than 64$",
    "cap: tensors": r"more than 100000 tensors$",
}

# The types of the crate and their bits. One element of 4 or 6 bits is not a whole byte.
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}


def pack(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text) if length is None else length) + text + data


FIELDS = '"dtype":"F32","shape":[2],"data_offsets":[0,8]'
ONE = '"a":{' + FIELDS + "}"
EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def one_difference_each():
    """Maps each difference to files that the crate accepts and we refuse for that reason."""
    data = b"\1" * 8
    return {
        "duplicate keys": [pack("{" + ONE + "," + ONE + "}", data), pack('{"__metadata__":{"k":"1","k":"2"},' + ONE + "}", data),
                           pack('{"a":{"x":1,"x":2,' + FIELDS + "}}", data), pack("{" + ONE + ',"\\u0061":{' + FIELDS + "}}", data)],
        "a dimension above 2^63 - 1": [pack('{"a":{"dtype":"F32","shape":[0,%d],"data_offsets":[0,0]}}' % (1 << 63))],
        "another serde spelling": [pack('{"a":["F32",[2],[0,8]]}', data),
                                        pack('{"a":{"dtype":{"F32":null},"shape":[2],"data_offsets":[0,8]}}', data)],
        "cap: rank": [pack('{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}', b"\1")],
        "cap: length of a name": [pack('{"' + "n" * 513 + '":' + EMPTY + "}")],
        "cap: fields of a tensor": [pack('{"a":{' + ",".join(f'"x{i}":0' for i in range(62)) + "," + FIELDS + "}}", data)],
        "cap: nesting of an unknown field": [pack('{"a":{"x":' + "[" * 65 + "]" * 65 + "," + FIELDS + "}}", data)],
        "cap: tensors": [pack("{" + ",".join(f'"{i}":{EMPTY}' for i in range(100_001)) + "}")],
    }


def crate(content):
    """The tensors that the crate reads; None if it refuses."""
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {name: {"dtype": tensor["dtype"], "shape": tensor["shape"], "sha256": hashlib.sha256(bytes(tensor["data"])).hexdigest()}
            for name, tensor in tensors}


def crate_metadata(path):
    with safetensors.safe_open(path, framework="np") as file:
        return file.metadata() or {}


def ours(folder):
    """Maps each file to our verdict."""
    lines = subprocess.run([PROGRAM, folder], env={}, capture_output=True, check=True, timeout=300).stdout.decode().splitlines()
    verdicts = {line.pop("file"): line for line in map(json.loads, lines)}
    assert set(verdicts) == {path.name for path in pathlib.Path(folder).iterdir()}
    return verdicts


def compare(folder):
    """Counts the files that both accepted, both refused, or only the crate accepted (by difference). Any other
    disagreement fails with the name of the file."""
    seen = collections.Counter()
    for name, verdict in ours(folder).items():
        path = pathlib.Path(folder) / name
        content = path.read_bytes()
        theirs = crate(content)
        what = f"{name}: {content[:400]!r}"
        if theirs is None:
            assert "error" in verdict, f"we accept what the crate refuses: {what}"
            seen["refused"] += 1
        elif "error" in verdict:
            named = [difference for difference, words in DIFFERENCES.items() if re.search(words, verdict["error"])]
            assert len(named) == 1, f"refused for {verdict['error']!r}, which is not an intended difference: {what}"
            seen[named[0]] += 1
        else:
            assert verdict["tensors"] == theirs, what
            assert verdict["metadata"] == crate_metadata(path), what
            seen["taken"] += 1
    return seen


class Generator:
    """Makes files: about half of built() are valid, the others have one change, in most cases a fault. flipped() changes a
    few bytes of accepted files."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def space(self):
        return self.random.choice(["", "", "", " ", "\n", "\t\r "])

    def name(self):
        return self.random.choice(["a", "b", "model.layers.0.weight", "", "\u00e9", "\U0001f642", 'q"\\', "a/../b", "__metadata", "a\u0000",
                                   "x" * 512])

    def text(self, value):
        """JSON with random white space and escapes."""
        if isinstance(value, dict):
            return "{" + self.space() + ",".join(self.space() + self.text(key) + self.space() + ":" + self.space() + self.text(item)
                                                 for key, item in value.items()) + self.space() + "}"
        if isinstance(value, list):
            return "[" + ",".join(self.space() + self.text(item) for item in value) + self.space() + "]"
        if isinstance(value, str) and value and self.random.random() < 0.1:
            units = value.encode("utf-16-le", "surrogatepass")
            return '"' + "".join(f"\\u{low + 256 * high:04x}" for low, high in zip(units[::2], units[1::2])) + '"'
        return json.dumps(value, ensure_ascii=self.random.random() < 0.5)

    def tensors(self):
        """Tensors (name -> fields) that fill their data, in random order; and the data."""
        made, at = {}, 0
        for _ in range(self.random.randrange(5)):
            dtype = self.random.choice(list(BITS))
            shape = [self.random.choice([0, 1, 2, 3, 4, 8]) for _ in range(self.random.randrange(4))]
            elements = 1
            for size in shape:
                elements *= size
            if elements * BITS[dtype] % 8 != 0:
                shape, elements = [*shape, 4], elements * 4
            name = self.name()
            if name in made:
                continue
            end = at + elements * BITS[dtype] // 8
            fields = [("dtype", dtype), ("shape", shape), ("data_offsets", [at, end])]
            if self.random.random() < 0.2:
                fields.append(self.random.choice([("x", None), ("note", "y"), ("n", -1.5e-3), ("deep", [[{"k": [True, 2**70]}]])]))
            self.random.shuffle(fields)
            made[name], at = dict(fields), end
        items = list(made.items())
        self.random.shuffle(items)
        if self.random.random() < 0.3:
            items.insert(self.random.randrange(len(items) + 1),
                         ("__metadata__", self.random.choice([None, {}, {"format": "pt"}, {"k\n": "\u00e9", "": ""}])))
        return dict(items), self.random.randbytes(at)

    def lie(self, header, data):
        """Makes one change, in most cases a fault; returns (text of the header, data)."""
        names = [name for name, fields in header.items() if name != "__metadata__"]
        tensor = header[self.random.choice(names)] if names else None
        kind = self.random.randrange(16)
        if tensor is not None and kind < 9:
            offsets, shape = tensor["data_offsets"], tensor["shape"]
            if kind == 0:
                offsets[self.random.randrange(2)] += self.random.choice([-1, 1, 8, 1 << 63, (1 << 64) - 8])
            elif kind == 1:
                tensor["data_offsets"] = self.random.choice([offsets[::-1], offsets[:1], [*offsets, 0], [str(offsets[0]), offsets[1]],
                                                             [0.0, offsets[1]]])
            elif kind == 2:
                sizes = [0, 1, 2, -1, 1 << 32, 1 << 62, (1 << 63) - 1, 1.0, "2", None, [1]]
                shape.insert(self.random.randrange(len(shape) + 1), self.random.choice(sizes))
            elif kind == 3:
                tensor["dtype"] = self.random.choice([*BITS, "f32", "F128", "", 7, None, ["F32"]])
            elif kind == 4:
                del tensor[self.random.choice(list(tensor))]
            elif kind == 5:
                header[self.random.choice(names)] = self.random.choice([[], {}, None, 1, "F32"])
            elif kind == 6:
                header["__metadata__"] = self.random.choice([[], "x", {"k": 1}, {"k": None}, {"k": {}}, 0, tensor])
            elif kind == 7:
                tensor["extra"] = self.random.choice([[[[]]] * 3, {"dtype": {"shape": []}}, "\ud800", "\u0001", -(1 << 80)])
            else:
                header["other"] = dict(tensor)
        text = self.text(header)
        if kind == 9:
            data = data[:-1] if data else b"\0"
        elif kind == 10:
            data += b"PK\5\6" + b"\0" * self.random.randrange(20)
        elif kind == 11:
            text = self.random.choice(["\ufeff", "\0", "/**/", "[", "\u00a0", "{}", "//\n"]) + text
        elif kind == 12:
            text += self.random.choice(["\0", " \n", "{}", ",", "]", "#", "\x1a"])
        elif kind == 13:
            text = text.replace("}", ",}", 1) if self.random.random() < 0.5 else text.replace('"', "'", 2)
        elif kind == 14:
            text = text.replace(":", ":" + self.random.choice(["0", "-", "+", "NaN,", "1e999,", "tru", '"\\ud800"']), 1)
        elif kind == 15:
            text = text[:self.random.randrange(len(text))]
        return text, data

    def built(self):
        header, data = self.tensors()
        if self.random.random() < 0.5:
            return pack(self.text(header), data)
        text, data = self.lie(header, data)
        length = None if self.random.random() < 0.95 else self.random.choice([0, 1, 7, 1 << 20, 100_000_001, (1 << 64) - 8])
        return pack(text, data, length)

    def flipped(self, good):
        """One of `good` with a few bytes changed; half of the time the length of the header is corrected."""
        content = bytearray(self.random.choice(good))
        size = len(content)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(len(content) + 1)
            kind = self.random.randrange(5)
            if kind == 0 and at < len(content):
                content[at] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                content[at:at] = self.random.choice([b"0", b"1", b",", b'"', b"{}", b"[", b" ", b"\xff", b"\xc3\xa9", b"\0"])
            elif kind == 2:
                del content[at:at + self.random.randrange(1, 5)]
            elif kind == 3:
                content[at:at] = content[at:at + self.random.randrange(1, 40)]
            else:
                del content[at:]
        if len(content) >= 8 and self.random.random() < 0.5:
            length = struct.unpack("<Q", content[:8])[0] + len(content) - size
            content[:8] = struct.pack("<Q", length % (1 << 64))
        return bytes(content)


def test_f1_agrees_on_the_corpus():
    seen = compare(CORPUS)
    assert seen["taken"] >= 8 and seen["refused"] >= 25, seen


def test_f1_each_named_difference_exists(tmp_path):
    files = one_difference_each()
    assert set(files) == set(DIFFERENCES)
    for i, (difference, contents) in enumerate(files.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        for j, content in enumerate(contents):
            (folder / str(j)).write_bytes(content)
        assert compare(folder) == {difference: len(contents)}, difference


@pytest.mark.parametrize("dtype", BITS)
def test_f1_accepts_every_type_of_the_crate(dtype, tmp_path):
    size = 4 * BITS[dtype] // 8
    (tmp_path / "file").write_bytes(pack('{"a":{"dtype":"%s","shape":[4],"data_offsets":[0,%d]}}' % (dtype, size), b"\1" * size))
    assert compare(tmp_path) == {"taken": 1}


def test_f1_agrees_on_generated_files(tmp_path):
    generator = Generator(SEED)
    built = [generator.built() for _ in range(NUM_BUILT)]
    good = [content for content in [path.read_bytes() for path in sorted(CORPUS.iterdir())] + built if crate(content) is not None]
    for i, content in enumerate(built + [generator.flipped(good) for _ in range(NUM_FLIPPED)]):
        (tmp_path / f"{i:04}").write_bytes(content)
    seen = compare(tmp_path)
    assert seen["taken"] >= 150 and seen["refused"] >= 200, seen
