"""The Python recipe of README.md, as printed except for the server's address and the model's name."""
import os
import pathlib
import subprocess
import sys

from conftest import ROOT


def block(after, language):
    """The first code block of README.md with this language after a text."""
    text = (ROOT / "README.md").read_text()
    return text[text.index(after):].split(f"```{language}\n", 1)[1].split("```", 1)[0]


def test_recipe_of_the_readme_generates_a_batch(shared, tmp_path):
    commands = block("**I write a program.**", "sh").splitlines()
    assert [line.split()[0] for line in commands] == ["python3", "venv/bin/pip", "venv/bin/python"]
    (tmp_path / "client").symlink_to(ROOT / "client")
    (tmp_path / "venv").symlink_to(pathlib.Path(sys.executable).parents[1])
    # The first two lines make the virtual environment and install packages; this machine has both already.
    subprocess.run(["bash", "-euc", commands[2]], cwd=tmp_path, check=True)
    program = block("**I write a program.**", "python")
    assert "127.0.0.1:50051" in program and '"tuned-int8"' in program
    program = program.replace("127.0.0.1:50051", shared.grpc).replace('"tuned-int8"', '"small-int8"')
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr
    wanted = [shared.json("generate", "small-int8", "--prompt", prompt)["text"] for prompt in ("A lighthouse is", "A harbour is")]
    assert result.stdout == "".join(text + "\n" for text in wanted)
