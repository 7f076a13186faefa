"""cmake/build_info.sh: the digest of the sources, in a clone and without git history."""
import hashlib
import os
import shutil
import subprocess

import pytest

from conftest import ROOT

SOURCES = {"client/a.cc": "a", "kernels/b/c.cu": "c", "proto/d.proto": "d", "server/e.h": "e"}


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    (folder / "cmake").mkdir(parents=True)
    shutil.copy2(ROOT / "cmake/build_info.sh", folder / "cmake")
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def describe(tree, commit="", cuda="none"):
    header = tree / "build/generated/nibble_build_info.h"
    subprocess.run([tree / "cmake/build_info.sh", header, commit, cuda], check=True)
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define")]
    return {name.removeprefix("NIBBLE_BUILD_"): value.strip('"') for _, name, value in words}


def git(tree, *arguments):
    who = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", "-C", tree, *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_digest_covers_contents_and_names_of_the_files(tree):
    listed = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(SOURCES.items()))
    made = describe(tree, cuda="12.4.131")
    assert made == {"COMMIT": "", "CODE_DIGEST": hashlib.sha256(listed.encode()).hexdigest(), "CUDA": "12.4.131"}
    assert describe(tree, commit="abc")["COMMIT"] == "abc"
    (tree / "server/e.h").write_text("E")
    changed = describe(tree)["CODE_DIGEST"]
    assert changed != made["CODE_DIGEST"]
    (tree / "server/e.h").rename(tree / "server/f.h")
    assert describe(tree)["CODE_DIGEST"] not in (changed, made["CODE_DIGEST"])


def test_a_clone_has_the_digest_of_a_tarball_and_its_commit(tree):
    before = describe(tree)
    git(tree, "init")
    (tree / ".gitignore").write_text("/build/\n")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "first")
    commit = git(tree, "rev-parse", "HEAD")
    assert describe(tree) == {**before, "COMMIT": commit}
    git(tree, "tag", "-a", "v0.1.0", "-m", "a tag changes nothing")
    assert describe(tree)["COMMIT"] == commit
    (tree / "server/e.h").write_text("E")
    assert describe(tree)["COMMIT"] == commit + "-dirty"


def test_tree_inside_another_clone_does_not_report_its_commit(tree):
    git(tree.parent, "init")
    (tree.parent / "other").write_text("")
    git(tree.parent, "add", "other")
    git(tree.parent, "commit", "-m", "another project")
    assert describe(tree)["COMMIT"] == ""


def test_build_leftovers_are_not_sources_and_an_unchanged_header_is_not_rewritten(tree):
    before = describe(tree)
    header = tree / "build/generated/nibble_build_info.h"
    os.utime(header, (1, 1))
    for name in ("server/text/rust/target/debug/x.o", "server/__pycache__/a.pyc", "kernels/.a.cc.swp"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left")
    assert describe(tree) == before
    assert header.stat().st_mtime == 1
    (tree / "proto/d.proto").write_text("D")
    describe(tree)
    assert header.stat().st_mtime > 1
