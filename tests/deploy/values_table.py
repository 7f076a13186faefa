#!/usr/bin/env python3
"""Makes the table of the chart's values from values.yaml: key, default, the `# --` comment above the key.

  values_table.py           writes the table into helm/nibble/README.md, between the two marks
  values_table.py --check   fails if the file does not have this table"""
import json
import pathlib
import re
import sys

import yaml

CHART = pathlib.Path(__file__).resolve().parents[2] / "helm/nibble"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
# Maps with defaults that users fill in: the table shows each of them in one row.
FILLED_IN = {"resources", "openai.ingress.annotations", "metrics.dashboards.labels", "metrics.dashboards.annotations"}


def documented_values(text):
    """[(dotted key, explanation)] of every key with a `# --` comment."""
    rows, path, comment = [], [], []
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("# -- "):
            comment = [stripped[5:]]
        elif stripped.startswith("# ") and comment:
            comment.append(stripped[2:])
        elif match := re.match(r"([A-Za-z][A-Za-z0-9]*):", stripped):
            path = [part for part in path if part[0] < indent] + [(indent, match[1])]
            if comment:
                rows.append((".".join(name for _, name in path), " ".join(comment)))
            comment = []
        else:
            comment = []
    return rows


def leaves(values, before=""):
    """Yields (dotted key, value) of the innermost keys of the chart; a map that users fill in counts as a value."""
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and name not in FILLED_IN:
            yield from leaves(value, name + ".")
        else:
            yield name, value


def table():
    text = (CHART / "values.yaml").read_text()
    defaults = dict(leaves(yaml.safe_load(text)))
    explained = dict(documented_values(text))
    missing = sorted(set(defaults) ^ set(explained))
    if missing:
        sys.exit(f"values.yaml: keys without explanation, or explanations without key: {', '.join(missing)}")
    lines = ["| Key | Default | |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | `{json.dumps(value)}` | {explained[key]} |" for key, value in defaults.items()]
    return "\n".join(lines) + "\n"


def main():
    path = CHART / "README.md"
    text = path.read_text()
    before, rest = text.split(BEGIN)
    made = before + BEGIN + table() + END + rest.split(END)[1]
    if "--check" in sys.argv[1:]:
        sys.exit(0 if made == text else "helm/nibble/README.md does not match values.yaml: run tests/deploy/values_table.py")
    path.write_text(made)


if __name__ == "__main__":
    main()
