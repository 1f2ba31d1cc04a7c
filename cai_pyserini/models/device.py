"""Devices and precisions by name. torch, whose import takes seconds, is imported in the functions."""

from typing import TYPE_CHECKING, Literal

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.lock import HOST
from cai_pyserini.core.packages import require_encode
from cai_pyserini.core.processes import openmp_threads

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16", "int8"]


def resolve_device(device: str) -> "torch.device":
    """The device of this name; `auto` is a GPU if there is one. On a CPU, torch, which disregards quotas, then uses at
    most `openmp_threads()`. Raises CaiError for a device that does not exist, and without the extra `encode`."""
    require_encode()
    import torch

    if torch.get_num_threads() > openmp_threads():
        torch.set_num_threads(openmp_threads())
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except RuntimeError:
        resolved = torch.device("meta")
    if resolved.type not in ("cpu", "cuda"):
        raise CaiError(f"no device {device!r}; known are auto, cpu, cuda, cuda:1, …")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise CaiError(f"no device {device!r}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs")
    return resolved


def resolve_precision(precision: Precision, device: "torch.device") -> Precision:
    """`auto`: bfloat16 where the hardware gains from it, else float32. Raises CaiError for int8 where it cannot run."""
    import torch

    if precision == "int8" and not has_int8(device):
        raise CaiError(
            "precision int8 needs a CPU with VNNI instructions (AVX-512 VNNI, AVX-VNNI or AMX): choose device cpu on "
            "such a machine, or another precision"
        )
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if _cpu_has("avx512_bf16", "amx_bf16") else "float32"


def device_name(device: "torch.device") -> str:
    """What determines the speed of a device: the model of a GPU, or the machine and its threads."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{HOST}, {torch.get_num_threads()} threads"


def has_int8(device: "torch.device") -> bool:
    """Whether precision int8 can run."""
    return device.type == "cpu" and _cpu_has("avx512_vnni", "avx_vnni", "amx_int8")


def _cpu_has(*instructions: str) -> bool:
    """Whether torch can use any of these instruction sets on this processor."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in instructions)
