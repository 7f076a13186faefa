"""`tests/run.sh --full` cannot pass by leaving tests out: pytest runs with --no-skips, CTest with
tests/ctest_skips.sh."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import ROOT

TESTS = """
import pytest

@pytest.fixture
def tool():
    pytest.skip("the tool is not there")

def test_runs():
    pass

def test_asks_for_a_tool(tool):
    raise AssertionError("the test ran")

@pytest.mark.skipif(True, reason="needs root")
def test_is_skipped_by_its_mark():
    raise AssertionError("the test ran")

def test_gives_up():
    pytest.skip("nothing to compare with")

@pytest.mark.hardware
def test_needs_a_gpu():
    pytest.skip("no GPU")

@pytest.mark.xfail(reason="not yet")
def test_is_expected_to_fail():
    assert False
"""
MODULE = 'import pytest\n\npytest.importorskip("no_such_package")\n\ndef test_of_the_package():\n    pass\n'


def outcome(folder, *flags):
    """Returns the exit code, the number of tests with each outcome, and the output."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    hardware: may skip\n")
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text(MODULE)
    result = subprocess.run([sys.executable, "-m", "pytest", "-p", "no_skips", "-p", "no:cacheprovider", "-q", "-ra",
                             "--continue-on-collection-errors", *flags, folder], capture_output=True, text=True, timeout=120,
                            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(pathlib.Path(__file__).parent)})
    counts = {word.rstrip("s"): int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)",
                                                                          result.stdout.splitlines()[-1])}
    return result.returncode, counts, result.stdout


def test_skips_are_no_failures_without_no_skips(tmp_path):
    code, counts, _ = outcome(tmp_path)
    assert (code, counts) == (0, {"passed": 1, "skipped": 5, "xfailed": 1})


def test_with_no_skips_only_hardware_may_be_missing(tmp_path):
    code, counts, printed = outcome(tmp_path, "--no-skips")
    assert code == 1
    # A test that is skipped before it begins counts as an error: the tool, the mark, the module.
    assert counts == {"passed": 1, "skipped": 1, "failed": 1, "error": 3, "xfailed": 1}
    for reason in ("the tool is not there", "needs root", "nothing to compare with", "no_such_package"):
        assert re.search(rf"{reason}.* \(with --no-skips that is a failure\)", printed), printed
    assert "no GPU (with" not in printed


@pytest.mark.parametrize("section, folder", [("e2e", "tests/e2e"), ("deployment", "tests/deploy")])
def test_the_full_run_forbids_skips(section, folder):
    """Runs the function of the section with a Python that prints its arguments."""
    function = re.search(rf"^{section}\(\) {{\n.*?^}}\n", (ROOT / "tests/run.sh").read_text(), re.DOTALL | re.MULTILINE)[0]
    runs = subprocess.run(["bash", "-euc", f"python=echo full=true\n{function}\n{section}"], capture_output=True, text=True, check=True).stdout
    runs = [line for line in runs.splitlines() if "pytest" in line and folder in line]
    assert runs and all("--no-skips" in run for run in runs), runs
    help_run = subprocess.run([sys.executable, "-m", "pytest", folder, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert help_run.returncode == 0 and "--no-skips" in help_run.stdout


def ctest_left(build, *skipped):
    """Runs ctest_skips.sh on a build as CTest leaves it when these (case, output) were skipped; returns exit code and
    lines."""
    folder = build / "Testing/Temporary"
    folder.mkdir(parents=True)
    log = "1/9 Test: JobTest.Runs\nOutput:\n[       OK ] JobTest.Runs (0 ms)\n<end of output>\n"
    for number, (name, output) in enumerate(skipped, 2):
        log += (f"{number}/9 Testing: {name}\n{number}/9 Test: {name}\nOutput:\n[ RUN      ] {name}\n{output}"
                f"[  SKIPPED ] {name} (0 ms)\n<end of output>\n")
    (folder / "LastTest.log").write_text(log)
    if skipped:
        (folder / "LastTestsDisabled.log").write_text("".join(f"{number}:{name}\n" for number, (name, _) in enumerate(skipped, 2)))
    result = subprocess.run([ROOT / "tests/ctest_skips.sh", build], capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    return result.returncode, result.stdout.splitlines()


FINE = [("CudaTest.Runs", "/src/cuda_fixture.h:22: Skipped\nno CUDA device: built without CUDA\n"),
        ("Over/AuthTest.Role/Local  # GetParam() = 1", "/src/auth_test.cc:210: Skipped\nonly TLS has certificates\n")]


def test_ctest_may_skip_for_hardware_and_parameters(tmp_path):
    assert ctest_left(tmp_path / "none") == (0, ["skipped: none"])
    assert ctest_left(tmp_path / "fine", *FINE) == (0, [
        "skipped: CudaTest.Runs: no CUDA device: built without CUDA",
        "skipped: Over/AuthTest.Role/Local  # GetParam() = 1: only TLS has certificates"])


@pytest.mark.parametrize(("output", "reason"), [
    ("/src/metrics_test.cc:147: Skipped\npromtool is not installed\n", "promtool is not installed"),
    ("/src/disk_test.cc:30: Skipped\nneeds root, not a test where there is no CUDA device: \n",
     "needs root, not a test where there is no CUDA device: "),
    ("/src/x_test.cc:1: Skipped\n\n", "no reason given"), ("", "no reason given")])
def test_ctest_must_not_skip_anything_else(tmp_path, output, reason):
    code, lines = ctest_left(tmp_path, *FINE, ("SomeTest.Asks", output))
    assert code == 1 and lines[2:] == [f"skipped: SomeTest.Asks: {reason}", "skipped: 1 of 3 must not be skipped here"]


def test_a_run_that_left_no_log_is_a_failure(tmp_path):
    assert subprocess.run([ROOT / "tests/ctest_skips.sh", tmp_path], capture_output=True, timeout=60).returncode == 1


def test_the_full_run_looks_at_every_skip_of_ctest():
    text = (ROOT / "tests/run.sh").read_text()
    (cases,) = re.findall(r"^cases\(\) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert text.count("ctest --test-dir") == cases.count("ctest --test-dir") == 1 and "ctest --preset" not in text
    assert 'if $full; then tests/ctest_skips.sh "build/$1" || result=1; fi' in cases


@pytest.mark.parametrize("flags", [["--only", "nothing"], ["--only", "image"], ["--full", "--only", "unit,asam"]])
def test_a_section_that_does_not_run_is_refused(flags):
    result = subprocess.run([ROOT / "tests/run.sh", *flags], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and f"no section {flags[-1].split(',')[-1]}" in result.stderr


class History:
    """A repository with the lint of tests/run.sh. Its shellcheck and tests/format.sh find nothing; its proto/lint.sh
    prints the commit that it was given."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / ".git/bin"
        self.git("init", "--initial-branch", "main")
        for path, text in [("tests/run.sh", (ROOT / "tests/run.sh").read_text()), ("proto/lint.sh", "#!/bin/sh\necho compared with $2\n"),
                           (".git/bin/shellcheck", "#!/bin/sh\n"), ("tests/format.sh", "#!/bin/sh\n")]:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            (folder / path).chmod(0o755)

    def git(self, *words):
        return subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words], cwd=self.folder, check=True,
                              capture_output=True, text=True, timeout=60).stdout.strip()

    def commit(self, version, path="proto/nibble/v1/x.proto"):
        """Commits this version of the protos, or of another file; returns the hash."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(f"// {version}\n")
        self.git("add", "--all")
        self.git("commit", "--message", version)
        return self.git("rev-parse", "HEAD")

    def lint(self, folder=None):
        """Returns the exit code, the commits that the protos were compared with, and the output."""
        result = subprocess.run([(folder or self.folder) / "tests/run.sh", "--full", "--only", "lint"], capture_output=True, text=True,
                                timeout=60, env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"})
        return result.returncode, re.findall(r"^compared with (\w+)$", result.stdout, re.MULTILINE), result.stdout + result.stderr


@pytest.fixture
def history(tmp_path):
    (tmp_path / "tree").mkdir()
    return History(tmp_path / "tree")


def test_lint_fails_without_a_commit_to_compare_the_protos_with(history, tmp_path):
    for version in ["one", "two"]:
        history.commit(version, "other.txt" if version == "two" else "proto/nibble/v1/x.proto")
        code, compared, printed = history.lint()
        assert (code, compared) == (1, []) and "no commit to compare the protos with" in printed, printed
    history.commit("three")
    assert history.lint()[0] == 0
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{history.folder}", tmp_path / "shallow"], check=True, timeout=60)
    code, compared, printed = history.lint(tmp_path / "shallow")
    assert (code, compared) == (1, []) and "no commit to compare the protos with" in printed, printed


def test_protos_are_compared_with_earlier_versions(history):
    """On main, a break is found although later commits leave the protos unchanged or change another line."""
    landed = [history.commit(version) for version in ["one", "broken", "a comment"]]
    history.commit("unrelated", "other.txt")
    assert history.lint()[:2] == (0, landed[::-1])
    landed += [history.commit(f"version {i}") for i in range(20)]
    assert history.lint()[:2] == (0, landed[:-11:-1]), "ten versions are compared"


def test_protos_of_a_branch_are_compared_with_those_that_landed(history):
    landed = [history.commit(version) for version in ["one", "two"]]
    history.git("checkout", "--quiet", "-b", "branch")
    history.commit("unrelated", "other.txt")
    assert history.lint()[:2] == (0, landed[::-1])
    for version in ["a draft", "the draft, renamed"]:  # only on the branch: no client has them
        history.commit(version)
    assert history.lint()[:2] == (0, landed[::-1])
    history.git("checkout", "--quiet", "main")
    history.commit("three")  # after the branch began
    history.git("checkout", "--quiet", "branch")
    assert history.lint()[:2] == (0, landed[::-1])


def test_a_break_with_any_of_the_versions_is_a_failure(history):
    landed = [history.commit(version) for version in ["one", "two", "three"]]
    (history.folder / "proto/lint.sh").write_text(f"#!/bin/sh\necho compared with $2\n[ $2 != {landed[1]} ]\n")
    assert history.lint()[:2] == (1, landed[:0:-1])


def test_protos_are_compared_only_with_commits_that_list_the_same_intended_breaks(history, tmp_path):
    """Uses a fake protoc and buf: only the choice of commits by proto/lint.sh is tested."""
    (history.folder / "proto/lint.sh").write_text((ROOT / "proto/lint.sh").read_text())
    rules = history.folder / "proto/buf.yaml"
    rules.write_text("version: v1\n")
    for name, text in [("protoc", 'while [ "$1" != -o ]; do shift; done; : >"$2"'),
                       ("buf", '[ "$1" != breaking ] || { echo compared; [ -z "$BROKEN" ]; }')]:
        (history.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (history.bin / name).chmod(0o755)
    (tmp_path / "googleapis").mkdir()

    def compared(commit, broken=""):
        result = subprocess.run([history.folder / "proto/lint.sh", tmp_path / "googleapis", commit], capture_output=True, text=True,
                                timeout=60, env={**os.environ, "PATH": f"{history.bin}:{os.environ['PATH']}", "BROKEN": broken})
        assert result.returncode in (0, 1) and not result.stderr, result.stderr
        return "compared\n" in result.stdout, result.returncode

    one = history.commit("one")
    assert compared(one) == (True, 0) and compared(one, broken="yes") == (True, 1)
    rules.write_text("# Intended break: a\nversion: v1\n")
    assert compared(one, broken="yes") == (False, 0)
    two = history.commit("two")
    assert compared(two) == (True, 0) and compared(two, broken="yes") == (True, 1)
    rules.write_text("# Intended break: a\n# Intended break: b\nversion: v1\n")
    assert compared(two, broken="yes") == (False, 0) and compared(one, broken="yes") == (False, 0)
    three = history.commit("three")
    assert compared(three, broken="yes") == (True, 1)
