"""pytest --no-skips: a skipped test or module is a failure, so that a run which must show everything cannot pass by
leaving tests out. Tests that depend on the machine itself (a GPU, an instruction set) are marked `hardware` and may
still skip."""
import pytest


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure, unless it is marked hardware")


def forbid(config, report, allowed=False):
    """Turns a skip into a failure. An expected failure (xfail) is reported as skipped too, but it ran and stays as it
    is."""
    if not report.skipped or hasattr(report, "wasxfail") or allowed or not config.getoption("no_skips", False):
        return
    _, _, reason = report.longrepr
    report.outcome, report.longrepr = "failed", f"{reason} (with --no-skips that is a failure)"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    forbid(item.config, outcome.get_result(), allowed=item.get_closest_marker("hardware") is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    outcome = yield
    forbid(collector.config, outcome.get_result())
