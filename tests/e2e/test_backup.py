"""docs/backup.md: a copy of the state directory, restored under another path, continues the jobs of the original."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess

import pytest

from conftest import TRAIN, Server, trainers
from soon import soon

STEPS = 40
UPGRADES = pathlib.Path(__file__).resolve().parents[2] / "docs/upgrades.md"


def create(server, output):
    return server.json("jobs", "create", "--method", "qlora", "--base", "small", "--dataset", "page", "--output", output,
                       "--max-steps", STEPS, "--save-every", 5, *TRAIN)["id"]


@pytest.fixture(scope="module")
def original(tmp_path_factory, model_directory, text_file):
    server = Server(tmp_path_factory.mktemp("backup") / "state").start()
    server.run("models", "import", model_directory, "--name", "small", "--dtype", "f32")
    server.run("datasets", "upload", text_file, "--name", "page")
    server.run("jobs", "watch", create(server, "calm"))
    server.run("models", "convert", "calm", "--to", "int8", "--name", "calm-int8")
    yield server
    server.stop()


def end_as_power_failure(server):
    server.kill()
    for pid in trainers(server):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [Server.stop, end_as_power_failure], ids=["stopped", "power failure"])
def test_a_restored_copy_continues_the_jobs(original, tmp_path, end):
    name = f"disturbed-{end.__name__}"
    job = create(original, name)
    soon(lambda: original.json("jobs", "get", job)["progress"]["step"] >= 7)  # after the first checkpoint
    end(original)
    soon(lambda: not trainers(original))
    copy = tmp_path / "elsewhere" / "state"
    shutil.copytree(original.state, copy, ignore=shutil.ignore_patterns("tokens", "bases", "uploads"))
    original.start()
    restored = Server(copy).start()
    try:
        for server in (original, restored):
            server.run("jobs", "watch", job)
            assert server.json("jobs", "get", job)["state"] == "SUCCEEDED"
            assert server.json("models", "get", name)["digest"] == server.json("models", "get", "calm")["digest"]
        assert restored.json("models", "verify", "calm-int8")["equal"]
        assert [entry["name"] for entry in restored.json("datasets", "list")["datasets"]] == ["page"]
    finally:
        restored.stop()


def test_the_database_moves_to_a_directory_of_its_own(original, tmp_path):
    """The steps of docs/backup.md: a job in progress continues. nibbled refuses a database directory that has no database,
    and a start without --database_dir."""
    name = "in-progress"
    job = create(original, name)
    soon(lambda: original.json("jobs", "get", job)["progress"]["step"] >= 7)  # after the first checkpoint
    original.stop()
    state, database = tmp_path / "state", tmp_path / "database"
    shutil.copytree(original.state, state)
    original.start()
    database.mkdir()
    for file in state.glob("nibble.db*"):
        file.rename(database / file.name)
    flags = ("--database_dir", database)
    moved = Server(state, *flags).start()
    try:
        assert not list(state.glob("nibble.db*")) and (database / "nibble.db").exists()
        for server in (original, moved):
            server.run("jobs", "watch", job)
            assert server.json("models", "get", name)["digest"] == server.json("models", "get", "calm")["digest"]
        free = {name for name in moved.metrics() if name.startswith("nibble_disk_free_bytes")}
        assert free == {f'nibble_disk_free_bytes{{volume="{volume}"}}' for volume in ("state", "database")}
    finally:
        moved.stop()
    for other, why in [(("--database_dir", tmp_path / "empty"), "has jobs, but"), ((), "--database_dir: is not set")]:
        with pytest.raises(AssertionError, match=f"nibbled ended with 1: (.|\n)*{why}"):
            Server(state, *other).start()


def test_an_older_server_opens_the_backup_of_an_upgrade(original, tmp_path):
    """The commands of docs/upgrades.md, "Go back a version". This nibbled plays the older one: the version of the
    database's schema is raised by one, as a newer nibbled would do, after a copy under the name of its backup."""
    original.stop()
    state = tmp_path / "state"
    shutil.copytree(original.state, state)
    original.start()
    with contextlib.closing(sqlite3.connect(state / "nibble.db")) as database:
        (version,) = database.execute("SELECT version FROM schema_version").fetchone()
        database.execute("VACUUM INTO ?", (str(state / f"nibble.db.backup-v{version}"),))
        with database:
            database.execute("UPDATE schema_version SET version = version + 1")
            database.execute("DELETE FROM jobs")
    (state / "nibble.db-wal").write_bytes(b"of the newer database")
    older = Server(state)
    with pytest.raises(AssertionError, match="it was written by a newer one"):
        older.start()
    (block,) = re.findall(r"```\n(.*?)```", UPGRADES.read_text().split("## Go back a version")[1], re.DOTALL)
    subprocess.run(["bash", "-c", block.replace("-vN", f"-v{version}")], cwd=state, check=True)
    older.start()
    try:
        known = [{(job["id"], job["state"]) for job in server.json("jobs", "list")["jobs"]} for server in (older, original)]
        assert known[0] == known[1] != set()
        assert older.json("models", "verify", "calm-int8")["equal"]
    finally:
        older.stop()
