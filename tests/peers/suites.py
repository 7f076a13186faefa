"""Fetches the test suites of other projects, which are not in this repository, and runs them against nibbled."""
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import environments  # in tests/support, as the caller's path has it
from table import Row

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build/peer-suites"  # archives and environments, kept from run to run
# Downloads source archives; pip would build each package to learn its dependencies.
DOWNLOADER = ["unearth==0.19.0"]
# For all suites.
PACKAGES = ["openai[aiohttp]==2.54.0", "pytest==9.2.0", "pytest-asyncio==1.5.0", "respx==0.23.1", "dirty-equals==0.11",
            "rich==15.0.0", "inline-snapshot==0.36.1", "time-machine==3.6.0", "jsonschema==4.26.0", "requests==2.34.2",
            "regex==2026.11.19", "filelock==4.2.11"]


@dataclasses.dataclass(frozen=True)
class Suite:
    requirement: str  # the package whose source archive has the tests
    sha256: str
    inside: tuple  # folders and files of the tests, below the archive's only folder


@dataclasses.dataclass(frozen=True)
class NotApplicable:
    cases: str  # regular expression, searched in a case's name
    reason: str  # for docs/clients.md
    shown_by: str  # regular expression; each such case fails with a message that has a match


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(suite):
    """The source archive, from the package index."""
    folder = FOLDER / "archives"
    folder.mkdir(parents=True, exist_ok=True)
    name = suite.requirement.replace("-", "_").replace("==", "-") + ".tar.gz"
    if not (folder / name).exists() or digest(folder / name) != suite.sha256:
        index = ["-i", os.environ["PIP_INDEX_URL"]] if "PIP_INDEX_URL" in os.environ else []
        unearth = environments.programs(FOLDER / "downloader", DOWNLOADER) / "unearth"
        subprocess.run([unearth, "--no-binary", *index, "-d", folder, suite.requirement], check=True, capture_output=True, timeout=900)
    assert digest(folder / name) == suite.sha256, f"{name}: sha256 {digest(folder / name)}, wanted {suite.sha256}"
    return folder / name


def extract(suite, folder, stand_ins=None):
    """Writes the tests into the folder, and over them the files of `stand_ins`, a folder here. Returns the folder that the
    archive's only folder has become."""
    with tarfile.open(fetch(suite)) as archive:
        for member in archive:
            top, _, path = member.name.partition("/")
            if path.startswith(suite.inside):
                archive.extract(member, folder)  # the digest says that its paths are good
    if stand_ins:
        shutil.copytree(HERE / stand_ins, pathlib.Path(folder) / top, dirs_exist_ok=True)
    return pathlib.Path(folder) / top


def run(folder, arguments, proxy, cases="", variables=None, timeout=1200):
    """Outcomes of the cases whose name has a match of the regular expression `cases`: {name: line of record.py}."""
    outcomes = pathlib.Path(folder) / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)
    plugins = pathlib.Path(folder) / "plugins"
    plugins.mkdir(exist_ok=True)
    shutil.copy(HERE / "record.py", plugins / "peer_record.py")
    python = environments.programs(FOLDER / "suites", PACKAGES) / "python"
    result = subprocess.run(
        [python, "-m", "pytest", "-q", "--tb=line", "-p", "peer_record", "-p", "no:cacheprovider", *arguments], cwd=folder,
        capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(plugins), "PEER_PROXY": proxy.url, "PEER_OUTCOMES": str(outcomes), "PEER_CASES": cases,
             **(variables or {})})
    assert result.returncode in (0, 1), result.stdout[-4000:] + result.stderr[-4000:]
    lines = [json.loads(line) for line in outcomes.read_text().splitlines()]
    return {line["case"]: line for line in lines}


def judge(outcomes, rules, part_of):
    """Rows by part, and what differs from the rules. A case that passes or is skipped without a request tests its own
    project only, and is left out."""
    rows, wrong = {}, []
    unused = set(rules)
    for case, line in outcomes.items():
        rule = next((rule for rule in rules if re.search(rule.cases, case)), None)
        passed = line["outcome"] == "passed"
        if line["outcome"] != "failed" and not line["requests"]:
            continue
        row = rows.setdefault(part_of(case), Row())
        if rule is None:
            row.passed += passed
            wrong += [] if passed else [f"{case}: {line['outcome']}: {line['message'][-600:]}"]
            continue
        unused.discard(rule)
        row.not_applicable[rule.reason] += 1
        if passed:
            wrong.append(f"{case}: passes, although it is listed as not applicable: {rule.reason}")
        elif not re.search(rule.shown_by, line["message"]):
            wrong.append(f"{case}: has not failed for its reason ({rule.shown_by}): {line['message'][-600:]}")
    wrong += [f"no case: {rule.cases}" for rule in unused]
    return rows, wrong
