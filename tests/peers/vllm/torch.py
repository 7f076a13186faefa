"""Stands in for torch, of which the suite uses only the range of a 64-bit integer."""
long = "int64"


class iinfo:
    def __init__(self, _):
        self.min, self.max = -2 ** 63, 2 ** 63 - 1
