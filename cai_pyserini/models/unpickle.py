"""Convert a file of pickled weights to safetensors in a separate process: `python -m cai_pyserini.models.unpickle`.

A pickle can run code when it is read. With `weights_only=True`, torch builds tensors from it and refuses anything else.
In case that ever fails, the process drops network access where Linux permits it. Its memory is bounded, because a small
file can describe tensors of any size. It prints the numbers of tensors and bytes written, as JSON.
"""

import json
import os
import pickle
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError

MAX_FILE_SIZES = 4  # memory in multiples of the file's size: its tensors, and copies of those that share memory
TORCH_BYTES = 2**31  # further memory; torch itself needs 0.8 GB


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    if sys.platform == "linux":
        with suppress(OSError):  # before torch starts threads; other users than root need a new user namespace
            os.unshare(os.CLONE_NEWNET | (os.CLONE_NEWUSER if os.geteuid() else 0))
    bound = TORCH_BYTES + MAX_FILE_SIZES * source.stat().st_size
    with suppress(ValueError):  # the limit of this process is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))

    import torch
    from safetensors.torch import save_file

    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True)
        if not isinstance(loaded, dict) or not all(map(_is_weight, loaded.items())):
            raise CaiError(f"{source}: expected tensors by name and nothing else, as transformers saves them")
        tensors, shared = {}, set()
        for name, tensor in loaded.items():
            tensor = tensor.detach().contiguous()
            address = tensor.untyped_storage().data_ptr()
            tensors[name] = tensor.clone() if address in shared else tensor
            shared.add(address)
        save_file(tensors, target, {"format": "pt"})
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it refers to {found[1]}, which is code" if found else "it is damaged, or has more than tensors"
        raise CaiError(f"{source}: refused, because {reason}; nothing in it was run. Use a safetensors file") from None
    except CaiError:
        raise
    except Exception as error:  # of many kinds
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, MemoryError) or "allocate memory" in reason:
            reason = f"its tensors need more than {bound / 1e9:.1f} GB, many times its size"
        raise CaiError(f"{source} cannot be read: {reason}") from None
    print(json.dumps({"tensors": len(tensors), "bytes": target.stat().st_size}))


def _is_weight(item: tuple[object, object]) -> bool:
    import torch

    name, value = item
    return isinstance(name, str) and isinstance(value, torch.Tensor) and value.layout == torch.strided


if __name__ == "__main__":
    terminal.run(main)
