"""What an installation takes: seconds, downloads, disk, files, and the time to a first hit in a new process.

    python benchmarks/install.py [search] [encode] [all]

`search` is the base installation with Anserini's jar, `encode` adds what encodes, with PyTorch for CPUs, `all` is the
extra `demo` as pip resolves it, on Linux with CUDA. Each is installed from this clone into a new virtual environment,
without pip's cache, and deleted afterwards. Seconds are those of pip; processor time is that of all processes. Disk is
the folder of the environment without pip's own. The first hit is BM25's for `search`, of two texts that are indexed
before, and else of the system joint-doc.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
JAR = "pyserini>=2.3,<3"
CPU = "https://download.pytorch.org/whl/cpu"
COMMANDS = {  # name -> arguments of pip install, one list per call
    "search": [["{clone}"], ["--no-deps", JAR]],
    "encode": [["torch", "--index-url", CPU], ["{clone}[demo]"]],
    "all": [["{clone}[demo]"]],
}
FIRST_HIT = """
import cai_pyserini as cai
index = cai.index(["Brachydactyly: short digits of the hand", "Macrocephaly: an enlarged skull"], system={system!r})
print("hit", index.search("large skull", k=1)[0].id)
"""
SIZE = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB|GB)\)")
MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list[str], cwd: Path) -> tuple[str, float, float]:
    """The output of a command, its seconds, and those of processors. Exits if it fails."""
    start, used = time.perf_counter(), processor_seconds()
    environment = os.environ | {"PIP_NO_CACHE_DIR": "1", "XDG_CACHE_HOME": str(cwd / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout, time.perf_counter() - start, processor_seconds() - used


def disk(folder: Path) -> tuple[float, int]:
    """MB and number of the files in a folder, without pip."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    files = [path for path in files if not any(part == "pip" or part.startswith("pip-") for part in path.parts)]
    return sum(path.stat().st_size for path in files) / 1e6, len(files)


def measure(name: str) -> list[str]:
    """A row of the table."""
    with TemporaryDirectory(prefix="install-") as folder:
        work = Path(folder)
        for each in ("cai_pyserini", "encoders", "index_configs"):  # building leaves files behind
            shutil.copytree(ROOT / each, work / "clone" / each, ignore=shutil.ignore_patterns("__pycache__"))
        for each in ("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
            shutil.copy(ROOT / each, work / "clone")
        timed([sys.executable, "-m", "venv", "venv"], work)
        python = str(work / "venv" / "bin" / "python")
        megabytes = seconds = used = 0.0
        for arguments in COMMANDS[name]:
            arguments = [each.format(clone=work / "clone") for each in arguments]
            output, *times = timed([python, "-m", "pip", "install", *arguments], work)
            seconds, used = seconds + times[0], used + times[1]
            megabytes += sum(float(size) * MEGABYTES[unit] for size, unit in SIZE.findall(output))
        size, files = disk(work / "venv")
        system = "bm25" if name == "search" else "joint-doc"
        output, *first = timed([python, "-c", FIRST_HIT.format(system=system)], work)
        if "hit 1" not in output:
            sys.exit(f"{name}: no hit: {output}")
    commands = " && ".join(f"`pip install {' '.join(each).format(clone='.')}`" for each in COMMANDS[name])
    figures = [f"{seconds:.0f}", f"{used:.0f}", f"{megabytes:,.0f}", f"{size:,.0f}", f"{files:,}"]
    return [name, commands, *figures, f"{first[0]:.1f}", f"{first[1]:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMMANDS], help="by default all")
    header = ["", "commands", "seconds", "of processors", "MB downloaded", "MB on disk", "files"]
    print(f"| {' | '.join([*header, 'first hit, s', 'of processors'])} |\n|{'---|' * 2}{'---:|' * 7}", flush=True)
    for name in parser.parse_args().names or COMMANDS:
        print(f"| {' | '.join(measure(name))} |", flush=True)


if __name__ == "__main__":
    main()
