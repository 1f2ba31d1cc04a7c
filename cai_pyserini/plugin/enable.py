"""Enable the plugin: a .pth file in site-packages registers it whenever Python starts in this environment."""

import sysconfig
from pathlib import Path

NAME = "cai_pyserini.pth"
# Python runs this line at every start; it must do nothing after the package is uninstalled.
LINE = (
    """import sys; exec("try:\\n import cai_pyserini.plugin.hook as h\\n h.register()\\nexcept ImportError: pass")\n"""
)


def pth_path() -> Path:
    """The file that enables the plugin."""
    return Path(sysconfig.get_path("purelib")) / NAME


def is_enabled() -> bool:
    return pth_path().exists()


def enable() -> None:
    pth_path().write_text(LINE, encoding="utf-8")


def disable() -> None:
    pth_path().unlink(missing_ok=True)
