"""Every block of docs/tutorial.md, in order and as printed except for the server's addresses and its free-space
limit. The blocks train the real model for minutes, so only --full runs them."""
import os
import re
import signal
import subprocess

import pytest

from conftest import BIN, ROOT
from test_quickstart import free_address

START = "nibbled --state_dir state "
QUESTION = '--message "When does the ferry Plover leave?"'


def blocks():
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/tutorial.md").read_text(), re.M | re.S)


def python():
    program, = (text for language, text in blocks() if language == "python")
    return program


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Runs all shell blocks in a copy of the clone's layout. Returns its root, and pairs of a block and its output."""
    root = tmp_path_factory.mktemp("tutorial")
    (root / "build/release").mkdir(parents=True)
    (root / "build/release/bin").symlink_to(BIN)
    (root / "build/deps").symlink_to(ROOT / "build/deps")
    shell = [text for language, text in blocks() if language == "sh"]
    grpc, http = free_address(), free_address()
    assert sum(START in text for text in shell) == 1
    started = f"{START}--grpc_address {grpc} --http_address {http} --min_free_bytes {1 << 20} "
    script = "".join(f"echo '=== {number}'\n{text.replace(START, started)}" for number, text in enumerate(shell))
    with open(root / "output", "w+") as output:
        run = subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], cwd=root, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               env={"PATH": os.environ["PATH"], "NIBBLE_SERVER": grpc})
        try:
            exit_code = run.wait(timeout=1500)
        finally:
            try:
                os.killpg(run.pid, signal.SIGTERM)  # the server, if a block failed
            except ProcessLookupError:
                pass
        output.seek(0)
        text = output.read()
    assert exit_code == 0, text[-4000:]
    outputs = re.split(r"^=== \d+\n", text, flags=re.M)[1:]
    assert len(outputs) == len(shell)
    return root, list(zip(shell, outputs))


def output_of(walk, command):
    """Returns the output of the only block with this command."""
    printed, = (output for text, output in walk[1] if command in text)
    return printed


def test_every_block_is_shell_or_the_one_python_program():
    languages = [language for language, _ in blocks()]
    assert set(languages) == {"sh", "python"} and languages.count("python") == 1 and languages.count("sh") >= 9


@pytest.mark.full
def test_preview_marks_only_the_answers(walk):
    printed = output_of(walk, "nibble datasets preview")
    assert printed.count("--- row") == 2
    marked = re.findall(r"\[(.*?)\]", printed, re.S)[1:]  # the first pair of brackets is in the explanation
    assert [text.strip() for text in marked] == [
        "The Plover leaves at 06:40 from pier 3.<|im_end|>", "The Plover leaves from pier 3, at 06:40.<|im_end|>"]


@pytest.mark.full
def test_plan_warns_of_many_passes(walk):
    assert re.search(r"^warning: 40 steps are .* passes .*\(MANY_EPOCHS\)$", output_of(walk, "nibble jobs plan"), re.M)


@pytest.mark.full
def test_training_teaches_the_facts(walk):
    watched = output_of(walk, "nibble jobs create")
    trained = [float(loss) for loss in re.findall(r"^eval at step \d+ \(trained\)  loss (\S+)$", watched, re.M)]
    served, = (float(loss) for loss in re.findall(r"^eval at step 40 \(int8\)  loss (\S+)$", watched, re.M))
    assert len(trained) == 2 and trained[-1] < 0.5 * trained[0] and abs(served - trained[-1]) < 0.1
    assert "06:40" not in output_of(walk, f"nibble chat base {QUESTION}")
    assert "06:40" in output_of(walk, f"nibble chat tuned {QUESTION}")
    assert "warning" not in output_of(walk, f"nibble chat tuned {QUESTION}"), "the rows are chats"


@pytest.mark.full
def test_int8_is_verified_and_knows_the_facts(walk):
    printed = output_of(walk, "nibble models verify")
    assert "rows are bit-identical" in printed and "06:40" in printed


@pytest.mark.full
def test_peft_reads_the_adapter(walk):
    """Needs what `tests/run.sh --full` installs."""
    pytest.importorskip("peft", exc_type=ImportError)
    pytest.importorskip("gguf", exc_type=ImportError)
    result = subprocess.run(["../deps/venv/bin/python", "-c", python()], cwd=walk[0] / "build/tutorial",
                            env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "06:40" in result.stdout
