"""What the CUDA kernels cost, counted in their machine code: registers, spills, instructions for the bytes they move.

``python -m benchmarks.cuda.kernels [--only NAME]`` compiles ``kernels/cuda`` for compute capability 9.0 and compares
with ``benchmarks/cuda/kernels.csv``. It fails if a kernel spills more, if a way through it has 10 % more instructions,
or if fewer of its warps fit on a multiprocessor. ``--write`` writes the table again (with ``--only``: the rows of these
files). It needs nvcc and nvdisasm of the CUDA toolkit; the wheel of triton has nvdisasm, too. Other versions make other
code: then nothing is compared.

A way leads from the start of a kernel to its end, or once around an innermost loop. Of the ways that move as many bytes
in accesses of 8 and 16 bytes, the one with the fewest instructions counts: that of whole, aligned packs. Its bytes show
which dtypes it is for. Of a loop on the way one iteration counts.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "kernels" / "cuda"
TABLE = Path(__file__).with_suffix(".csv")
ARCHITECTURE = 90
MORE = 1.1
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fmad=false",
    f"-I{ROOT / 'csrc'}",
    f"-I{SOURCES}",
    "-DBOOST_EXT_WITH_CUDA",
    f'-DBOOST_EXT_CUDA_ARCHITECTURES="{ARCHITECTURE}"',
)
_COLUMNS = ("file", "kernel", "number", "registers", "spilled", "shared", "instructions", "ways")
_BRANCH = re.compile(r"BRA.*`\((\.L_\w+)\)")


@dataclass(frozen=True)
class Kernel:
    """A kernel; the number counts those of a file that have the same name."""

    file: str
    name: str
    number: int
    registers: int
    spilled: int
    """Bytes that a thread writes to and reads from its stack."""
    shared: int
    instructions: int
    """All of its code."""
    ways: tuple[tuple[str, int, int], ...]
    """``kernel`` or ``loop``, the bytes, the instructions."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.file, self.name, self.number


def names_of(symbols: list[str]) -> dict[str, str]:
    """The kernels of mangled symbols: names with template arguments, without namespaces and parameters."""
    shown = subprocess.run(["c++filt", *symbols], capture_output=True, text=True, check=True).stdout.splitlines()
    names = (re.sub(r"^void |\([\w:]+\)(?=\d)|\w+::", "", re.sub(r"\(anonymous namespace\)::", "", x)) for x in shown)
    return {symbol: name.partition("(")[0] for symbol, name in zip(symbols, names, strict=True)}


def resources(log: str) -> dict[str, tuple[int, int, int]]:
    """The registers, spilled bytes and shared memory of each kernel, of what ``ptxas -v`` writes."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        numbers = [
            re.search(p, part)
            for p in (r"Used (\d+) reg", r"(\d+) bytes spill st", r"(\d+) bytes spill lo", r"(\d+) bytes smem")
        ]
        registers, stores, loads, shared = (int(m[1]) if m else 0 for m in numbers)
        found[part.partition("'")[0]] = registers, stores + loads, shared
    return found


def codes(disassembly: str) -> Iterator[tuple[str, list[str], dict[str, int]]]:
    """The symbol of each kernel, its instructions, and where its labels are."""
    parts = re.split(r"^\.text\.(\S+):$", disassembly, flags=re.MULTILINE)[1:]
    for symbol, body in zip(parts[::2], parts[1::2], strict=True):
        code, labels = list[str](), dict[str, int]()
        for line in body.partition("\t.section")[0].splitlines():
            if label := re.match(r"(\.L_\w+):", line):
                labels[label[1]] = len(code)
            elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
                code.append(instruction[1])
        yield symbol, code, labels


def bytes_of(instruction: str) -> int:
    """The bytes that a thread reads or writes in global memory by an access of 8 or 16."""
    access = re.match(r"(?:@!?U?P\w+ )?(?:LDG|STG|LD|ST)\.(\S+)", instruction)
    return next((size for width, size in (("128", 16), ("64", 8)) if access and width in access[1].split(".")), 0)


def fewest(code: list[str], labels: dict[str, int], begin: int, end: int) -> dict[int, int]:
    """The fewest instructions for each number of bytes that a way from `begin` to `end`, forwards, can move.

    To the end of the kernel if `end` is the length of the code."""
    best: list[dict[int, int]] = [{} for _ in range(len(code) + 1)]
    for at in range(min(end, len(code) - 1), begin - 1, -1):
        predicated = code[at].startswith("@")
        instruction = re.sub(r"^@!?U?P\w+ ", "", code[at])
        leaves = instruction.startswith(("EXIT", "RET", "BRA")) and not re.match(
            r"BRA\S* !?U?P\d|BRA\.DIV", instruction
        )
        next_ones = [at + 1] if predicated or not leaves else []
        if (branch := _BRANCH.search(instruction)) and ".DIV" not in instruction and labels[branch[1]] > at:
            next_ones.append(labels[branch[1]])
        ways = {0: 0} if at == end or (instruction.startswith("EXIT") and end == len(code)) else {}
        if at < end:
            for moved, count in (way for other in next_ones if other <= end for way in best[other].items()):
                ways[moved] = min(count, ways.get(moved, count))
        best[at] = {moved + bytes_of(code[at]): count + 1 for moved, count in ways.items()}
    return best[begin]


def ways_of(code: list[str], labels: dict[str, int]) -> tuple[tuple[str, int, int], ...]:
    """The widest ways through a kernel and around its innermost loops, and those of half as many bytes or more that
    differ by accesses of 16.

    For instance, a kernel that moves 12 bytes an element in float32, and 10 or 6 in half precision, has ways of 192,
    160 and 96 bytes.
    """
    jumps = [(labels[m[1]], at) for at, line in enumerate(code) if (m := _BRANCH.search(line)) and labels[m[1]] <= at]
    inner = [(a, b) for a, b in jumps if not any((c, d) != (a, b) and a <= c and d <= b for c, d in jumps)]
    found = []
    for what, begin, end in [("kernel", 0, len(code)), *(("loop", a, b) for a, b in inner if a < b)]:
        ways = fewest(code, labels, begin, end)
        most = max(ways, default=0)
        if most > 0 or what == "kernel":
            found += [
                (what, moved, count)
                for moved, count in sorted(ways.items())
                if 2 * moved >= most and (most - moved) % 16 == 0
            ]
    return tuple(found)


def measure(path: Path) -> list[Kernel]:
    """The kernels of a source file."""
    with tempfile.TemporaryDirectory() as scratch:
        cubin = Path(scratch) / "kernel.cubin"
        command = ["nvcc", f"-arch=sm_{ARCHITECTURE}", *_FLAGS, "-Xptxas=-v", "-cubin", "-o", str(cubin), str(path)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{built.stdout}{built.stderr}")
        shown = subprocess.run(["nvdisasm", "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    used = resources(built.stdout + built.stderr)
    names = names_of(list(used)) if used else {}
    numbers, found = Counter[str](), []
    for symbol, code, labels in sorted(codes(shown), key=lambda x: names[x[0]]):
        name = names[symbol]
        found.append(Kernel(path.stem, name, numbers[name], *used[symbol], len(code), ways_of(code, labels)))
        numbers[name] += 1
    return found


def versions() -> str:
    """Those of nvcc and nvdisasm: other ones make other code, and show it otherwise."""
    shown = (
        subprocess.run([x, "--version"], capture_output=True, text=True, check=True).stdout
        for x in ("nvcc", "nvdisasm")
    )
    nvcc, nvdisasm = (re.findall(r"release (\S+),", text)[0] for text in shown)
    return f"nvcc {nvcc}, nvdisasm {nvdisasm}"


def write(made_by: str, kernels: list[Kernel]) -> None:
    from boost_ext.files import write_text  # nothing else needs the package

    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(_COLUMNS)
    for kernel in sorted(kernels, key=lambda x: x.key):
        ways = " ".join(f"{what}:{moved}:{count}" for what, moved, count in kernel.ways)
        out.writerow([*kernel.key, kernel.registers, kernel.spilled, kernel.shared, kernel.instructions, ways])
    write_text(TABLE, f"# {made_by}\n{text.getvalue()}")


def read() -> tuple[str, list[Kernel]]:
    first, *lines = TABLE.read_text().splitlines()
    kernels = []
    for row in csv.DictReader(lines):
        ways = tuple(
            (what, int(moved), int(count)) for what, moved, count in (x.split(":") for x in row["ways"].split())
        )
        number, *counts = (int(row[column]) for column in _COLUMNS[2:-1])
        kernels.append(Kernel(row["file"], row["kernel"], number, *counts, ways))
    return first.removeprefix("# "), kernels


def warps(registers: int) -> int:
    """That fit on a multiprocessor of 64 K registers, which it gives to a warp by 256."""
    return min(64, 65536 // (-(-max(registers, 1) * 32 // 256) * 256))


def worse(old: Kernel, new: Kernel) -> Iterator[str]:
    if new.spilled > old.spilled:
        yield f"spills {old.spilled} bytes, now {new.spilled}"
    fit = warps(new.registers)
    if fit < warps(old.registers):
        yield f"{old.registers} registers, now {new.registers}: {fit} warps fit, not {warps(old.registers)}"
    if [x[:2] for x in new.ways] != [x[:2] for x in old.ways]:
        yield "has other ways"
        return
    for (what, moved, before), (_, _, after) in zip(old.ways, new.ways, strict=True):
        if after > MORE * before:
            yield f"{what} of {moved} bytes: {before} instructions, now {after}"


def compare(old: list[Kernel], new: list[Kernel]) -> list[str]:
    """What is worse in `new`, and which kernels are in one alone."""
    before, after = {x.key: x for x in old}, {x.key: x for x in new}
    found = [
        f"{' '.join(map(str, key))}: {why}" for key in before.keys() & after for why in worse(before[key], after[key])
    ]
    found += [f"{' '.join(map(str, key))}: not in the code" for key in before.keys() - after]
    found += [f"{' '.join(map(str, key))}: not in the table" for key in after.keys() - before]
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)} again")
    parser.add_argument("--only", metavar="NAME", action="append", help="of these files alone, such as dropout")
    options = parser.parse_args()
    if missing := [tool for tool in ("nvcc", "nvdisasm", "c++filt") if shutil.which(tool) is None]:
        print(f"no {' and no '.join(missing)} here: no CUDA kernel was compared")
        return 0
    made_by, _ = read() if TABLE.exists() else (versions(), [])
    if made_by != versions() and not (options.write and not options.only):
        print(f"the table is of {made_by}, here is {versions()}: no CUDA kernel was compared")
        return 0
    paths = [path for path in sorted(SOURCES.glob("*.cu")) if not options.only or path.stem in options.only]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        kernels = [kernel for of_file in pool.map(measure, paths) for kernel in of_file]
    stems = {path.stem for path in paths}
    known = read()[1] if TABLE.exists() else []
    if options.write:
        write(versions(), [x for x in known if options.only and x.file not in stems] + kernels)
        return 0
    lines = compare([x for x in known if x.file in stems or not options.only], kernels)
    print(f"{len(kernels)} CUDA kernels, {len(lines)} complaints", *lines, sep="\n  ")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
