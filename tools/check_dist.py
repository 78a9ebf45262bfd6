"""Check distributions before they are published; needs pyelftools.

    python tools/check_dist.py [--tag v0.2.0] [--local] FILE...

An sdist has what a build needs, all of it, and nothing else. A wheel has the package, its license and one module. The
module is stripped, exports its own functions only, needs system libraries only and names no folder of the machine that
built it.
``--tag``: the version is the tag's, and the changelog has it. ``--local``: any glibc will do.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
IN_SDIST = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "csrc", "kernels", "packaging", "python")
# Of manylinux_2_28, on x86-64 and aarch64; rt and dl for the CUDA runtime.
SYSTEM = re.compile(r"(ld-linux-(x86-64|aarch64)|lib(c|m|pthread|rt|dl|gcc_s|stdc\+\+))\.so\.\d+")
FOLDER = re.compile(rb"/(?:tmp|root|home|work|build|project|opt|usr/src)/[\w./+-]+")


def check(condition: object, message: str) -> None:
    if not condition:
        raise SystemExit(f"check_dist: {message}")


def check_sdist(path: Path) -> str:
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    git = ["git", "-C", str(ROOT), "ls-files", *IN_SDIST]
    wanted = set(subprocess.run(git, capture_output=True, text=True, check=True).stdout.split()) | {"PKG-INFO"}
    check(not wanted - names, f"{path.name} lacks {sorted(wanted - names)[:5]}")
    check(not names - wanted, f"{path.name} has {sorted(names - wanted)[:5]}, which no build needs")
    return f"{len(names)} files"


def check_module(name: str, data: bytes) -> str:
    elf = ELFFile(io.BytesIO(data))
    sections = {section.name for section in elf.iter_sections()}
    check(not {s for s in sections if s == ".symtab" or s.startswith(".debug")}, f"{name} is not stripped")
    symbols = elf.get_section_by_name(".dynsym")
    check(isinstance(symbols, SymbolTableSection), f"{name} has no dynamic symbols")
    exported = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}
    foreign = sorted(s for s in exported if not re.fullmatch(r"PyInit__core|boost_ext_\w+", s))
    check(not foreign, f"{name} exports {foreign[:5]}")
    dynamic = elf.get_section_by_name(".dynamic")
    check(isinstance(dynamic, DynamicSection), f"{name} is no shared library")
    tags = list(dynamic.iter_tags())
    check(not [t for t in tags if t.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")], f"{name} has a run path")
    needed = [t.needed for t in tags if t.entry.d_tag == "DT_NEEDED"]
    check(all(SYSTEM.fullmatch(n) for n in needed), f"{name} needs {needed}")
    folders = FOLDER.findall(data)
    check(not folders, f"{name} names {folders[:3]}")
    return f"{len(data) / 2**20:.1f} MiB, {len(exported)} exported, needs {' '.join(needed)}"


def check_wheel(path: Path, local: bool) -> str:
    distribution, version, python, abi, platform = path.stem.split("-")
    check(distribution in ("boost_ext", "boost_ext_cuda"), f"{path.name}: an unknown distribution")
    check(version == VERSION, f"{path.name} must be of version {VERSION}")
    check(re.fullmatch(r"cp3\d+", python) and abi == python, f"{path.name} must be for one CPython")
    tagged = platform.startswith("manylinux_") if local else "manylinux_2_28_" in platform
    check(tagged, f"{path.name} must be a manylinux_2_28 wheel")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        info = f"{distribution}-{version}.dist-info"
        check({n.split("/")[0] for n in names} == {distribution, info}, f"{path.name} has more than its package")
        check(f"{info}/licenses/LICENSE" in names, f"{path.name} has no license")
        metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
        check(metadata["Version"] == VERSION, f"{path.name}: its metadata have version {metadata['Version']}")
        if distribution == "boost_ext":
            needed = {"py.typed", "_core.pyi", "report/page.html"}
            needed = {*(f"boost_ext/{name}" for name in needed), f"{info}/entry_points.txt"}
            check(needed <= names, f"{path.name} lacks {sorted(needed - names)}")
        else:
            check(metadata.get_all("Requires-Dist") == [f"boost_ext=={VERSION}"], f"{path.name}: another boost_ext")
        modules = [n for n in names if ".so" in n]
        check(len(modules) == 1 and modules[0].startswith(f"{distribution}/_core."), f"{path.name} has {modules}")
        return check_module(f"{path.name}: {modules[0]}", archive.read(modules[0]))


def check_tag(tag: str) -> None:
    check(tag == f"v{VERSION}", f"the tag must be v{VERSION}, got {tag}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## {re.escape(VERSION)}\b(.*)$", changelog, re.MULTILINE)
    check(heading and "unreleased" not in heading[1], f"CHANGELOG.md must have a heading of {VERSION}, released")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    if options.tag:
        check_tag(options.tag)
    for path in options.files:
        found = check_wheel(path, options.local) if path.suffix == ".whl" else check_sdist(path)
        print(f"{path.name}: {found}")


if __name__ == "__main__":
    main()
