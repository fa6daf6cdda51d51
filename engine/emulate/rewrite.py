"""CUDA C++ as a host compiler takes it: preprocessed, with its PTX instructions as calls.

What the calls do is in `instructions.h`. An instruction that is not there is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.errors import InputError

NOTHING = ("", "griddepcontrol.wait", "griddepcontrol.launch_dependents", "wgmma.fence",
           "wgmma.commit_group", "wgmma.wait_group", "fence.mbarrier_init", "prefetch.global")
"""What has no effect where threads run one after another; the empty one holds a register."""
CALLS = {
    "cp.async.cg.shared.global": "cp_async", "cp.async.ca.shared.global": "cp_async",
    "cp.async.commit_group": "cp_async_commit_group",
    "cp.async.wait_group": "cp_async_wait_group", "cp.async.wait_all": "cp_async_wait_all",
    "cp.async.bulk": "bulk_copy", "bar.sync": "bar_sync", "mbarrier.init": "mbarrier_init",
    "mbarrier.arrive.expect_tx": "mbarrier_expect", "mbarrier.try_wait.parity": "mbarrier_wait",
    "ld.global.nc": "load_quad", "prmt.b32": "prmt",
    "wgmma.mma_async.sync.aligned.m64n96k32.s32.u8.s8": "wgmma_m64n96k32",
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32": "mma_m16n8k16",
    **{f"mma.sync.aligned.m16n8k32.row.col.s32.{a}8.s8.s32": f"mma_m16n8k32<{c}int8_t>"
       for a, c in (("s", ""), ("u", "u"))},
    **{f"cvt.{r}.{t}.f32": f"cvt_{r}_{t}_f32" for r in ("rn", "rz") for t in ("f16", "bf16")},
    "cvt.f32.f16": "cvt_f32_f16", "cvt.f32.bf16": "cvt_f32_bf16"}
"""The functions of `instructions.h`, by the beginning of an instruction."""
APPROXIMATE = re.compile(
    r"\b(__(?:expf|exp10f|logf|log2f|log10f|powf|sinf|cosf|tanf|sincosf|fdividef|tanhf)|"
    r"(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|"
    r"tanh|asinh|acosh|atanh|sincos|erf|erfc|lgamma|tgamma|cbrt|hypot|rsqrt|rcbrt|sinpi|cospi)f?)"
    r"\s*\(")
"""Functions whose bits on a device are not those of a host, and that CUDA bounds by an error."""
UNKNOWABLE = re.compile(r"\b(__activemask|clock|clock64|__nanosleep|globaltimer)\s*\(")
"""Functions that answer with what only a device has."""
BOUNDS = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
GLOBAL = (rf"(?:(?:void|static|inline|{BOUNDS})\s+)*__global__\s+(?:(?:void|{BOUNDS})\s*)*"
          r"\b(?!__)(\w+)\s*\(")
KERNEL = re.compile(rf'extern\s+"C"\s+{GLOBAL}')
BLOCK = re.compile(r'extern\s+"C"\s*\{')
DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\([^()]*\)\s*|alignas\s*\([^()]*\)\s*)?"
                     r"((?:\w+\s+)*\w+)\s+(\w+)\s*\[\s*\]\s*;")
SHARED = re.compile(r"(?<!extern )__shared__\s+[^;]*;")
ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
SETUP = re.compile(r"\{?\s*(?:\.reg [^;]*;|setp\.[^;]*;|cvt\.u16\.u32 [^;]*;)\s*")
"""What stands before an instruction proper: registers, and operands put into them."""


def kernels(source: str) -> list[str]:
    """Return the names of a source's kernels, in their order."""
    named = {found.start(1): found[1] for found in KERNEL.finditer(source)}
    for block in BLOCK.finditer(source):
        inside = re.compile(GLOBAL).finditer(source, block.end(), _closing(source, block.end()))
        named.update({found.start(1): found[1] for found in inside})
    return [named[at] for at in sorted(named)]


def rewritten(source: str) -> str:
    """Return preprocessed CUDA C++ as C++ for `simt.h`; `InputError` names what is not known."""
    for refused, why in ((APPROXIMATE, "a device computes it in bits of its own"),
                         (UNKNOWABLE, "only a device can answer it")):
        if found := refused.search(source):
            raise InputError(f"the emulator refuses {found[1]}: {why}")
    source = DYNAMIC.sub(r"\1* const \2 = (\1*)simt::arena;", source)
    if re.search(r"\btemplate\b", source):  # there the host compiler forgets where it belongs
        source = SHARED.sub(_renewed, source)
    made, at = [], 0
    for found in ASM.finditer(source):
        if found.start() < at:
            continue
        end = _closing(source, found.end())
        made += [source[at:found.start()], _call(source[found.end():end])]
        at = end + 1
    return "".join([*made, source[at:]])


def _renewed(declared: re.Match[str]) -> str:
    """Return a declaration of shared memory, and after it that a block's first thread renews it."""
    plain = re.sub(r"<[^;]*>|\([^;]*?\)", "", declared[0])
    names = re.findall(r"(\w+)\s*(?:\[[^;=]*?\]\s*)*(?=[,;])", plain)
    return declared[0] + "".join(f" simt::renew(&{name}, sizeof {name});" for name in names)


def _closing(source: str, at: int) -> int:
    """Return where the parenthesis or brace closes whose inside begins at `at`."""
    depth = 1
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|[(){}]').finditer(source, at):
        depth += 1 if found[0] in "({" else -1 if found[0] in ")}" else 0
        if depth == 0:
            return found.start()
    raise InputError(f"what begins with {source[at:at + 20].strip()!r} does not end")


def _parts(inside: str, mark: str) -> Iterator[str]:
    """Yield what stands between marks that are in no text and no parentheses."""
    depth, first = 0, 0
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|::|[()\[\]:,]').finditer(inside):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(found[0], 0)
        if depth == 0 and found[0] in (mark, mark * 2):
            yield inside[first:found.start()]
            if len(found[0]) == 2:
                yield ""
            first = found.end()
    yield inside[first:]


def _call(inside: str) -> str:
    template, *lists = _parts(inside, ":")
    text = "".join(TEXT.findall(template))
    while found := SETUP.match(text):
        text = text[found.end():]
    operands = [_parenthesised(one) for some in lists[:2] for one in _parts(some, ",")
                if one.strip()]
    name = text.split(" ")[0].split(";")[0].strip()
    if any(name == known or (known and name.startswith(f"{known}.")) for known in NOTHING):
        return "(void)0"
    known = max((k for k in CALLS if name == k or name.startswith(f"{k}.")), key=len, default=None)
    if known is None:
        raise InputError(f"the emulator does not know the instruction {name}")
    return _written(CALLS[known], text, operands)


def _written(function: str, text: str, operands: list[str]) -> str:
    if function == "cp_async":  # how many bytes, and how many of them are there
        bytes_ = re.search(r"\], (\d+)", text)
        whole = bytes_[1] if bytes_ else "0"
        operands = [*operands[:2], whole, *(operands[2:] or [whole])]
    elif function == "cp_async_wait_group" and not operands:
        operands = re.findall(r"\d+", text)
    elif function == "mbarrier_init":
        operands = [*operands, *re.findall(r"\], (\d+)", text)]
    elif function == "mbarrier_wait":
        parity = re.findall(r"\], (\d+)", text)
        return f"{operands[0]} = simt::mbarrier_try_wait({operands[1]}, {parity[0]})"
    return f"simt::{function}({', '.join(operands)})"


def _parenthesised(operand: str) -> str:
    """Return what an operand names, without its constraint."""
    return operand[operand.index("(") + 1:operand.rindex(")")].strip()
