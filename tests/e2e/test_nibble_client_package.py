"""The wheel of the Python client: in environments with the oldest and the newest packages that it accepts and beside
Triton's client, under `mypy --strict`, and in its notebooks. deploy/setup.sh --full makes the environments."""
import os
import shutil
import subprocess
import zipfile

import pytest

from conftest import BIN, ROOT

DEPS = ROOT / "build/deps"
NOTEBOOKS = sorted((ROOT / "client/python/notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.full


def run(name, *arguments, **environment):
    """Runs Python of an environment, isolated from this one. Returns its output."""
    python = DEPS / name / "bin/python"
    if not python.exists():
        pytest.skip(f"{python} does not exist; deploy/setup.sh --full installs it")
    done = subprocess.run([python, *map(str, arguments)], capture_output=True, text=True, timeout=900, cwd=environment.pop("cwd", "/"),
                          env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NIBBLE_BIN": str(BIN), **environment})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def visible(folder):
    """The files below a folder, without hidden ones."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)}


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel, built from a source distribution as `pip install` does, by the pinned build requirements."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "client/python", source / "client/python", ignore=shutil.ignore_patterns(".build"))
    shutil.copytree(ROOT / "proto", source / "proto")
    before = visible(source)
    for build in ("build_sdist", "build_wheel"):
        run("client-floor", "-c", f"import setuptools.build_meta as build; build.{build}({str(folder / build)!r})",
            cwd=source / "client/python")
    assert visible(source) == before, "a build leaves files that change the server's code digest (cmake/build_info.sh)"
    archive, = folder.glob("build_sdist/*.tar.gz")
    run("client-floor", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, archive)
    made, = folder.glob("*.whl")
    direct, = folder.glob("build_wheel/*.whl")
    assert names_in(direct) == names_in(made), "a wheel from the repository differs from one from a source distribution"
    return made


@pytest.fixture
def installed(wheel, tmp_path):
    """installed(name): the variables with which the environment imports the wheel, unpacked into a folder."""
    def install(name):
        run(name, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / name, wheel)
        return {"PYTHONPATH": str(tmp_path / name), "NIBBLE_CLIENT_INSTALLED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return install


def test_wheel_has_types_both_clients_and_no_foreign_package(wheel):
    assert wheel.name == "nibble_client-0.1.0-py3-none-any.whl"
    names = names_in(wheel)
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("nibble_client-0.1.0.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"nibble_client", "nibble_client-0.1.0.dist-info"}
    assert {"py.typed", "_sync/client.py", "_async/client.py", "v1/model_service_pb2.pyi", "v1/model_service_pb2_grpc.py"} <= \
        {name.removeprefix("nibble_client/") for name in names}
    for line in ("Requires-Python: >=3.10", "Requires-Dist: grpcio<2,>=1.72.2", "Requires-Dist: protobuf<8,>=6.30", "# nibble-client"):
        assert line in metadata


@pytest.mark.parametrize("name, options", [("client-floor", {}), ("client-ceiling", {"NIBBLE_CLIENT_DATASETS": "1"})])
def test_client_works_with_the_oldest_and_the_newest_packages(installed, name, options):
    tests = [ROOT / "tests/e2e" / f"{file}.py" for file in
             ("test_nibble_client", "test_nibble_client_async", "test_nibble_client_connection", "test_nibble_client_parts", "client_extras")]
    printed = run(name, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=ROOT, **installed(name), **options)
    assert " passed" in printed and "failed" not in printed


@pytest.mark.parametrize("order", ["tritonclient.grpc, nibble_client", "nibble_client, tritonclient.grpc"])
def test_client_works_beside_tritons(installed, shared, order):
    program = f"""
import {order}
with nibble_client.Client({shared.grpc!r}) as client:
    print(client.generate("small-int8", "A boat", max_tokens=4).text)
triton = tritonclient.grpc.InferenceServerClient({shared.grpc!r})
try:
    triton.is_server_live()
except tritonclient.grpc.InferenceServerException as error:
    print(error.status())
"""
    wanted = shared.json("generate", "small-int8", "--prompt", "A boat", "--max-tokens", 4)["text"]
    assert run("client-triton", "-W", "error::UserWarning", "-c", program, **installed("client-triton")) == \
        f"{wanted}\nStatusCode.UNIMPLEMENTED\n"


TYPED = """
import asyncio
import pandas
from nibble_client import AsyncClient, Client, v1

def use(client: Client) -> v1.Job:
    text: str = client.chat("model", "Hello", temperature=0.5).text
    for delta in client.generate_stream("model", text):
        part: str = delta.text
    client.datasets.upload([{"text": "a"}], "rows")
    client.datasets.upload(pandas.DataFrame({"text": ["a"]}), "frame", format="text")
    table: pandas.DataFrame = client.jobs.metrics("job-1")
    names: list[str] = [model.name for model in client.models.list()]
    return client.jobs.wait(client.jobs.create(method="qlora", base_model=names[0]).name)

async def use_async(client: AsyncClient) -> list[str]:
    async for delta in client.chat_stream("model", "Hello"):
        part: str = delta.text
    return [dataset.name async for dataset in client.datasets.list()]
"""


def test_package_and_its_users_pass_mypy_strict(installed, tmp_path):
    environment = {**installed("client-ceiling"), "MYPYPATH": ""}
    options = ["-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", tmp_path / "cache"]
    package = environment["PYTHONPATH"]
    assert "Success: no issues found" in run("client-ceiling", *options, "-p", "nibble_client", cwd=package, **environment)
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    assert "Success" in run("client-ceiling", *options, program, cwd=package, **environment)
    program.write_text(TYPED.replace("temperature", "temprature"))
    with pytest.raises(AssertionError, match='Unexpected keyword argument "temprature"'):
        run("client-ceiling", *options, program, cwd=package, **environment)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs(installed, make_server, model_directory, tmp_path, notebook):
    server = make_server()
    program = f"""
import nbclient, nbformat
book = nbformat.read({str(notebook)!r}, as_version=4)
nbformat.validate(book)
assert not any(cell.get("outputs") for cell in book.cells), "the notebook is stored with outputs"
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
kinds = {{kind for cell in book.cells for output in cell.get("outputs", []) for kind in output.get("data", {{}})}}
print(sorted(kinds))
"""
    home = tmp_path / "home"
    home.mkdir()
    printed = run("client-ceiling", "-c", program, cwd=tmp_path, **installed("client-ceiling"), NIBBLE_SERVER=server.grpc,
                  NIBBLE_MODEL=str(model_directory), HOME=str(home), IPYTHONDIR=str(home))
    assert "image/png" in printed and "text/html" in printed


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["bitnet_from_random_weights", "evaluate_before_and_after", "first_fine_tune"]
