"""Makes stochastic.txt, the golden values of quantize_int8 with stochastic rounding.

    numpy==2.4.6

    python tests/golden/kernels/make_kernel_golden_stochastic.py

Philox4x32-10 in Python's integers, and the rule of kernels/formats/int8.h in numpy float32.
"""
import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "stochastic.txt"
F32 = np.float32
MASK = (1 << 32) - 1


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def draw(seed, stream, row, column):
    words = philox([column // 8, row, stream & MASK, stream >> 32], [seed & MASK, seed >> 32])
    half = column % 8
    return F32(((words[half // 2] >> 16 * (half % 2)) & 0xFFFF) + 0.5) / F32(65536)


def main():
    assert philox([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])[0] == 0xD16CFE09
    seed, stream = (7 << 40) + 11, (3 << 33) + 5
    x = np.random.default_rng(20261128).standard_normal((6, 45)).astype(F32)
    x[1, 7] = 127
    x[1, 8:30] = np.arange(-11, 11)  # integers in units of the scale
    scale = np.maximum(np.abs(x).max(1), F32(1e-12)) / F32(127)
    v = x * (F32(1) / scale)[:, None]
    below = np.floor(v)
    draws = np.array([[draw(seed, stream, r, c) for c in range(45)] for r in range(6)], F32)
    codes = np.clip(below + (v - below > draws), -127, 127).astype(np.int8)
    nearest = np.rint(v)
    assert (codes != nearest).sum() > 20 and (codes[1, 7:30] == nearest[1, 7:30]).all()
    lines = [f"{name} {values.dtype} {np.ascontiguousarray(values).tobytes().hex()}"
             for name, values in (("x", x), ("scale", scale), ("codes", codes),
                                  ("seed", np.array([seed], np.int64)), ("stream", np.array([stream], np.int64)))]
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
