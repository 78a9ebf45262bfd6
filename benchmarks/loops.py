"""Static throughput of the CPU kernels' inner loops, by llvm-mca: the noise of a machine cannot hide a slower loop.

``python -m benchmarks.loops [FOLDER ...]`` disassembles the kernels that were built in these folders (``build/wheel``
and ``build/aarch64``) and takes each innermost loop that works on vectors. It compares them with
``benchmarks/loops.csv``, and fails if a loop takes 10 % more cycles for its bytes on any CPU, or spills more vectors.
``--write`` writes the table again, for a change that was meant.

Another compiler makes other loops, so with another one than the table's nothing is compared. Then build the older
revision with the same compiler, too: ``--against FOLDER`` compares two builds. It needs llvm-mca and llvm-objdump of
version 17 or newer.

The cycles are those of an iteration with all data in the first cache. They say how much a core computes for each byte,
and nothing of the memory. A branch within a loop counts with both ways. A loop that calls functions is left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "loops.csv"
BUILT = (ROOT / "build" / "wheel", ROOT / "build" / "aarch64")
SLOWER = 1.1
CPUS = {
    "avx2": ("znver3",),
    "avx512": ("skylake-avx512", "sapphirerapids", "znver4"),
    "aarch64": ("neoverse-v2",),
}
ITERATIONS = 100
_EM_AARCH64 = 183
_COLUMNS = ("isa", "file", "function", "number", "instructions", "bytes", "spills")
# Identifiers in a mangled name that do not tell one loop from another.
_COMMON = {
    "boost_ext",
    "cpu",
    "avx2",
    "avx512",
    "baseline",
    "Context",
    "View",
    "Tensors",
    "Block",
    "Blocks",
    "run",
    "F",
}
_COMMON |= {"on_threads", "Chunk", "Squares", "OptimizerStep", "_FUN", "_GLOBAL__N_1", "Full", "clE"}
_SIZES = {"byte": 1, "word": 2, "dword": 4, "qword": 8, "xmmword": 16, "ymmword": 32, "zmmword": 64}
_REGISTERS = {"q": 16, "d": 8, "s": 4, "h": 2, "b": 1, "x": 8, "w": 4}
_JUMP = re.compile(r"(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s+(?:.*, )?0x([0-9a-f]+)$")


@dataclass(frozen=True)
class Loop:
    """An innermost loop. The number counts the loops of a function, from that of the fewest bytes to that of the most:
    compilers put them in another order when little has changed.
    """

    isa: str
    file: str
    function: str
    number: int
    instructions: int
    bytes: int
    spills: int
    cycles: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.isa, self.file, self.function, self.number


def name_of(symbol: str) -> str:
    """The identifiers of a mangled name that tell it from others, each once; boolean arguments as 0 and 1."""
    words: list[str] = []
    at = 0
    while at < len(symbol):
        if flag := re.match(r"Lb([01])E", symbol[at:]):
            words.append(flag[1])
            at += flag.end()
        elif (length := re.match(r"\d+", symbol[at:])) and re.fullmatch(
            r"[A-Za-z_]\w*", word := symbol[at + length.end() : at + length.end() + int(length[0])]
        ):
            if word not in _COMMON and word not in words:
                words.append(word)
            at += length.end() + len(word)
        elif repeated := re.match(r"[ST]\w?_", symbol[at:]):  # what was named before, by a number
            at += repeated.end()
        else:
            at += 1
    return " ".join(words)


def functions(disassembly: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """The mangled name of each function, and its instructions with their addresses."""
    parts = re.split(r"^[0-9a-f]+ <(.*)>:$", disassembly, flags=re.MULTILINE)[1:]
    for symbol, body in zip(parts[::2], parts[1::2], strict=True):
        lines = re.findall(r"^\s*([0-9a-f]+):\s+(\S.*)$", body, re.MULTILINE)
        yield (
            symbol,
            [(int(at, 16), re.sub(r"\s+(<|# |//).*$", "", line.replace("\t", " "))) for at, line in lines],
        )


def bodies(code: list[tuple[int, str]]) -> Iterator[list[str]]:
    """The instructions of each innermost loop that works on vectors and calls nothing."""
    first = code[0][0] if code else 0
    jumps = [(int(m[1], 16), at) for at, line in code if (m := _JUMP.match(line)) and first <= int(m[1], 16) <= at]
    for head, end in jumps:
        if any((other, last) != (head, end) and head <= other and last <= end for other, last in jumps):
            continue
        body = [line for at, line in code if head <= at <= end and not line.startswith("nop")]
        vectors = any(re.search(r"\b[xyz]mm\d|\bv\d+\.|\bq\d", line) for line in body)
        if vectors and not any(re.match(r"(call|blr?)\s", line) for line in body):
            yield body


def bytes_of(line: str) -> int:
    """The bytes that an instruction reads or writes in memory, but for constants and the stack."""
    if operand := re.search(r"(\w+) ptr \[([^]]*)\]", line):
        return 0 if re.match(r"rip|rsp", operand[2]) or "prefetch" in line else _SIZES[operand[1]]
    if (moved := re.match(r"(?:ld|st)(\w+) (.*), \[(\w+)", line)) and moved[3] != "sp":
        if narrow := re.match(r"u?rs?([bh])", moved[1]):
            return _REGISTERS[narrow[1]]
        if vectors := re.match(r"\{(.*)\}(\[\d\])?", moved[2]):
            lanes, kind = re.findall(r"\.(\d*)(\w)", vectors[1])[0]
            one = 1 if vectors[2] or moved[1].endswith("r") else int(lanes)
            return one * _REGISTERS[kind] * (vectors[1].count(",") + 1)
        return sum(_REGISTERS[register] for register in re.findall(r"\b([qdshbxw])(?:\d+|zr)\b", moved[2]))
    return 0


def spills_of(code: list[tuple[int, str]], body: Iterable[str]) -> int:
    """How many vectors a loop moves to or from a fixed place of the stack, in a function of this code."""
    # rbp is one register of many, unless the function keeps its frame in it.
    stack = "rsp|rbp|sp" if any(line == "mov rbp, rsp" for _, line in code) else "rsp|sp"
    vector, place = re.compile(r"\b[xyz]mm\d|\bq\d"), re.compile(rf"\[({stack})( [+-] \d+|, #-?\w+)?\]")
    return sum(bool(vector.search(line) and place.search(line)) for line in body)


def measured(objdump: str, path: Path, isa: str) -> tuple[list[tuple[str, list[str]]], list[tuple[int, int, int]]]:
    """The name and the body of each loop of an object file; its instructions, bytes and spills."""
    command = [objdump, "-d", "--no-show-raw-insn", "--no-print-imm-hex", "-M", "intel", str(path)]
    if isa == "aarch64":
        command[-3:-1] = []
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, counts = [], []
    for symbol, code in functions(text):
        for body in bodies(code):
            found.append((name_of(symbol), body))
            counts.append((len(body), sum(map(bytes_of, body)), spills_of(code, body)))
    return found, counts


def cycles(mca: str, cpu: str, isa: str, found: list[list[str]]) -> list[float]:
    """The predicted cycles of an iteration of each loop."""
    syntax = [] if isa == "aarch64" else [".intel_syntax noprefix"]
    regions = (line for body in found for line in ("# LLVM-MCA-BEGIN", *body, "# LLVM-MCA-END"))
    lines = [re.sub(r"0x[0-9a-f]+$", "elsewhere", x) if _JUMP.match(x) else x for x in (*syntax, *regions, "")]
    triple = "aarch64-linux-gnu" if isa == "aarch64" else "x86_64-linux-gnu"
    lean = ["-instruction-info=false", "-resource-pressure=false"]  # views that nobody reads are half of the time
    command = [mca, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={ITERATIONS}", "-json", *lean]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[:2000]}")
    return [x["SummaryView"]["TotalCycles"] / ITERATIONS for x in json.loads(done.stdout)["CodeRegions"]]


def objects(folders: Iterable[Path]) -> dict[tuple[str, str], Path]:
    """The newest object of each instruction set and kernel: a wheel is built for several Pythons."""
    newest: dict[tuple[str, str], Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("boost_ext_*.dir/**/cpu/*.o"), key=lambda p: p.stat().st_mtime):
            isa = next(p.name for p in path.parents if p.name.startswith("boost_ext_"))[
                len("boost_ext_") : -len(".dir")
            ]
            machine = int.from_bytes(path.read_bytes()[18:20], "little")
            isa = "aarch64" if machine == _EM_AARCH64 and isa == "baseline" else isa
            if isa in CPUS:
                newest[isa, path.name.partition(".")[0]] = path
    return newest


def compiler_of(path: Path) -> str:
    """What the compiler wrote of itself into an object file."""
    if found := re.search(rb"(?:GCC: |clang version )[^\0]+", path.read_bytes()):
        return found[0].decode()
    raise ValueError(f"{path} does not name its compiler")


def measure(tools: tuple[str, str], paths: dict[tuple[str, str], Path]) -> list[Loop]:
    """The loops of all objects."""
    objdump, mca = tools
    found = []
    for (isa, file), path in sorted(paths.items()):
        named, counts = measured(objdump, path, isa)
        each = [cycles(mca, cpu, isa, [body for _, body in named]) for cpu in CPUS[isa]] if named else []
        rows = (
            (name, size, predicted, count, spills)
            for (name, _), (count, size, spills), predicted in zip(named, counts, zip(*each, strict=True), strict=True)
        )
        numbers = Counter[str]()
        for function, size, predicted, count, spills in sorted(rows):
            found.append(Loop(isa, file, function, numbers[function], count, size, spills, predicted))
            numbers[function] += 1
    return found


def write(compilers: dict[str, str], loops: list[Loop]) -> None:
    """The table: a line for each instruction set with its compiler, then one for each loop."""
    from boost_ext.files import write_text  # nothing else needs the package

    names = [cpu for cpus in CPUS.values() for cpu in cpus]
    text = io.StringIO("".join(f"# {isa}: {compiler}\n" for isa, compiler in sorted(compilers.items())))
    text.seek(0, io.SEEK_END)
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*_COLUMNS, *names])
    for loop in sorted(loops, key=lambda x: x.key):
        predicted = dict(zip(CPUS[loop.isa], loop.cycles, strict=True))
        values = (f"{predicted[cpu]:g}" if cpu in predicted else "" for cpu in names)
        out.writerow([*loop.key, loop.instructions, loop.bytes, loop.spills, *values])
    write_text(TABLE, text.getvalue())


def read() -> tuple[dict[str, str], list[Loop]]:
    lines = TABLE.read_text().splitlines()
    heads = [line.removeprefix("# ").partition(": ") for line in lines if line.startswith("#")]
    loops = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        numbers = (int(row[column]) for column in _COLUMNS[3:])
        predicted = tuple(float(row[cpu]) for cpu in CPUS[row["isa"]])
        loops.append(Loop(row["isa"], row["file"], row["function"], *numbers, predicted))
    return {isa: compiler for isa, _, compiler in heads}, loops


def worse(old: Loop, new: Loop) -> Iterator[str]:
    """In which ways a loop became worse, for each byte if it is unrolled otherwise."""
    share = max(new.bytes, 1) / max(old.bytes, 1)
    share = share if share >= 1.5 or share <= 1 / 1.5 else 1
    for cpu, before, after in zip(CPUS[old.isa], old.cycles, new.cycles, strict=True):
        if after > SLOWER * before * share:
            yield f"{cpu}: {before:g} cycles for {old.bytes} bytes, now {after:g} for {new.bytes}"
    if new.spills > old.spills:
        yield f"moves {old.spills} vectors to and from the stack, now {new.spills}"


def compare(old: list[Loop], new: list[Loop]) -> list[str]:
    """What is worse in `new`; and which functions have other loops, so that nothing tells which was which."""
    found = []
    functions_of = [Counter((x.isa, x.file, x.function) for x in loops) for loops in (old, new)]
    changed = {f for f in functions_of[0].keys() | functions_of[1].keys() if functions_of[0][f] != functions_of[1][f]}
    found += [f"{' '.join(f)}: {functions_of[0][f]} loops, now {functions_of[1][f]}" for f in changed]
    before = {x.key: x for x in old if x.key[:3] not in changed}
    for loop in new:
        if loop.key in before:
            found += [f"{' '.join(map(str, loop.key))}: {why}" for why in worse(before[loop.key], loop)]
    return sorted(found)


def tools() -> tuple[str, str] | None:
    """The newest llvm-objdump and llvm-mca, of one version; the CPUs are known to 17 and newer."""
    for version in ("", *(f"-{number}" for number in range(40, 16, -1))):
        if (objdump := shutil.which(f"llvm-objdump{version}")) and (mca := shutil.which(f"llvm-mca{version}")):
            known = subprocess.run([mca, "-mcpu=help"], input="", capture_output=True, text=True, check=False)
            if "znver4" in known.stderr + known.stdout:
                return objdump, mca
    return None


def llvm_of(mca: str) -> str:
    text = subprocess.run([mca, "--version"], capture_output=True, text=True, check=True).stdout
    return "LLVM " + re.findall(r"version (\d+)", text)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=BUILT, help="of builds")
    parser.add_argument("--against", metavar="FOLDER", action="append", type=Path, help="builds to compare with")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)} again")
    options = parser.parse_args()
    if (found := tools()) is None:
        print("no llvm-mca and llvm-objdump here that know the CPUs (17 or newer): no loop was compared")
        return 0
    built = objects(options.folders)
    compilers = {isa: f"{compiler_of(path)}; {llvm_of(found[1])}" for (isa, _), path in built.items()}
    if options.write:
        if missing := CPUS.keys() - compilers.keys():
            parser.error(f"no kernels for {', '.join(sorted(missing))} in {', '.join(map(str, options.folders))}")
        write(compilers, measure(found, built))
        return 0
    if options.against:
        before = objects(options.against)
        others = {isa: f"{compiler_of(path)}; {llvm_of(found[1])}" for (isa, _), path in before.items()}
    else:
        others, known = read()
    failed = False
    for isa in CPUS:
        if isa not in compilers and isa not in others:
            continue
        if compilers.get(isa) != others.get(isa):
            print(f"{isa}: by {compilers.get(isa)} here, by {others.get(isa)} there: not compared")
            continue
        here = measure(found, {key: path for key, path in built.items() if key[0] == isa})
        if options.against:
            there = measure(found, {key: path for key, path in before.items() if key[0] == isa})
        else:
            there = [loop for loop in known if loop.isa == isa]
        lines = compare(there, here)
        print(f"{isa}: {len(here)} loops, {len(lines)} complaints", *lines, sep="\n  ")
        failed |= bool(lines)
    if failed and not options.against:
        print("If this was meant: make loops ARGS=--write")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
