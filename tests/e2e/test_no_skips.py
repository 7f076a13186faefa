"""What `tests/run.sh --full` runs with --no-skips cannot pass by leaving something out."""
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
    raise AssertionError("it went on")

@pytest.mark.skipif(True, reason="needs root")
def test_is_skipped_by_its_mark():
    raise AssertionError("it went on")

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
    """The exit code, how many tests ended in which way, and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    hardware: may skip\n")
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text(MODULE)
    result = subprocess.run([sys.executable, "-m", "pytest", "-p", "no_skips", "-p", "no:cacheprovider", "-q", "-ra",
                             "--continue-on-collection-errors", *flags, folder], capture_output=True, text=True, timeout=120,
                            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(pathlib.Path(__file__).parent)})
    counts = {word.rstrip("s"): int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)",
                                                                          result.stdout.splitlines()[-1])}
    return result.returncode, counts, result.stdout


def test_a_skip_is_no_failure_unless_it_is_forbidden(tmp_path):
    code, counts, _ = outcome(tmp_path)
    assert (code, counts) == (0, {"passed": 1, "skipped": 5, "xfailed": 1})


def test_with_no_skips_only_hardware_may_be_missing(tmp_path):
    code, counts, printed = outcome(tmp_path, "--no-skips")
    assert code == 1
    # What is skipped before it begins ends as an error: the tool, the mark, the module.
    assert counts == {"passed": 1, "skipped": 1, "failed": 1, "error": 3, "xfailed": 1}
    for reason in ("the tool is not there", "needs root", "nothing to compare with", "no_such_package"):
        assert re.search(rf"{reason}.* \(with --no-skips that is a failure\)", printed), printed
    assert "no GPU (with" not in printed


@pytest.mark.parametrize("folder", ["tests/e2e", "tests/deploy"])
def test_the_full_run_forbids_skips(folder):
    lines = [line for line in (ROOT / "tests/run.sh").read_text().splitlines() if re.search(rf"pytest .*{folder}( |$)", line)]
    full = [line for line in lines if "not full" not in line]
    assert len(lines) == 2 and len(full) == 1 and "--no-skips" in full[0]
    told = subprocess.run([sys.executable, "-m", "pytest", folder, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and "--no-skips" in told.stdout
