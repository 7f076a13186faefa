"""Makes low_rank.txt, the golden values of the largest singular values of weights and of their rank-r approximations.

    numpy==2.4.6

    python tests/golden/convert/make_low_rank_golden.py

The weights follow a formula, which low_rank_test.cc repeats, and are rounded to f32 once. numpy's LAPACK decomposes them in
float64.
"""
import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "low_rank.txt"
# Name, rows, columns, rank, rank of the weight. The last two are wider and longer than a complete basis.
CASES = [("wide", 24, 40, 5, 24), ("tall", 50, 17, 17, 17), ("square", 33, 33, 1, 33), ("one", 1, 5, 1, 1), ("deficient", 20, 30, 8, 3),
         ("large", 140, 150, 4, 140), ("large_deficient", 200, 150, 12, 6)]


def weight(rows, cols, rank):
    i, j = np.arange(rows)[:, None], np.arange(cols)[None, :]
    if rank == min(rows, cols):
        w = ((i * 37 + j * 101 + i * j * 7) % 97 - 48) * 2.0 ** -10 + 1 / (i + j + 1)
    else:  # small integers, so that products and sums are exact
        t = np.arange(rank)
        w = ((i * 5 + t * 11 + i * t) % 7 - 3) @ ((t[:, None] * 3 + j * 13 + t[:, None] * j * 2) % 9 - 4) * 2.0 ** -8
    return w.astype(np.float32)


def main():
    lines = [f"# make_low_rank_golden.py: numpy {np.__version__}"]
    for name, rows, cols, rank, rank_of_weight in CASES:
        u, s, vt = np.linalg.svd(weight(rows, cols, rank_of_weight).astype(np.float64), full_matrices=False)
        assert rank_of_weight == min(rows, cols) or (s > 1e-6 * s[0]).sum() == rank_of_weight, name
        # A gap, or else the approximation of this rank is not unique.
        assert rank >= rank_of_weight or s[rank] < 0.99 * s[rank - 1], name
        for key, values in (("values", s[:rank]), ("u", u[:, :rank].astype(np.float32)), ("vt", vt[:rank].astype(np.float32))):
            values = np.ascontiguousarray(values)
            lines.append(f"{name}.{key} {values.dtype} {values.astype(values.dtype.newbyteorder('<')).tobytes().hex()}")
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
