"""8-bit products on a processor with AVX2 and neither AVX-512 nor VNNI, beside those of float32, one thread.

On Linux and Intel, with a C compiler: CPUID is made to report such a processor to this process, whichever library asks.
Products of 512 tokens, with quantization of the activations: oneDNN's, as models/int8.py calls it, FBGEMM's with
activations of 7 bits, and ONNX Runtime's with weights of 7 bits; with 8 bits each, sums of two products saturate at 16
bits. GFLOP/s are of processor time.
"""

import os
import subprocess
import sys
import time
from statistics import median
from tempfile import NamedTemporaryFile

import harness

ROWS = 512
SHAPES = ((128, 512), (128, 30522), (384, 1536), (384, 30522), (768, 3072))  # inputs, outputs
CPUID = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
static void faulting(int on) { syscall(SYS_arch_prctl, 0x1012, !on); }
static void emulate(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint32_t leaf = r[REG_RAX], sub = r[REG_RCX], a, b, c, d;
    if (*(uint16_t *)r[REG_RIP] != 0xa20f) { signal(sig, SIG_DFL); return; }
    faulting(0);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(sub));
    faulting(1);
    if (leaf == 7 && sub == 0) b &= ~0xdc230000u, c &= ~0x5842u, d &= ~0x3c0010cu;  // AVX-512, VNNI, AMX
    if (leaf == 7 && sub == 1) a = b = c = d = 0;  // AVX-VNNI
    r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d, r[REG_RIP] += 2;
}
__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = emulate, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    faulting(1);
}
"""


def speeds(inputs: int, outputs: int) -> dict[str, float]:
    """GFLOP/s by library."""
    import numpy as np
    import onnxruntime
    import torch
    from onnx import TensorProto, helper, numpy_helper

    from cai_pyserini.models.int8 import Int8Linear

    x, weight = torch.randn(ROWS, inputs), torch.randn(outputs, inputs)
    scales = weight.abs().amax(1) / 63
    integers = (weight / scales[:, None]).round().to(torch.int8)
    ours = Int8Linear(weight, None)
    torch.backends.quantized.engine = "fbgemm"
    zeros = torch.zeros(outputs, dtype=torch.long)
    quantized = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, None)
    stored = {"w": integers.T.contiguous(), "s": scales, "z": zeros.to(torch.int8)}
    node = helper.make_node("DynamicQuantizeMatMul", ["x", *stored], ["y"], domain="com.microsoft")
    ends = [[helper.make_tensor_value_info(end, TensorProto.FLOAT, None)] for end in "xy"]
    initial = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", *ends, initial), opset_imports=versions, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    calls = {
        "float32": lambda: torch.nn.functional.linear(x, weight),
        "oneDNN": lambda: ours(x),
        "FBGEMM": lambda: torch.ops.quantized.linear_dynamic(x, packed, True),
        "ONNX Runtime": lambda: session.run(None, {"x": x.numpy()}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    work = 2 * ROWS * inputs * outputs
    for call in calls.values():
        call()
    for _ in range(3):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(max(1, 10**9 // work)):
                call()
            seconds[name].append((time.process_time() - start) / max(1, 10**9 // work))
    return {name: work / median(found) / 1e9 for name, found in seconds.items()}


def main() -> None:
    harness.parser(__doc__, collection=False, repeats=None).parse_args()
    with NamedTemporaryFile(suffix=".so") as library:
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", "-xc", "-", "-o", library.name], input=CPUID.encode(), check=True
        )
        environment = {**os.environ, "LD_PRELOAD": library.name, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-W", "ignore", __file__, "--measure"], env=environment, check=True)


if __name__ == "__main__":
    if "--measure" not in sys.argv:
        main()
    else:
        found = {shape: speeds(*shape) for shape in SHAPES}
        names = list(next(iter(found.values())))
        rows = [(f"{a} × {b:,}", *(f"{by[name]:.0f}" for name in names)) for (a, b), by in found.items()]
        harness.show("GFLOP/s of products with AVX2 alone", ("inputs × outputs", *names), rows)
