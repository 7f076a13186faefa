"""deploy/setup.sh continues without an unavailable tool that the build does not need."""
import re
import shutil

import pytest

from conftest import ROOT, run

SETUP = ROOT / "deploy/setup.sh"
# Scripts for apt-get: $2 is update or download. The last one downloads a file that is not a package.
FAILING = {"no network and no lists": "exit 100", "lists, and no network": '[[ $2 == update ]] || exit 100',
           "no package": '[[ $2 == update ]] || echo text >prometheus_1_amd64.deb'}


def function(name):
    return re.search(rf"^{name}\(\) \{{.*?(?: \}}$|^\}}$)", SETUP.read_text(), re.MULTILINE | re.DOTALL)[0]


@pytest.fixture
def install_promtool(tmp_path):
    """install_promtool(script of apt-get): runs the setup's function without promtool; returns its output."""
    def install(answer):
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("bash", "cat", "dpkg-deb", "mkdir", "mv", "rm", "tar"):
            if not (programs / name).exists():
                (programs / name).symlink_to(shutil.which(name))
        for name, text in {"apt-get": answer, "sudo": 'shift; exec "$@"'}.items():
            (programs / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
            (programs / name).chmod(0o755)
        functions = "\n".join(map(function, ("say", "fail", "extract_program", "install_promtool")))
        script = f"set -euo pipefail\ndeps={tmp_path}/deps\n{functions}\ninstall_promtool\nsay 'continues'\n"
        return run(programs / "bash", "-c", script, env={"PATH": str(programs)}).stdout

    return install


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING)
def test_setup_continues_without_promtool(install_promtool, need, tmp_path, answer):
    need(shutil.which("dpkg-deb"), "dpkg-deb")
    said = install_promtool(answer)
    assert "warning: promtool: " in said and "the tests of the alerts are skipped" in said and said.endswith("setup: continues\n")
    assert not list((tmp_path / "deps/tools/bin").iterdir())


def test_promtool_is_extracted_from_the_package(install_promtool, need, tmp_path):
    need(shutil.which("dpkg-deb"), "dpkg-deb")
    package = tmp_path / "package"
    for path, text in {"DEBIAN/control": "Package: prometheus\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n",
                       "usr/bin/promtool": "#!/bin/sh\n"}.items():
        (package / path).parent.mkdir(parents=True)
        (package / path).write_text(text)
    (package / "usr/bin/promtool").chmod(0o755)
    run("dpkg-deb", "--build", package, tmp_path / "prometheus_1_all.deb")
    said = install_promtool(f"cat {tmp_path}/prometheus_1_all.deb >prometheus_1_all.deb")
    assert "warning" not in said and said.endswith("setup: continues\n")
    assert (tmp_path / "deps/tools/bin/promtool").read_text() == "#!/bin/sh\n" and len(list((tmp_path / "deps/tools/bin").iterdir())) == 1
    assert "promtool: installed" in install_promtool("exit 100")
