"""Rewrites preprocessed CUDA C++ for a host compiler: inline PTX becomes function calls.

`instructions.h` defines the functions. An unknown instruction raises `InputError` with its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.errors import InputError

NO_OPS = ("", "griddepcontrol.wait", "griddepcontrol.launch_dependents", "wgmma.fence",
           "wgmma.commit_group", "wgmma.wait_group", "fence.mbarrier_init", "prefetch.global")
"""Instructions without an effect if threads run one at a time; "" is an empty asm."""
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
"""The function in `instructions.h` of each instruction prefix."""
APPROXIMATE = re.compile(
    r"\b(__(?:expf|exp10f|logf|log2f|log10f|powf|sinf|cosf|tanf|sincosf|fdividef|tanhf)|"
    r"(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|"
    r"tanh|asinh|acosh|atanh|sincos|erf|erfc|lgamma|tgamma|cbrt|hypot|rsqrt|rcbrt|sinpi|cospi)f?)"
    r"\s*\(")
"""Functions that CUDA specifies by an error bound only, so device and host bits differ."""
DEVICE_ONLY = re.compile(r"\b(__activemask|clock|clock64|__nanosleep|globaltimer)\s*\(")
"""Functions whose result only a device has."""
LAUNCH_BOUNDS = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
GLOBAL_FUNCTION = (rf"(?:(?:void|static|inline|{LAUNCH_BOUNDS})\s+)*__global__\s+"
                   rf"(?:(?:void|{LAUNCH_BOUNDS})\s*)*"
                   r"\b(?!__)(\w+)\s*\(")
KERNEL = re.compile(rf'extern\s+"C"\s+{GLOBAL_FUNCTION}')
EXTERN_C_BLOCK = re.compile(r'extern\s+"C"\s*\{')
DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+"
                            r"(?:__align__\s*\([^()]*\)\s*|alignas\s*\([^()]*\)\s*)?"
                            r"((?:\w+\s+)*\w+)\s+(\w+)\s*\[\s*\]\s*;")
STATIC_SHARED = re.compile(r"(?<!extern )__shared__\s+[^;]*;")
ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
STRING_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
ASM_PROLOGUE = re.compile(r"\{?\s*(?:\.reg [^;]*;|setp\.[^;]*;|cvt\.u16\.u32 [^;]*;)\s*")
"""Register declarations and operand conversions before the instruction proper."""


def kernel_names(source: str) -> list[str]:
    """Return the kernel names of a source, in order."""
    names_by_position = {found.start(1): found[1] for found in KERNEL.finditer(source)}
    for block in EXTERN_C_BLOCK.finditer(source):
        end = _find_closing(source, block.end())
        contents = re.compile(GLOBAL_FUNCTION).finditer(source, block.end(), end)
        names_by_position.update({found.start(1): found[1] for found in contents})
    return [names_by_position[at] for at in sorted(names_by_position)]


def rewrite_source(source: str) -> str:
    """Return preprocessed CUDA C++ as C++ for `simt.h`; raise `InputError` for unknown parts."""
    for refused, why in ((APPROXIMATE, "its bits on a device differ from a host's"),
                         (DEVICE_ONLY, "only a device can answer it")):
        if found := refused.search(source):
            raise InputError(f"the emulator refuses {found[1]}: {why}")
    source = DYNAMIC_SHARED.sub(r"\1* const \2 = (\1*)simt::shared_memory;", source)
    if re.search(r"\btemplate\b", source):  # g++ ignores the section attribute in templates
        source = STATIC_SHARED.sub(_poison_static, source)
    pieces, at = [], 0
    for found in ASM.finditer(source):
        if found.start() < at:
            continue
        end = _find_closing(source, found.end())
        pieces += [source[at:found.start()], _translate_asm(source[found.end():end])]
        at = end + 1
    return "".join([*pieces, source[at:]])


def _poison_static(declared: re.Match[str]) -> str:
    """Return a shared-memory declaration followed by calls that poison it once per block."""
    declaration = re.sub(r"<[^;]*>|\([^;]*?\)", "", declared[0])
    names = re.findall(r"(\w+)\s*(?:\[[^;=]*?\]\s*)*(?=[,;])", declaration)
    return declared[0] + "".join(f" simt::poison_static(&{name}, sizeof {name});" for name in names)


def _find_closing(source: str, at: int) -> int:
    """Return the position of the bracket that closes the one before `at`."""
    depth = 1
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|[(){}]').finditer(source, at):
        depth += 1 if found[0] in "({" else -1 if found[0] in ")}" else 0
        if depth == 0:
            return found.start()
    raise InputError(f"unclosed bracket before {source[at:at + 20].strip()!r}")


def _split_operands(contents: str, separator: str) -> Iterator[str]:
    """Yield the parts between separators outside of strings and brackets."""
    depth, first = 0, 0
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|::|[()\[\]:,]').finditer(contents):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(found[0], 0)
        if depth == 0 and found[0] in (separator, separator * 2):
            yield contents[first:found.start()]
            if len(found[0]) == 2:
                yield ""
            first = found.end()
    yield contents[first:]


def _translate_asm(contents: str) -> str:
    template, *lists = _split_operands(contents, ":")
    instruction = "".join(STRING_LITERAL.findall(template))
    while found := ASM_PROLOGUE.match(instruction):
        instruction = instruction[found.end():]
    operands = [_operand_expression(operand) for section in lists[:2]
                for operand in _split_operands(section, ",") if operand.strip()]
    name = instruction.split(" ")[0].split(";")[0].strip()
    if any(name == known or (known and name.startswith(f"{known}.")) for known in NO_OPS):
        return "(void)0"
    known = max((k for k in CALLS if name == k or name.startswith(f"{k}.")), key=len, default=None)
    if known is None:
        raise InputError(f"the emulator does not know the instruction {name}")
    return _format_call(CALLS[known], instruction, operands)


def _format_call(function: str, instruction: str, operands: list[str]) -> str:
    if function == "cp_async":  # operands: to, from, bytes, valid bytes
        copied = re.search(r"\], (\d+)", instruction)
        total = copied[1] if copied else "0"
        operands = [*operands[:2], total, *(operands[2:] or [total])]
    elif function == "cp_async_wait_group" and not operands:
        operands = re.findall(r"\d+", instruction)
    elif function == "mbarrier_init":
        operands = [*operands, *re.findall(r"\], (\d+)", instruction)]
    elif function == "mbarrier_wait":
        parity = re.findall(r"\], (\d+)", instruction)
        return f"{operands[0]} = simt::mbarrier_try_wait({operands[1]}, {parity[0]})"
    return f"simt::{function}({', '.join(operands)})"


def _operand_expression(operand: str) -> str:
    """Return the expression of an asm operand, without its constraint."""
    return operand[operand.index("(") + 1:operand.rindex(")")].strip()
