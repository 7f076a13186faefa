"""Virtual environments with pinned packages, kept from run to run."""
import shutil
import subprocess
import sys


def programs(folder, packages):
    """Folder of the programs of an environment with these packages."""
    done = folder.with_name(folder.name + ".installed")
    wanted = "\n".join(packages)
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "-q", "--disable-pip-version-check", "install", *packages], check=True, timeout=900)
        done.write_text(wanted)
    return folder / "bin"
