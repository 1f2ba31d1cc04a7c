"""A .pth file in site-packages that registers the plugin whenever Python starts in this environment."""

import sysconfig
from pathlib import Path

# Python runs this line at every start; it must do nothing after the package is uninstalled.
LINE = (
    """import sys; exec("try:\\n import cai_pyserini.plugin.hook as h\\n h.register()\\nexcept ImportError: pass")\n"""
)


def pth_path() -> Path:
    """The file that enables the plugin."""
    return Path(sysconfig.get_path("purelib")) / "cai_pyserini.pth"


def is_enabled() -> bool:
    return pth_path().exists()
