"""The Python programs of README.md and client/python/README.md, as printed except for addresses, paths and names."""
import os
import re
import subprocess
import sys

import client_package
import pki
from conftest import BIN, ROOT, Server

README, PACKAGE = ROOT / "README.md", ROOT / "client/python/README.md"


def block(document, after, language):
    """The first code block with this language after a text."""
    text = document.read_text()
    return text[text.index(after):].split(f"```{language}\n", 1)[1].split("```", 1)[0]


def adapted(program, **changes):
    """The program with each text of `changes` replaced; each must occur."""
    for old, new in changes.items():
        assert old in program, f"the program has no {old}"
        program = program.replace(old, str(new))
    return program


def run_program(program, folder):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": client_package.folder().name}
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=folder, env=environment, capture_output=True, text=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_recipe_of_the_readme_generates_a_batch(shared, tmp_path):
    commands = block(README, "**I write a program.**", "sh").splitlines()
    assert commands == ["python3 -m venv venv", "venv/bin/pip install ./client/python"]  # tests/e2e/test_nibble_client_package.py
    program = adapted(block(README, "**I write a program.**", "python"), **{"127.0.0.1:50051": shared.grpc, "tuned-int8": "small-int8"})
    wanted = [shared.json("generate", "small-int8", "--prompt", prompt)["text"] for prompt in ("A lighthouse is", "A harbour is")]
    assert run_program(program, tmp_path) == "".join(text + "\n" for text in wanted)


def test_recipe_of_the_readme_connects_with_tls_and_a_token(tmp_path):
    authority = pki.Authority(tmp_path)  # writes ca.crt
    certificate, key = authority.issue("server", "DNS:localhost,IP:127.0.0.1")
    with open(tmp_path / "tokens", "w") as tokens:
        subprocess.run([BIN / "nibble", "tokens", "new", "ci", "--role", "train", "--out", tmp_path / "ci.token"], env={}, stdout=tokens,
                       check=True)
    server = Server(tmp_path / "state", "--tls_cert", certificate, "--tls_key", key, "--token_file", tmp_path / "tokens").start()
    try:
        program = adapted(block(README, "With TLS and a token", "python"), **{"host:50051": server.grpc})
        assert run_program(program + "print(client.server_info().version)", tmp_path).strip() == "0.1.0"
    finally:
        server.stop()


def test_first_program_of_the_package_trains_converts_and_chats(shared, model_directory, tmp_path):
    program = adapted(block(PACKAGE, "## Train, convert, chat", "python"), **{
        "127.0.0.1:50051": shared.grpc, "SmolLM2-135M-Instruct": model_directory, "tuned": "wren", '"base"': '"wren-base"',
        '"notes"': '"wren-notes"'})
    printed = run_program(program, tmp_path)
    assert "step {" in printed and "to: JOB_STATE_SUCCEEDED" in printed
    batch = adapted(block(PACKAGE, "`AsyncClient` is the same", "python"), **{"127.0.0.1:50051": shared.grpc, "tuned-int8": "wren-int8"})
    wanted = [shared.json("generate", "wren-int8", "--prompt", prompt)["text"] for prompt in ("A wren is", "A gull is")]
    answered = run_program(batch, tmp_path)
    assert answered.startswith(f"{wanted}\n")
    assert answered[len(f"{wanted}\n"):] == shared.json("chat", "wren-int8", "--message", "What is a wren?")["text"]


def test_programs_of_the_package_name_what_exists():
    """The other blocks name errors, classes and methods; each must exist."""
    nibble_client = client_package.load()
    text = PACKAGE.read_text()
    for name in re.findall(r"errors\.(\w+)", text):
        assert name == "md" or hasattr(nibble_client.errors, name), name
    rows = re.findall(r"^\| `client\.?(\w*)` \| (.*) \|$", text, re.M)
    assert len(rows) == 6
    with nibble_client.Client("127.0.0.1:1") as client:
        for part, methods in rows:
            owner = getattr(client, part) if part else client
            public = {name for name in dir(owner) if not name.startswith("_") and callable(getattr(owner, name))}
            assert set(re.findall(r"`(\w+)`", methods)) == public - {"close"}, part
