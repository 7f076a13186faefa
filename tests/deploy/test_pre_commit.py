"""The hooks of .pre-commit-config.yaml, run as pre-commit runs them: with the changed files that `files` matches."""
import os
import re
import shlex
import shutil

import pytest
import yaml

from conftest import ROOT, run

HOOKS = {hook["id"]: hook for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for hook in repo["hooks"]}
PROGRAM = {"format": "clang-format", "shellcheck": "shellcheck", "protos": "buf", "chart": "helm"}
WRONG = {"format": ("wrong.cc", "int  a;\n"), "shellcheck": ("wrong.sh", "#!/bin/sh\nrm -r $1\n")}


def call(hook, *files):
    given = () if hook.get("pass_filenames") is False else files
    return run(*shlex.split(hook["entry"]), *given, ok=False, cwd=ROOT)


@pytest.fixture(params=HOOKS)
def hook(request, need):
    program = PROGRAM[request.param]
    own = [ROOT / "build/deps" / folder / program for folder in ("venv/bin", "tools/bin")]
    need(any(os.access(path, os.X_OK) for path in own) or shutil.which(program), program)
    return HOOKS[request.param]


def test_hook_passes_on_the_files_of_the_repository(hook):
    tracked = run("git", "ls-files", cwd=ROOT).stdout.splitlines()
    files = [file for file in tracked if re.search(hook["files"], file)]
    assert files
    result = call(hook, *files[:20])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", WRONG)
def test_hook_fails_on_a_wrong_file(name, need, tmp_path):
    need(shutil.which(PROGRAM[name]) or (ROOT / "build/deps/venv/bin" / PROGRAM[name]).exists(), PROGRAM[name])
    file, text = WRONG[name]
    assert re.search(HOOKS[name]["files"], file)
    (tmp_path / file).write_text(text)
    assert call(HOOKS[name], tmp_path / file).returncode != 0
