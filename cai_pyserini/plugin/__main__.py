"""Switch the registration of our encoders with Pyserini on, for every Python of this environment, or off."""

import sysconfig
from pathlib import Path

from cai_pyserini import cli

NAME = "cai_pyserini.pth"
# Python runs this line at every start; once the package is gone, it must do nothing.
LINE = (
    """import sys; exec("try:\\n import cai_pyserini.registration as r\\n r.register()\\nexcept ImportError: pass")\n"""
)


def pth_path() -> Path:
    """The file that switches it on."""
    return Path(sysconfig.get_path("purelib")) / NAME


def main() -> int:
    parser = cli.parser(
        "Let plain `python -m pyserini.…` in this environment know the encoders of cai_pyserini, and find a Java.\n"
        f"It is a file {NAME} in the environment's site-packages; nothing of Pyserini is changed. `status` exits\n"
        "with 0 where the plugin is enabled, with 1 where it is not.",
        "python -m cai_pyserini.plugin enable",
    )
    parser.add_argument("action", choices=["enable", "disable", "status"])
    action = parser.parse_args().action
    path = pth_path()
    if action == "enable":
        path.write_text(LINE)
    elif action == "disable":
        path.unlink(missing_ok=True)
    print(f"{'enabled' if path.exists() else 'disabled'}: {path}")
    return int(action == "status" and not path.exists())


if __name__ == "__main__":
    cli.run(main)
