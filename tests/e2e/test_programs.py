"""Checks which libraries the programs link, and how the programs start and stop."""
import pathlib
import subprocess
import time
import urllib.request

from conftest import BIN, ROOT


def needed(path):
    output = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]") for line in output.splitlines() if "(NEEDED)" in line]


def test_only_the_trainer_links_torch():
    server, trainer = needed(BIN / "nibbled"), needed(BIN / "nibble-trainer")
    for library in ("libgrpc++", "libprotobuf", "libabsl", "libprometheus-cpp-core"):
        assert any(name.startswith(library) for name in server), library
    assert not any("torch" in name or "c10" in name for name in server)
    assert any(name.startswith("libtorch") for name in trainer)


def test_cuda_library_calls_cublaslt():
    library = next((ROOT / "build/release").rglob("libnibble_kernels_cuda.so"), None)
    if library is None:
        import pytest
        pytest.skip("this build has no CUDA sources")
    symbols = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
    assert "cublasLtMatmul" in symbols


def test_unit_tests_are_googletest():
    tests = [path for path in BIN.iterdir() if path.name.endswith("_test")]
    assert len(tests) > 15
    for path in tests:
        assert "Running main() from" in subprocess.run([path, "--gtest_list_tests"], capture_output=True, text=True).stdout


def test_starts_on_an_empty_state_directory_and_stops_on_sigterm(make_server):
    server = make_server()
    for path in ("livez", "readyz", "metrics"):
        with urllib.request.urlopen(f"http://{server.http}/{path}", timeout=5) as answer:
            assert answer.status == 200
    assert pathlib.Path(f"/proc/{server.process.pid}/comm").read_text() == "nibbled\n"  # what ps, top and pkill show
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 30


def test_second_server_on_a_state_directory_is_refused(make_server):
    server = make_server()
    second = subprocess.run([BIN / "nibbled", "--state_dir", server.state, "--grpc_address", "127.0.0.1:0", "--http_address",
                             "127.0.0.1:0"], env={}, capture_output=True, text=True, timeout=30)
    assert second.returncode != 0 and str(server.process.pid) in second.stderr + second.stdout


def test_unknown_device_is_refused_by_name(tmp_path):
    result = subprocess.run([BIN / "nibbled", "--state_dir", tmp_path / "state", "--device", "cuda:9"], env={},
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 1  # checked at the start of the server; errors found before it (usage, --trainer) give 2
    assert '--device: "cuda:9" is not supported, wanted auto or cpu' in result.stderr
    assert 'trains only on "cpu"' in result.stderr


def refused(tmp_path, *flags):
    result = subprocess.run([BIN / "nibbled", *flags, "--state_dir", tmp_path / "state"], env={}, capture_output=True, text=True,
                            timeout=30)
    assert not (tmp_path / "state").exists(), "a refused server changes nothing"
    return result.returncode, result.stderr


def test_usage_errors_exit_with_2(tmp_path):
    for flags, wanted in ((["--threads", "0"], "--threads"), (["--threads", "many"], "--threads"), (["extra"], "extra"),
                          (["--tokenfile", "x"], "unknown flag --tokenfile")):
        code, text = refused(tmp_path, *flags)
        assert code == 2 and wanted in text, (flags, code, text)
    missing = subprocess.run([BIN / "nibbled"], env={}, capture_output=True, text=True, timeout=30)
    assert missing.returncode == 2 and "--state_dir is required" in missing.stderr


def test_trainer_that_cannot_run_is_refused(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for path, why in ((tmp_path / "nothing", "No such file"), (plain, "is not a file that this user may execute"),
                      (tmp_path, "is not a file that this user may execute")):
        code, text = refused(tmp_path, "--trainer", path)
        assert code == 2 and f"--trainer: {path}" in text and why in text, (path, code, text)


def test_version_names_the_sources(make_server):
    printed = subprocess.run([BIN / "nibbled", "--version"], env={}, capture_output=True, text=True, check=True).stdout
    versions = dict(line.split(" ", 1) for line in printed.splitlines())
    info = make_server().json("server", "info")
    assert versions["nibbled"] == info["version"]
    assert versions["code"] == info["code_digest"] and len(versions["code"]) == 64
    assert versions["commit"] == (info["commit"] or "unknown")
    assert versions["cuda"] == info["cuda_version"]
