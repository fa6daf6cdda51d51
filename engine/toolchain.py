"""Check for NVRTC, which compiles CUDA C++ without a GPU."""

from __future__ import annotations

from engine.kernels import nvrtc


def nvrtc_unavailable_reason() -> str | None:
    """Return why NVRTC cannot be used, or None if it can."""
    try:
        nvrtc.load_nvrtc()
    except (nvrtc.CudaError, OSError) as error:
        return str(error)
    return None
