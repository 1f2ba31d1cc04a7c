"""Check this machine, or an encoder: what works, what does not, and what to do.

A check imports what it checks, because a missing package is one of the things to find out.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import platform
from typing import Any, Self

from pydantic import model_validator

from cai_pyserini.core.errors import CaiError, without_secrets
from cai_pyserini.core.files import cache_home, json_text
from cai_pyserini.core.flags import DEVICE, DOCUMENT_PRECISION, ENCODER_TEXT, without_password
from cai_pyserini.core.packages import install_command
from cai_pyserini.core.processes import processors
from cai_pyserini.core.settings import Command, Main, flag
from cai_pyserini.core.version import VERSION
from cai_pyserini.indexes import jvm
from cai_pyserini.models.device import Precision
from cai_pyserini.plugin.hook import pth_path

Finding = tuple[bool | None, str]  # whether it works, None if it could be better; and what was found
PACKAGES = ("cai-pyserini", "pyserini", "torch", "transformers", "tokenizers", "pyjnius", "faiss-cpu")
OPTIONAL = ("torch", "transformers", "faiss-cpu")
FOR_ENCODE = "models (encoding, dense search, training), charts and tables"
STATUS = {True: "ok", None: "note", False: "FAIL"}
INSTEAD = "Pyserini's modules run with `cai-pyserini -m …`"


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def packages() -> Finding:
    found = ", ".join(f"{name} {installed}" for name, installed in versions().items() if installed)
    missing = [name for name, installed in versions().items() if not installed]
    if needed := [name for name in missing if name not in OPTIONAL]:
        return False, f"{found}; missing: {', '.join(needed)}: {install_command()}"
    if missing:
        return None, f"{found}; not installed: {', '.join(missing)}, for {FOR_ENCODE}: {install_command('encode')}"
    if not version("pyserini").startswith(("2.3.", "2.4.")):
        remedy = f"{sys.executable} -m pip install 'pyserini>=2.3,<2.5'"
        return None, f"{found}; tested with pyserini 2.3 and 2.4 only: {remedy}"
    return True, found


def java() -> Finding:
    chosen = jvm.find_java()
    others = [f"Java {j.version} ({j.origin}) is not used" for j in jvm.candidates() if j != chosen]
    return True, "; ".join([f"Java {chosen.version} at {chosen.home} ({chosen.origin})", *others])


@jvm.using_java("starting the JVM")
def lucene() -> Finding:
    return True, f"Lucene {jvm.versions()['lucene']} in {jvm.anserini_jar().name}, and the JVM starts"


def encoding() -> Finding:
    if not find_spec("torch"):
        return None, "not here, without PyTorch: BM25 is indexed, and what needs no model for queries is searched"
    import torch

    from cai_pyserini.models.device import resolve_precision

    if torch.cuda.is_available():
        return True, ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    precision = resolve_precision("auto", torch.device("cpu"))
    slow = "" if precision == "bfloat16" else ", at about half the speed of bfloat16"
    return None, f"no GPU that torch sees: on {processors()} processors, in {precision}{slow}"


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": lambda: (True, f"{sys.version.split()[0]} at {sys.executable}"),
    "packages": packages,
    "Java": java,
    "Lucene": lucene,
    "encoding": encoding,
    "plugin": lambda: (True, "enabled" if pth_path().exists() else f"not enabled: {INSTEAD}"),
}


class Doctor(Command):
    """Check this machine: Python, packages, Java, Lucene, and what encodes. Exits with 1 if a check fails.

    With --encoder, check an encoder instead: its settings, whether its vectors are those of
    sentence-transformers, and how many documents of 100 tokens this machine encodes per second.
    Exits with 1 if vectors differ by more than 0.0001, in float32. That is so where the encoder's YAML file changes how
    the folder's own modules pool; its prompts, lengths and dimensions are given to the library too.

    With --json, for programs and reports of errors: version, platform, processors, packages (versions, null if
    missing), paths (package, python, cache), and checks (name, status: ok, note or FAIL, and text). Keys, tokens and
    passwords are left out.
    """

    example = "cai-pyserini doctor\n  cai-pyserini doctor --encoder splade-tiny --precision float32"
    encoder: str | None = flag(None, f"check this encoder: {ENCODER_TEXT}")
    device: str = DEVICE
    precision: Precision = DOCUMENT_PRECISION
    json_: bool = flag(False, "print a JSON object")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model_fields_set - {"json_"} and not self.encoder:
            raise ValueError("--device and --precision are for --encoder: name one")
        return self

    def execute(self) -> int:
        if self.encoder:
            return check_encoder(self.encoder, self.device, self.precision, self.json_)
        checks = []
        for name, check in CHECKS.items():
            try:
                works, text = check()
            except (CaiError, ImportError, OSError) as error:
                works, text = False, str(error)
            status, text = STATUS[works], without_secrets(without_password(text))
            checks.append({"name": name, "status": status, "text": text})
            if not self.json_:
                print(f"{status:<4} {name:<14} {text}")
        if self.json_:
            print(json_text(machine() | {"checks": checks}, ensure_ascii=False), end="")
        return int(any(check["status"] == STATUS[False] for check in checks))


def machine() -> dict[str, Any]:
    package, cache = str(Path(__file__).parents[1]), str(cache_home())
    return {
        "version": VERSION,
        "platform": platform(),
        "processors": processors(),
        "packages": versions(),
        "paths": {"package": package, "python": sys.executable, "cache": cache},
    }


def check_encoder(encoder: str, device: str, precision: Precision, as_json: bool = False) -> int:
    """Print what is found about an encoder; 1 if its vectors are not those of its library."""
    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.vectors.encoder_check import check, verdict

    found = check(load_encoder(encoder), device, precision)
    if as_json:
        print(json_text(found | {"verdict": verdict(found)}, ensure_ascii=False), end="")
        return int(not found["equal"])
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<23} {f'{value:.3g}' if isinstance(value, float) else value}")
    print(f"\n{verdict(found)}")
    return int(not found["equal"])


main = Main(Doctor, "doctor")
