"""Check compiled CUDA C++: the PTX for forbidden operations, the machine code for spills.

Needs no GPU. NVRTC compiles the source with the same options as for a launch.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from triton.backends import nvidia

from engine.kernels.compile import found_in
from engine.kernels.nvrtc import compiled


def faults_of(source: str, options: tuple[str, ...] = (), arch: str = "sm_90") -> list[str]:
    """Compile CUDA C++ for an architecture and return its forbidden operations and spills."""
    ptx, cubin = compiled(source, options, arch)
    return found_in(ptx) + spilled(cubin) if ".entry" in ptx else ["no kernel"]


def spilled(cubin: bytes) -> list[str]:
    """Return the stack and local memory that machine code uses, one string each."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True,
                               check=True).stdout
    found = re.findall(r"(STACK|LOCAL):(\d+)", usage)
    if not found:
        return ["no resource usage found"]
    return [f"{size} bytes of {name.lower()}" for name, size in found if size != "0"]
