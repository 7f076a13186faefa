"""Go and TypeScript programs on stubs that buf generates from the protos: the blocks of docs/clients.md, as printed
except for addresses, names, paths and the copied folder."""
import os
import re
import shutil
import subprocess

import pytest

import pki
import small_model
from conftest import BIN, ROOT, Server

DEPS = ROOT / "build/deps"
PLAINTEXT = {"Go": 'grpc.NewClient("127.0.0.1:50051", grpc.WithTransportCredentials(insecure.NewCredentials()))',
             "TypeScript": 'const transport = createGrpcTransport({ baseUrl: "http://127.0.0.1:50051" });\n'}
PROGRAM = {"Go": "example/main.go", "TypeScript": "example.ts"}
COMPILE = {"Go": ["go", "vet", "./..."], "TypeScript": ["npx", "tsc", "--noEmit"]}
RUN = {"Go": ["go", "run", "./example"], "TypeScript": ["bash", "-euc", "npx tsc && node out/example.js"]}
pytestmark = pytest.mark.full


def command(arguments, folder, fails=False):
    """Runs a command with the tools of deploy/setup.sh --full on its PATH. Returns its output."""
    path = [DEPS / "tools/bin", DEPS / "venv/bin", *DEPS.glob("venv/lib/python3*/site-packages/go/bin"), os.environ["PATH"]]
    proxy = subprocess.run(["go", "env", "GOPROXY"], capture_output=True, text=True, check=True).stdout
    environment = {**os.environ, "PATH": ":".join(map(str, path)), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false",
                   "GOPROXY": re.split("[,|]", proxy)[0], "npm_config_prefer_offline": "true", "npm_config_audit": "false",
                   "npm_config_update_notifier": "false"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout if not fails else done.stdout + done.stderr


def blocks(language):
    """The code blocks of this language's section: the commands, the example, and the code for TLS."""
    text = (ROOT / "docs/clients.md").read_text()
    section = text[text.index(f"### {language}\n", text.index("## Stubs of the gRPC API")):]
    return re.findall(r"^```\w+\n(.*?)^```$", section, re.M | re.S)[:3]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose answers are texts of many characters; those of the other tests' model repeat one."""
    return small_model.write(tmp_path_factory.mktemp("model") / "varied", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def project(request, tmp_path_factory):
    """A folder with generated stubs, made by the commands of the document."""
    for tool in {"Go": ("go", "protoc"), "TypeScript": ("npm", "protoc")}[request.param]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not (DEPS / "tools/bin/buf").exists():
        pytest.skip("buf is not installed; deploy/setup.sh --full installs it")
    folder = tmp_path_factory.mktemp(request.param) / "client"
    make, example, _ = blocks(request.param)
    assert "buf generate" in make and "DIR" in make
    command(["bash", "-euc", make.replace("DIR", str(folder)).replace("npx tsc", "true")], ROOT)
    assert (folder / PROGRAM[request.param]).read_text() == example, "the document shows another example"
    assert not (ROOT / "client" / request.param.lower() / "gen").exists()
    return request.param, folder


def adapted(program, **changes):
    for old, new in changes.items():
        assert old in program, f"the program has no {old}"
        program = program.replace(old, str(new))
    return program


def serve(folder, model, *flags, client_flags=()):
    server = Server(folder / "state", *flags)
    server.client_flags = list(client_flags)
    server.start()
    server.run("models", "import", model, "--name", "varied", "--dtype", "f32")
    return server


@pytest.fixture(scope="module")
def plain(tmp_path_factory, model):
    server = serve(tmp_path_factory.mktemp("plain"), model)
    yield server
    server.stop()


@pytest.fixture
def guarded(tmp_path, model):
    """A server with TLS and tokens. The folder has ca.crt and ci.token."""
    certificate, key = pki.Authority(tmp_path).issue("server", "DNS:localhost,IP:127.0.0.1")
    with open(tmp_path / "tokens", "w") as tokens:
        subprocess.run([BIN / "nibble", "tokens", "new", "ci", "--role", "train", "--out", tmp_path / "ci.token"], env={}, stdout=tokens,
                       check=True)
    server = serve(tmp_path, model, "--tls_cert", certificate, "--tls_key", key, "--token_file", tmp_path / "tokens",
                   client_flags=["--tls-ca", tmp_path / "ca.crt", "--token-file", tmp_path / "ci.token"])
    yield server
    server.stop()


def printed_by(server):
    """The expected output of the example: the models, then the answer that the command line gets."""
    answer = server.json("chat", "varied", "--message", "Who keeps the light?")["text"]
    assert len(set(answer)) > 10, "an answer of few characters shows little"
    return f"varied\n{answer}"


def run(language, folder, **files):
    """Compiles and runs the program with these files in place of those in the folder. Returns what it printed."""
    before = {name: (folder / name).read_text() if (folder / name).exists() else None for name in files}
    try:
        for name, text in files.items():
            (folder / name).write_text(text)
        command(COMPILE[language], folder)
        return command(RUN[language], folder)
    finally:
        for name, text in before.items():
            (folder / name).unlink() if text is None else (folder / name).write_text(text)


both = pytest.mark.parametrize("project", ["Go", "TypeScript"], indirect=True)


@both
def test_example_prints_the_answer_of_the_command_line(project, plain):
    language, folder = project
    program = adapted((folder / PROGRAM[language]).read_text(), **{"127.0.0.1:50051": plain.grpc, "tuned-int8": "varied"})
    assert run(language, folder, **{PROGRAM[language]: program}) == printed_by(plain)


@both
def test_example_with_tls_and_a_token_prints_the_same(project, guarded, tmp_path):
    language, folder = project
    program, secure = adapted((folder / PROGRAM[language]).read_text(), **{"tuned-int8": "varied"}), blocks(language)[2]
    if language == "Go":
        token = (tmp_path / "ci.token").read_text().strip()
        program = adapted(program, **{PLAINTEXT["Go"]: f'connect("{guarded.grpc}", "{tmp_path / "ca.crt"}", "{token}")',
                                      '\t"google.golang.org/grpc"\n\t"google.golang.org/grpc/credentials/insecure"\n': ""})
        files = {PROGRAM["Go"]: program, "example/connect.go": secure}
    else:
        secure = adapted(secure, **{"host:50051": guarded.grpc, "ca.crt": tmp_path / "ca.crt", "ci.token": tmp_path / "ci.token",
                                    'import { createGrpcTransport } from "@connectrpc/connect-node";\n': ""})
        files = {PROGRAM["TypeScript"]: adapted(program, **{PLAINTEXT["TypeScript"]: secure})}
    assert run(language, folder, **files) == printed_by(guarded)


@both
def test_misspelt_method_does_not_compile(project):
    language, folder = project
    method = {"Go": "ChatStream(", "TypeScript": "chatStream("}[language]
    program = (folder / PROGRAM[language]).read_text()
    (folder / PROGRAM[language]).write_text(adapted(program, **{method: "chatStraem("}))
    try:
        assert "chatStraem" in command(COMPILE[language], folder, fails=True)
    finally:
        (folder / PROGRAM[language]).write_text(program)


@both
def test_all_services_of_the_api_have_stubs(project):
    language, folder = project
    protos = "".join(path.read_text() for path in (ROOT / "proto/nibble/v1").glob("*.proto"))
    services = set(re.findall(r"^service (\w+)", protos, re.M))
    pattern = {"Go": r"^func New(\w+)Client\(", "TypeScript": r"^export const (\w+Service): GenService"}[language]
    generated = "".join(path.read_text() for path in (folder / "gen/nibble/v1").iterdir())
    assert set(re.findall(pattern, generated, re.M)) == services and len(services) == 6
