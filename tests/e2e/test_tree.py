"""Checks the tree: permitted includes (docs/ARCHITECTURE.md), files that documents name, imports of tests, lengths of
functions and test files, formatting, and unique names of the cases of CTest."""
import ast
import collections
import json
import re
import subprocess

import pytest

from conftest import ROOT

# Maps each folder of server/ to the other folders of server/ that it may include.
MAY = {
    "base": [],
    "telemetry": ["base"],
    "text": ["base"],
    "model": ["base", "text"],
    "store": ["base", "model"],
    "data": ["base", "text", "model"],
    "jobs": ["base", "telemetry", "store", "model", "kube"],
    "plan": ["base", "telemetry", "text", "model", "store", "data", "jobs", "convert", "registry"],
    "convert": ["base", "text", "model"],
    "serve": ["base", "text", "model"],
    "http": ["base", "telemetry"],
    "auth": ["base"],
    "kube": ["base"],
    "messages": ["base"],
    "openai": ["base", "auth", "http", "messages"],
    "kserve": ["base", "auth", "rpc", "openai"],
    "registry": ["base", "auth", "telemetry", "text", "model", "store", "data", "convert"],
    "operations": ["base", "auth", "registry"],
    "rpc": ["base", "telemetry", "text", "model", "store", "data", "jobs", "plan", "convert", "serve", "auth", "messages",
            "registry", "operations"],
    "trainer": ["base", "text", "model", "store", "data", "convert", "jobs"],
}
# The only other includes of this kind: (file, header of server/ itself).
MAY_ALSO = {("server/trainer/main.cc", "server/library_log.h")}
# Headers of a library, and the only paths (folders, or the beginnings of file names) that may include them.
ONLY_IN = {
    r"torch/|ATen/|c10/": ["server/trainer"],
    r"prometheus/": ["server/telemetry"],
    r"cuda|cublas": ["kernels"],
    r"soci/": ["server/jobs"],
    r"re2/": ["server/model/module_pattern"],
    r"boost/": ["server/http", "server/kube", "client/http_get"],
    # Headers that are generated from protos: logic does not depend on the messages of the API.
    r"nibble/|google/(longrunning|rpc)/|.*[.]pb[.]h$": ["server/rpc", "server/messages", "server/openai", "server/kserve", "server/trainer/reporter",
                                                            "server/grpc_server", "client"],
    # gRPC itself. Besides those above: checks of tokens, certificates, the composition root (app.cc), gRPC's limits and log.
    r"google/protobuf/|grpc": ["server/rpc", "server/auth/auth_processor", "server/auth/tls", "server/trainer/reporter",
                               "server/messages", "server/openai", "server/kserve", "server/grpc_server", "server/app.cc", "server/limits.cc",
                               "server/library_log.cc", "client"],
}


def includes():
    for folder in ("kernels", "server", "client"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            for included in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), re.M):
                yield path.relative_to(ROOT).as_posix(), included


def test_includes_follow_the_permitted_directions():
    seen, wrong = 0, []
    for path, included in includes():
        top, _, rest = path.partition("/")
        folder = rest.split("/")[0] if "/" in rest else ""
        to = re.match(r"(kernels|server|client)/(?:([a-z_0-9]+)/)?", included)
        if to is None:
            continue
        seen += 1
        target, target_folder = to.group(1), to.group(2) or ""
        if top == "kernels":
            ok = target == "kernels"
        elif top == "client":
            ok = target == "client" or (target, target_folder) in (("server", "base"), ("server", "messages"))
        elif folder == "":
            ok = target != "client" and target_folder != "trainer"  # the program itself
        elif target == "kernels":
            ok = folder not in ("base", "telemetry", "text", "store", "jobs", "http", "auth", "kube", "messages", "openai")
        else:
            ok = target == "server" and (target_folder == folder or target_folder in MAY[folder] or (path, included) in MAY_ALSO)
        if not ok:
            wrong.append(f"{path} includes {included}")
    assert not wrong, "\n".join(wrong)
    assert seen > 500


def test_libraries_are_included_only_where_permitted():
    wrong = [f"{path} includes {included}" for path, included in includes() for pattern, allowed in ONLY_IN.items()
             if re.match(pattern, included) and not any(path.startswith(prefix) for prefix in allowed)]
    assert not wrong, "\n".join(wrong)
    assert {path for path, included in includes() if included.startswith("torch/")}, "the pattern finds nothing"


def test_files_that_documents_name_exist():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ends = {"/".join(path.split("/")[-n:]) for path in tracked for n in range(1, path.count("/") + 2)}
    missing, seen = [], 0
    for document in (path for path in tracked if path.endswith(".md")):
        for name in re.findall(r"`((?:\w[\w-]*/)+\w+\.(?:cc|h|cu|py|sh|md|proto))`", (ROOT / document).read_text()):
            seen += 1
            placeholder = re.search(r"FOLDER|NAME|foo|/x\.h", name)
            if name not in ends and not placeholder:
                missing.append(f"{document} names {name}")
    assert missing == []
    assert seen > 200


# Packages that work only after `deploy/setup.sh --full`. torch is installed without it, but cannot be imported.
NEEDS_FULL = {"torch", "transformers", "peft", "bitsandbytes", "torchao", "tokenizers", "accelerate", "compressed_tensors", "llama_cpp"}


def imported_without_skip(source):
    """Packages of NEEDS_FULL that a test file imports when it is collected, before pytest.importorskip names them."""
    checked, wrong = set(), []
    for statement in ast.parse(source).body:
        calls = []
        if isinstance(statement, (ast.Assign, ast.Expr)):
            calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        checked |= {call.args[0].value.split(".")[0] for call in calls if ast.unparse(call.func) == "pytest.importorskip"}
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        wrong += [package for package in (name.split(".")[0] for name in names) if package in NEEDS_FULL - checked]
    return wrong


def test_tests_are_collected_without_the_packages_of_full():
    assert imported_without_skip('import pytest\npytest.importorskip("peft")\nfrom peft import x\nfrom torch import y\n') == ["torch"]
    files = [path for folder in ("e2e", "deploy", "kubernetes") for path in sorted((ROOT / "tests" / folder).glob("*.py"))
             if path.name.startswith("test_") or path.name == "conftest.py"]
    wrong = {path.name: packages for path in files if (packages := imported_without_skip(path.read_text()))}
    assert wrong == {}
    assert len(files) > 50


def long_functions(path, limit=80):
    """(name or first line, lines) of each function with more lines than `limit`. In C++ a function of a formatted file
    ends with a line that is only its closing brace, and begins with the nearest line above of the same indentation."""
    source = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno >= limit:
                yield node.name, node.end_lineno - node.lineno + 1
        return
    lines, begins = source.splitlines(), {}
    for number, line in enumerate(lines):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if indent > 2 or not text or text[0] in "#/":
            continue
        if text == "}" and indent in begins and number - begins[indent] >= limit:
            yield lines[begins[indent]].strip(), number - begins[indent] + 1
        begins[indent] = number


def test_functions_have_at_most_80_lines_and_test_files_600(tmp_path):
    found, files = [], 0
    for folder in ("kernels", "server", "client", "tests", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cu", ".cuh", ".py"):
                continue
            files += 1
            name = path.relative_to(ROOT).as_posix()
            found += [f"{name}: {function} has {lines} lines" for function, lines in long_functions(path)]
            lines = len(path.read_text().splitlines())
            if folder == "tests" and lines > 600:
                found.append(f"{name} has {lines} lines")
    assert files > 1000
    assert found == []
    # The check itself: a function of 81 lines in each language.
    (tmp_path / "a.py").write_text("def f():\n" + "    g()\n" * 80)
    (tmp_path / "a.cc").write_text("namespace a {\n\nint F(int x,\n      int y) {\n" + "  G();\n" * 78 + "}\n\n}  // namespace a\n")
    assert list(long_functions(tmp_path / "a.py")) == [("f", 81)]
    assert list(long_functions(tmp_path / "a.cc")) == [("int F(int x,", 81)]


def test_every_source_is_formatted():
    done = subprocess.run(["tests/format.sh"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_every_case_has_a_unique_name():
    """CTest assigns labels by name: two cases of one name would both have the labels of one."""
    build = ROOT / "build/release"
    if not (build / "CTestTestfile.cmake").exists():
        pytest.skip("there is no build/release")
    listed = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, text=True, check=True).stdout)
    names = collections.Counter(test["name"] for test in listed["tests"])
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 500
