"""The table of other projects' test suites in docs/clients.md."""
import collections
import dataclasses
import pathlib
import re

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/clients.md"


@dataclasses.dataclass
class Row:
    """A part of a suite."""
    passed: int = 0
    not_applicable: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def text(self, *names):
        reasons = "; ".join(f"{reason} ({count})" for reason, count in self.not_applicable.items())
        count = self.not_applicable.total()
        return f"| {' | '.join(names)} | {self.passed or '-'} | {count or '-'} | {reasons} |"


def check(suite, rows):
    """The rows of the suite in the document are these: {part: Row}."""
    wanted = [row.text(suite, part) for part, row in rows.items()]
    found = re.findall(rf"^\| {re.escape(suite)} \|.*$", DOCUMENT.read_text(), re.MULTILINE)
    assert found == wanted, "docs/clients.md needs the rows:\n" + "\n".join(wanted)
