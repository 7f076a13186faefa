"""The Python recipe of README.md, as printed except for the server's address and the model's name."""
import os
import pathlib
import subprocess
import sys

import pki
from conftest import BIN, ROOT, Server


def block(after, language):
    """The first code block of README.md with this language after a text."""
    text = (ROOT / "README.md").read_text()
    return text[text.index(after):].split(f"```{language}\n", 1)[1].split("```", 1)[0]


def make_stubs(folder):
    """Runs the commands of the recipe in a folder, except for the first two: they make a virtual environment and install
    packages, and this machine has both already."""
    commands = block("**I write a program.**", "sh").splitlines()
    assert [line.split()[0] for line in commands] == ["python3", "venv/bin/pip", "venv/bin/python"]
    (folder / "client").symlink_to(ROOT / "client")
    (folder / "venv").symlink_to(pathlib.Path(sys.executable).parents[1])
    subprocess.run(["bash", "-euc", commands[2]], cwd=folder, check=True)


def run_program(program, folder):
    result = subprocess.run([sys.executable, "-c", program], cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_recipe_of_the_readme_generates_a_batch(shared, tmp_path):
    make_stubs(tmp_path)
    program = block("**I write a program.**", "python")
    assert "127.0.0.1:50051" in program and '"tuned-int8"' in program
    program = program.replace("127.0.0.1:50051", shared.grpc).replace('"tuned-int8"', '"small-int8"')
    printed = run_program(program, tmp_path)
    wanted = [shared.json("generate", "small-int8", "--prompt", prompt)["text"] for prompt in ("A lighthouse is", "A harbour is")]
    assert printed == "".join(text + "\n" for text in wanted)


def test_recipe_of_the_readme_opens_a_channel_with_tls_and_a_token(tmp_path):
    make_stubs(tmp_path)
    authority = pki.Authority(tmp_path)  # writes ca.crt
    certificate, key = authority.issue("server", "DNS:localhost,IP:127.0.0.1")
    with open(tmp_path / "tokens", "w") as tokens:
        subprocess.run([BIN / "nibble", "tokens", "new", "ci", "--role", "train", "--out", tmp_path / "ci.token"], env={}, stdout=tokens,
                       check=True)
    server = Server(tmp_path / "state", "--tls_cert", certificate, "--tls_key", key, "--token_file", tmp_path / "tokens").start()
    try:
        recipe = block("With TLS and a token", "python")
        assert '"host:50051"' in recipe
        program = "\n".join([
            "import sys", 'sys.path.append("stubs")', "import grpc",
            "from nibble.v1 import server_service_pb2 as api, server_service_pb2_grpc", recipe.replace("host:50051", server.grpc),
            "print(server_service_pb2_grpc.ServerServiceStub(channel).GetServerInfo(api.GetServerInfoRequest()).version)"])
        assert run_program(program, tmp_path).strip()
    finally:
        server.stop()
