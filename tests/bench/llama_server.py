"""llama.cpp's server as a peer of the benchmarks: compiled once, from the llama.cpp that the pinned llama-cpp-python has
in its source distribution, as deploy/setup.sh --peers compiles the library."""
import hashlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
           "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]


def pinned():
    """The requirement of deploy/versions.env."""
    return re.search(r"llama-cpp-python==[\d.]+", (ROOT / "deploy/versions.env").read_text()).group()


def build(folder=ROOT / "build/peers"):
    """Returns the program; takes half an hour of one core the first time."""
    name = pinned().replace("-", "_").replace("==", "-")
    folder = pathlib.Path(folder) / name
    program = folder / "build/bin/llama-server"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder, pinned()], check=True)
    archive = folder / f"{name}.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SHA256, f"{archive}: got SHA-256 {found}, wanted {SHA256}"
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    source = folder / name / "vendor/llama.cpp"
    lowest = ["nice", "-n", "10"]  # others may use this machine
    with open(folder / "build.log", "w") as log:
        subprocess.run([*lowest, "cmake", "-S", source, "-B", folder / "build", *OPTIONS], check=True, stdout=log, stderr=log)
        build = ["cmake", "--build", folder / "build", "-j", "1", "--target", "llama-server"]
        subprocess.run([*lowest, *build], check=True, stdout=log, stderr=log)
    return program


if __name__ == "__main__":
    print(build())
