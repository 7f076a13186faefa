"""Checks of what is deployed: image, chart, dashboards, rules. Tools that `deploy/setup.sh --full` puts in place are skipped visibly
where they are missing; with --full a missing tool is a failure."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/nibble"
TOOLS = pathlib.Path(os.environ.get("NIBBLE_TOOLS", ROOT / "build/deps/tools"))

# The Server class and the small model of the end-to-end tests, under a name of their own: two files are called conftest.
sys.path.insert(0, str(ROOT / "tests/e2e"))
_spec = importlib.util.spec_from_file_location("e2e_server", ROOT / "tests/e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
sys.modules["e2e_server"] = e2e
_spec.loader.exec_module(e2e)

import no_skips  # noqa: E402 (on the path now)
from no_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: E402, F401 (pytest finds them here)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="a missing tool is a failure, not a skip")
    parser.addoption("--build-tree", type=pathlib.Path, help="images are installed from this build, not built in a bare root")
    no_skips.pytest_addoption(parser)


def pytest_terminal_summary(terminalreporter):
    """How long K1 of docs/faults.md took: wanted are less than 60 s, and nothing fails, because a busy machine takes longer."""
    reports = [report for group in terminalreporter.stats.values() for report in group
               if hasattr(report, "duration") and "::test_k1_" in report.nodeid]
    if reports:
        seconds = sum(report.duration for report in reports)
        terminalreporter.write_line(f"K1: {len({report.nodeid for report in reports})} tests in {seconds:.1f} s, wanted in less than 60 s")


@pytest.fixture(scope="session")
def need(request):
    """need(there, name): the test goes on only where `there` is true."""
    def check(there, name):
        if there:
            return
        missing = f"{name}: not here, deploy/setup.sh --full puts it in place"
        if request.config.getoption("--full"):
            pytest.fail(missing)
        pytest.skip(missing)

    return check


@pytest.fixture(scope="session")
def tool(need):
    """tool("helm"): its path."""
    def find(name):
        own = TOOLS / "bin" / name
        path = str(own) if os.access(own, os.X_OK) else shutil.which(name)
        need(path, name)
        return path

    return find


def run(*command, ok=True, **options):
    """Runs to the end; with ok, an exit code other than 0 fails the test with what was printed."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=options.pop("timeout", 300), **options)
    assert not ok or result.returncode == 0, f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}"
    return result


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    return e2e.small_model.write(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "page.jsonl"
    path.write_text("".join(json.dumps({"text": e2e.PAGE}) + "\n" for _ in range(40)))
    return path
