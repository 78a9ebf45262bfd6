"""The directions that DESIGN.md gives the code: what may include, import or mention what."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CSRC, PACKAGE, TESTS = ROOT / "csrc", ROOT / "python" / "boost_ext", ROOT / "tests"
SOURCES = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".asc"}
FOUNDATIONS = {
    "device",
    "ieee_modes",
    "matrix_step",
    "optimizer_rules",
    "patches",
    "philox",
    "pool",
    "read_ahead",
    "runtime",
    "schema",
    "tensor",
}  # of csrc/ops: what ops are written in terms of
STEMS = sorted(p.stem for p in (CSRC / "ops").glob("*.h") if p.stem not in FOUNDATIONS)
WITHOUT_KERNEL = {
    "adasum_part",
    "clip_by_global_norm",
    "group_loss_scale",
    "lars",
    "loss_scale_update",
    "timestamp",
}  # scalars, or calls of another op
LAYERS = {
    "batch_norm",
    "conv2d",
    "cross_entropy",
    "gelu",
    "layer_norm",
    "matmul",
    "max_pool",
    "row_sum",
    "softmax",
    "strided_copy",
}
"""What compiled steps take for MindSpore's: tested and measured together."""
CPU_ONLY = {"adasum_part", "galore_step", "group_loss_scale", "timestamp", *LAYERS}
"""Without a CUDA kernel: what MindSpore's cells call and no function of ops.py, but for galore_step."""
PYTHON_ONLY = {"adasum", "global_norm"}
"""What MindSpore's cells call as a part of adasum_part and of clip_by_global_norm."""
KERNEL_HEADERS = {
    "cstdint",
    "cstring",
    "cstdlib",
    "cstddef",
    "cfloat",
    "climits",
    "new",
    "omp.h",
    "immintrin.h",
    "arm_neon.h",
}


def files(folder: Path, *suffixes: str) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and "__pycache__" not in path.parts:
            yield path


def includes(path: Path) -> set[str]:
    return set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE))


def imports(path: Path, in_functions: bool = True, typed: bool = True) -> set[str]:
    """Every module that a file imports, and names imported from packages. ``typed``: also for types alone."""
    tree = ast.parse(path.read_text())
    left_out = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not in_functions]
    if not typed:
        left_out += [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = {node for part in left_out for node in ast.walk(part)}
    found: set[str] = set()
    for node in set(ast.walk(tree)) - skipped:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT
            package = path.relative_to(above).parts[: -node.level]
            base = ".".join([*package, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_kernels_include_kernels_contracts_and_c():
    for path in files(CSRC / "cpu", ".h", ".cpp"):
        bad = {i for i in includes(path) if not i.startswith(("cpu/", "ops/")) and i not in KERNEL_HEADERS}
        assert not bad, f"{name(path)} includes {bad}: see the comment of cpu/simd.h"


def test_contracts_know_neither_kernels_nor_doors():
    for path in files(CSRC / "ops", ".h", ".cpp"):
        bad = {
            i
            for i in includes(path)
            if i.startswith(("cpu/", "ascend/", "boost_ext_ascend", "doors/", "pybind11", "Python"))
        }
        assert not bad, f"{name(path)} includes {bad}"


def test_doors_reach_kernels_through_contracts():
    for path in files(CSRC / "doors", ".h", ".cpp"):
        bad = {i for i in includes(path) if i.startswith(("cpu/", "ascend/", "boost_ext_ascend", "kernels/"))}
        assert not bad, f"{name(path)} includes {bad}"


def test_backends_never_see_one_another():
    cuda, ascend = ROOT / "kernels" / "cuda", ROOT / "kernels" / "ascend"
    for folder, others in (
        (CSRC / "cpu", ("cuda", "ascend", "kernels")),
        (CSRC / "ascend", ("cpu/", "cuda", "kernels", "doors/")),
        (cuda, ("cpu/", "ascend", "../ascend")),
        (ascend, ("cpu/", "cuda", "../cuda", "ops/", "doors/")),
    ):
        for path in files(folder, ".h", ".cpp", ".cu", ".cuh", ".asc"):
            assert not [i for i in includes(path) if i.startswith(others)], name(path)


def test_ascend_kernels_are_device_code():
    """What the device runs includes the API and what kernels share; only a launcher sees the host's part."""
    folder = ROOT / "kernels" / "ascend"
    kernels = sorted(folder.glob("*_kernel.h"))
    for path in kernels:
        assert includes(path) == {"tile.h"}, name(path)
        assert (stem := path.stem.removesuffix("_kernel")) in STEMS, name(path)
        assert includes(folder / f"{stem}.asc") == {"launch.h", path.name}
    assert includes(folder / "tile.h") == {"kernel_operator.h"}
    assert includes(folder / "tiling.h") <= {"cmath", "cstdint"}
    assert len(kernels) == len(list(folder.glob("*.asc")))


def test_ascend_kernels_keep_to_what_only_cann_would_refuse():
    """The emulator's compiler is the host's: it knows no functions of the device, and no places where names stand."""
    folder = ROOT / "kernels" / "ascend"
    for path in [*folder.glob("*_kernel.h"), folder / "tile.h"]:
        text = re.sub(r"//.*", "", path.read_text())
        for found in re.finditer(r"([^;{}]*?)\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?\{", text):
            device = found[2] in ("if", "for", "while", "constexpr") or "__aicore__ inline" in found[1]
            assert device, f"{name(path)}: {found[2]} is not __aicore__ inline"
        for kernel in re.findall(r"\bclass (\w+) \{", text):
            assert f"__aicore__ inline {kernel}() {{}}" in text, (
                f"{name(path)}: {kernel} has no constructor on the device"
            )
        assert re.findall(r"reinterpret_cast<(?!__gm__)", text) == [], name(path)
        assert not re.search(r"\bTPipe \w+;", text), f"{name(path)}: with a TPipe in it, no scalar of a class is folded"
        assert "SyncAll" not in text, f"{name(path)}: kernels with SyncAll on two streams may wait for one another"
    for path in folder.glob("*.asc"):
        kernels = re.findall(r"__global__ __aicore__ void ([^(]+)\(", path.read_text())
        assert kernels, name(path)
        assert not [k for k in kernels if not re.fullmatch(r"\w+", k)], (
            f"{name(path)}: a kernel's name is pasted together"
        )


def test_the_ascend_backend_reaches_kernels_through_their_abi():
    """It needs no toolkit: what it calls is in a library of its own, which the emulator replaces."""
    for path in files(CSRC / "ascend", ".h", ".cpp"):
        bad = {i for i in includes(path) if not i.startswith(("ops/", "ascend/")) and i != "boost_ext_ascend.h"}
        assert not bad, f"{name(path)} includes {bad}"
        assert path.stem == "call" or {f"ops/{path.stem}.h", "ascend/call.h"} == includes(path), name(path)
    stems = {path.stem for path in (CSRC / "ascend").glob("*.cpp")} - {"call"}
    assert stems == {path.stem for path in (ROOT / "kernels" / "ascend").glob("*.asc")}


# Files of kernels/cuda that are host code, and what they need of the standard library and the linker.
HOST_CODE = {"device": {"mutex", "optional"}, "blas": {"atomic", "dlfcn.h", "mutex", "optional"}}


def test_cuda_kernels_know_their_contract_only():
    folder = ROOT / "kernels" / "cuda"
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        headers = {i for i in includes(path) if not i.startswith("ops/")}
        known = KERNEL_HEADERS | HOST_CODE.get(path.stem, set())
        bad = {i for i in headers if not i.endswith(".cuh") and i not in known and not i.startswith("cuda_")}
        assert not bad, f"{name(path)} includes {bad}"
        if path.suffix == ".cu":
            assert path.stem in {*STEMS, *HOST_CODE}, name(path)
            assert {f"ops/{path.stem}.h", f"{path.stem}.cuh"} & includes(path), name(path)


@pytest.mark.parametrize(("device", "host_part"), [("cuda", set()), ("ascend", {"boost_ext_ascend.h"})])
def test_an_emulator_knows_its_vendor_only(device, host_part):
    """It stands in for the vendor's headers, so it knows neither the ops nor the kernels that run on it."""
    folder = TESTS / "emulators" / device
    own = {path.name for path in folder.glob("*.h")}
    for path in sorted([*folder.glob("*.h"), *folder.glob("*.cpp")]):
        others = includes(path) - own - host_part
        bad = {i for i in others if "/" in i and not i.startswith(("sys/", "sanitizer/"))}
        bad |= {i for i in others if i.endswith((".cuh", ".cu")) or (ROOT / "kernels" / device / i).exists()}
        assert not bad, f"{name(path)} includes {bad}"


# What a vendor's toolkit has under the same name, and the launchers of kernels/ascend.
VENDOR_HEADERS = {"cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "kernel_operator.h", "launch.h"}


def test_the_product_holds_nothing_for_tests():
    """Emulators, tests and what they need live under tests, and the product's sources reach none of it."""
    of_tests = {p.name for p in files(TESTS, ".h")} - VENDOR_HEADERS
    for folder in (CSRC, ROOT / "kernels", PACKAGE):
        for path in files(folder, *SOURCES, ".txt", ".cmake"):
            words = re.split(r"[/_.]", path.relative_to(folder).as_posix())
            assert not {"test", "tests", "emulator", "emulators", "emulated"} & set(words), name(path)
            if path.suffix == ".py":
                bad = {m for m in imports(path) if m.partition(".")[0] in ("tests", "pytest", "hypothesis")}
            elif path.suffix in (".txt", ".cmake"):
                bad = set(re.findall(r"\w*(?:EMULAT|emulat|tests/)\w*", path.read_text()))
            else:
                bad = {i for i in includes(path) if i in of_tests or i.startswith(("emulators/", "native/", "tests/"))}
            assert not bad, f"{name(path)} needs {bad}"


PUBLIC = {"amp", "boost", "callbacks", "checkpoint", "distributed", "model", "nn", "optim"}
"""The public names of what is in ms. They import MindSpore, as ms and the demo do."""
COMMANDS = {"bench", "cli"}
"""They import MindSpore in the function that runs it."""


def part(path: Path, package: Path = PACKAGE) -> str:
    """The folder or module of the package that a file is in."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def test_the_core_does_not_import_mindspore():
    parts = {part(path) for path in files(PACKAGE, ".py")}
    with_mindspore = PUBLIC | {"ms", "demo"}
    assert parts >= COMMANDS | with_mindspore
    core = [p for p in files(PACKAGE, ".py") if part(p) not in with_mindspore and p != PACKAGE / "__init__.py"]
    forbidden = {"mindspore", *(f"boost_ext.{name}" for name in with_mindspore)}
    for path in [*core, TESTS / "oracle.py"]:
        lazily = path in core and part(path) in COMMANDS
        bad = {m for m in imports(path, in_functions=not lazily) if any(within(m, f) for f in forbidden)}
        assert not bad, f"{name(path)} imports {bad}"


def test_what_the_lists_here_name_exists():
    listed = [PACKAGE / path for path in WRITES_ITSELF]
    listed += [PACKAGE / "ops" / f"{module}.py" for module in OF_NUMPY]
    listed += [CSRC / "ops" / f"{stem}.h" for stem in FOUNDATIONS | WITHOUT_KERNEL | CPU_ONLY]
    listed += [ROOT / "kernels" / "cuda" / f"{stem}.cu" for stem in HOST_CODE]
    assert not [name(path) for path in listed if not path.exists()]
    assert set(MS_PACKAGES) == {part(path, PACKAGE / "ms") for path in files(PACKAGE / "ms", ".py")} - {"__init__"}


def test_the_oracle_imports_numpy_only():
    allowed = {"__future__", "collections", "math", "numpy", "typing"}
    assert {m.partition(".")[0] for m in imports(TESTS / "oracle.py")} <= allowed


def test_config_imports_nothing_of_ours():
    path = PACKAGE / "config.py"
    ours = {m for m in imports(path) if within(m, "boost_ext") and m != "boost_ext.arguments.nearest"}
    assert not ours - {"boost_ext.arguments"}  # which needs nothing either


WRITES_ITSELF = {
    "files.py": "the writer",
    "subspace/matrix_file.py": "through files.replacing",
    "ms/core/state_file.py": "through files.replacing",
    "report/log.py": "appends lines",
    "report/plots.py": "into memory",
    "demo/distributed.py": "what a child process prints",
}


def test_files_are_written_by_one_module():
    """Beside, synced, renamed: see files.py. What is not whole when its writer is killed is there."""
    for path in [*files(PACKAGE, ".py"), *files(ROOT / "benchmarks", ".py")]:
        if path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).as_posix() in WRITES_ITSELF:
            continue
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            modes = [a.value for a in [*call.args, *(k.value for k in call.keywords)] if isinstance(a, ast.Constant)]
            opens = called.rpartition(".")[2] == "open" and any(
                re.fullmatch(r"[rwxabt+]*[wxa+][bt+]*", str(m)) for m in modes
            )
            direct = re.search(r"\.(write_text|write_bytes|savefig)$|^os\.(replace|rename)$", called)
            assert (opens, direct) == (False, None), f"{name(path)}:{call.lineno}: {called}"


def test_import_without_mindspore():
    blocked = "import sys; sys.modules['mindspore'] = None\n"
    script = "import boost_ext, boost_ext.ops, boost_ext.pca, numpy\n"
    script += "assert boost_ext.ops.global_norm(numpy.float32([[3, 4]])) == 5"
    command = [sys.executable, "-c", blocked + script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_the_ops_need_numpy_alone():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['mindspore', 'pydantic', 'rich', 'typer']))\n"
    script = "import boost_ext, boost_ext.ops, boost_ext.cuda, boost_ext.convolutions"
    result = subprocess.run([sys.executable, "-c", blocked + script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_only_native_knows_the_library():
    """Graph-mode primitives are declared in one place, since each must declare what it writes."""
    for path in files(PACKAGE, ".py"):
        if path.parent == PACKAGE / "ms" / "native":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr == "Custom"), name(path)
            on_core = isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("_core")
            assert not (on_core and node.attr == "__file__"), name(path)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_prose(node.value):
                assert "side_effect" not in node.value, name(path)


def is_prose(text: str) -> bool:
    return " " in text


OF_NUMPY = ("arguments", "optimizer_state", "projection_codes")
"""The modules of ops that call no native code."""


def test_native_code_is_reached_through_native():
    for path in files(PACKAGE / "ms", ".py"):
        if path.parent.name != "native":
            taken = {m for m in imports(path) if within(m, "boost_ext._core") or within(m, "boost_ext.ops")}
            bad = {m for m in taken if not any(within(m, f"boost_ext.ops.{name}") for name in OF_NUMPY)}
            assert not bad, f"{name(path)} imports {bad}"


def test_only_the_public_namespaces_look_into_ms():
    for path in files(PACKAGE, ".py"):
        if part(path) not in {"ms", "cli"} | PUBLIC:
            bad = {m for m in imports(path) if within(m, "boost_ext.ms")}
            assert not bad, f"{name(path)} imports {bad}"


OF_TORCH = ("boost_ext.torch", "boost_ext.ops", "boost_ext._core")
MS_PACKAGES = (
    "native",
    "core",
    "ranks",
    "loss_scale",
    "optim",
    "surgery",
    "subspace",
    "step",
    "freeze",
    "training",
)
"""Each imports what stands to its left, also inside functions."""


def test_packages_of_ms_import_what_stands_to_their_left():
    for path in files(PACKAGE / "ms", ".py"):
        inside = path.relative_to(PACKAGE / "ms").parts
        if len(inside) == 1:
            assert inside[0] == "__init__.py", f"{name(path)} is in no package"
            continue
        allowed = MS_PACKAGES[: MS_PACKAGES.index(inside[0]) + 1]
        taken = {m.split(".")[2] for m in imports(path) if within(m, "boost_ext.ms") and m.count(".") >= 2}
        assert taken & set(MS_PACKAGES) <= set(allowed), f"{name(path)} imports {taken - set(allowed)}"


OF_THE_STEP = (
    "native",
    "core.compiled",
    "core.fast_calls",
    "core.for_cells",
    "core.optimizer_copy",
    "core.resume",
    "core.sparse_gradients",
    "core.state",
    "loss_scale.scale_sense",
    "optim.adoption",
    "ranks",
    *(f"step.{n}" for n in ("gradient_statistics", "observation", "options", "pipeline", "rank_sync", "settings")),
)
"""What a training cell is made of: slots, options and what an optimizer can do. No algorithm."""


@pytest.mark.parametrize("module", ["cells", "gradient_statistics", "observation", "pipeline", "rank_sync", "settings"])
def test_the_step_knows_no_algorithm(module):
    """Each brings its slots, by the tables of step/algorithms.py; types of arguments may be named."""
    path = PACKAGE / "ms" / "step" / f"{module}.py"
    taken = {m for m in imports(path, typed=False) if m.startswith(("boost_ext.ms.", "boost_ext.config"))}
    taken -= {f"boost_ext.ms.step.algorithms{table}" for table in ("", ".APPLY", ".PARTS")}
    bad = {m for m in taken if not any(within(m, f"boost_ext.ms.{known}") for known in OF_THE_STEP)}
    assert not bad, f"{name(path)} imports {bad}"


def test_the_door_for_pytorch_stands_on_the_ops_alone():
    for path in files(PACKAGE, ".py"):
        taken = {m for m in imports(path) if within(m, "boost_ext") and m != "boost_ext"}
        if path.is_relative_to(PACKAGE / "torch"):
            bad = {m for m in taken if not any(within(m, package) for package in OF_TORCH)}
        else:
            bad = {m for m in taken if within(m, "boost_ext.torch") and path != PACKAGE / "__init__.py"}
        assert not bad, f"{name(path)} imports {bad}"


def modules(package: Path) -> dict[str, Path]:
    paths = [p for p in files(package, ".py") if "__pycache__" not in p.parts]
    dotted = {".".join(p.relative_to(package.parent).with_suffix("").parts): p for p in paths}
    return {m.removesuffix(".__init__"): p for m, p in dotted.items()}


def in_a_circle(above: dict[str, set[str]]) -> list[str]:
    """The names that are left without those that need, or are needed by, no other one of them."""
    left = dict(above)
    while free := [m for m in left if not above[m] & set(left) or not any(m in above[other] for other in left)]:
        for m in free:
            del left[m]
    return sorted(left)


@pytest.mark.parametrize("package", [PACKAGE, ROOT / "benchmarks"], ids=lambda p: p.name)
def test_no_circle_of_modules(package):
    """But for a package itself, which its modules name to reach one another, and which imports them."""
    known = modules(package)
    above = {m: (imports(p) & set(known)) - {m, m.rpartition(".")[0], package.name} for m, p in known.items()}
    assert not in_a_circle(above)


def test_no_circle_of_packages():
    """Nor of the folders and modules of boost_ext, also inside functions."""
    above: dict[str, set[str]] = {}
    for path in files(PACKAGE, ".py"):
        if path != PACKAGE / "__init__.py":
            taken = {m.split(".")[1] for m in imports(path) if m.startswith("boost_ext.")}
            above.setdefault(part(path), set()).update(taken - {part(path)})
    assert not in_a_circle(above)


@pytest.mark.parametrize("package", [PACKAGE, ROOT / "benchmarks"], ids=lambda p: p.name)
def test_no_private_name_of_another_module(package):
    for path in modules(package).values():
        for node in ast.walk(ast.parse(path.read_text())):
            own = isinstance(node, ast.ImportFrom) and (node.level or within(node.module or "", package.name))
            if own and isinstance(node, ast.ImportFrom):
                bad = [a.name for a in node.names if re.match(r"_(?!_|core$)", a.name)]
                assert not bad, f"{name(path)} imports {bad} from {node.module}"


@pytest.mark.parametrize("stem", STEMS)
def test_an_op_is_a_word_that_leads_through_every_layer(stem):
    beside = "layers" if stem in LAYERS else stem
    expected = [CSRC / "ops" / f"{stem}.cpp", TESTS / "ops" / f"test_{beside}.py"]
    if stem not in CPU_ONLY:
        expected.append(ROOT / "kernels" / "cuda" / f"{stem}.cu")
    if stem not in WITHOUT_KERNEL:
        expected.append(CSRC / "cpu" / f"{stem}.cpp")
        if any((ROOT / "benchmarks").glob("*.py")):
            expected.append(ROOT / "benchmarks" / f"bench_{beside}.py")
    missing = [name(p) for p in expected if not p.exists()]
    assert not missing
    doors = {"python"} if stem in PYTHON_ONLY else {"mindspore"} if stem in CPU_ONLY else {"python", "mindspore"}
    for door in doors:
        paths = [*(CSRC / "doors").glob(f"{door}*.cpp"), CSRC / "doors" / "plain_ops.h"]
        texts = [path.read_text() for path in paths]
        assert any(f'"ops/{stem}.h"' in text for text in texts), door
    assert (CSRC / "ops" / f"{stem}.h").read_text().startswith("// "), "the comment is the specification"


def test_every_kernel_has_a_contract():
    kernels = {p.stem for p in (CSRC / "cpu").glob("*.cpp")}
    assert kernels == set(STEMS) - WITHOUT_KERNEL


def tracked() -> Iterator[Path]:
    """The project's own text, without what is generated beside it."""
    for folder in ("csrc", "kernels", "python", "tests", "benchmarks", "docs"):
        yield from files(ROOT / folder, *SOURCES, ".md", ".txt", ".toml", ".json", ".in")
    yield from (p for p in ROOT.iterdir() if p.suffix in {".md", ".txt", ".toml", ".json"} or p.name == "Makefile")


def test_messages_are_put_together_when_a_check_fails():
    """What a message says is streamed by require(); text and Python objects made for it would be made on each call."""
    made = re.compile(r"\b(text|to_string|string|str|cast<[\w:]+>)\(|\.attr\(")
    for path in files(CSRC, ".cpp", ".h"):
        source = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', path.read_text())
        for call in re.finditer(r"\brequire\((?!bool ok)[^;]*;", source):
            assert not made.search(call.group()), f"{path}: {call.group()}"


# Looked at, and found to have one reason to exist.
LONG = {"tests/oracle.py": "one equation behind the other; each op and each rule adds one"}


def test_files_are_looked_at_again_before_they_grow_long():
    long = {
        name(p): count for p in tracked() if p.suffix in SOURCES and (count := len(p.read_text().splitlines())) > 600
    }
    assert not set(long) - set(LONG), long
    assert all((ROOT / path).is_file() for path in LONG)


# Written so that they do not find themselves.
FORBIDDEN = re.compile(
    r"/(?:work|farm|root|home/\w+)/|/tmp/[l]ab|\b[C]EO\b|steering[ ]repo|\b(?:[T]ODO|[F]IXME|[X]XX)\b"
)


def test_no_machine_paths_and_no_loose_ends():
    found = [
        f"{name(p)}:{i}: {line.strip()}"
        for p in tracked()
        for i, line in enumerate(p.read_text().splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found


def object_files(isa: str) -> list[Path]:
    folder = Path(os.environ.get("BOOST_EXT_OBJECTS", ROOT / "build" / "dev"))
    return sorted(folder.rglob(f"boost_ext_{isa}.dir/**/*.o"))


BUILT = [isa for isa in ("avx2", "avx512") if object_files(isa)] if shutil.which("nm") else []


@pytest.mark.parametrize("isa", BUILT)
def test_no_function_is_shared_between_instruction_sets(isa):
    """The linker keeps one copy of a weak function; were that the AVX-512 one, older CPUs would crash on it."""
    for path in object_files(isa):
        command = ["nm", "-C", "--defined-only", path]
        listing = subprocess.run(command, capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            kind, symbol = re.match(r"[0-9a-f]* *(\w) (.*)", line).groups()
            if kind in "WwVui":
                own = f"boost_ext::cpu::{isa}::" in symbol or symbol.startswith("DW.ref.")
                assert own, f"{path.name} defines {symbol}"


def test_pytest_can_tell_the_test_files_apart() -> None:
    """It knows a file by its name below the first folder that is no package."""
    names: dict[str, list[Path]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        folder, name = path.parent, path.stem
        while (folder / "__init__.py").exists():
            folder, name = folder.parent, f"{folder.name}.{name}"
        names.setdefault(name, []).append(path.relative_to(ROOT))
    assert not {name: paths for name, paths in names.items() if len(paths) > 1}


def test_every_mutant_finds_its_line() -> None:
    tomllib = pytest.importorskip("tomllib")
    for mutant in tomllib.loads((ROOT / "docs/dev/mutants.toml").read_text(encoding="utf-8"))["mutant"]:
        assert (ROOT / mutant["file"]).read_text(encoding="utf-8").count(mutant["find"]) == 1, mutant["id"]
