"""The command ``boost-ext``: info, bench, run, train, pca, doctor, report.

MindSpore, scikit-learn and matplotlib are imported inside the commands that need them: this module must import fast and
without them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import tokenize
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

import boost_ext
from boost_ext import environment
from boost_ext.machine import versions
from boost_ext.requirements import imported
from boost_ext.terminal import progress

__all__ = ["app", "main"]

app = typer.Typer(
    help="boost_ext: native kernels and training cells that make MindSpore training faster.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # In boxes the names of options are cut off on a narrow terminal.
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= 80 else None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"boost-ext {boost_ext.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before the command."""


class Mode(str, Enum):
    """MindSpore's execution modes."""

    pynative = "pynative"
    graph = "graph"


class Precision(str, Enum):
    """How a PCA matrix is stored."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


class RunName(str, Enum):
    """The runs of ``boost-ext train``; boost_ext.demo.runs describes them."""

    plain = "plain"
    boost = "boost"
    amp = "amp"
    dim_reduce = "dim_reduce"


def main() -> None:
    """The entry point of the command."""
    app()


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Errors about what the user asked for become a line and exit code 1; anything else keeps its traceback."""
    try:
        yield
    except (ValueError, ImportError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


def _need(extra: str, *modules: str) -> None:
    """Import the modules, or say which extra brings them."""
    # MindSpore reads it when it is imported; its warnings would tear the progress bars apart.
    os.environ.setdefault("GLOG_v", "3")
    for name in modules:
        imported(extra, name)


@app.command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what was built, what this CPU has, and what is used."""
    from boost_ext.cli import info as about

    known = about.facts()
    if as_json:
        typer.echo(json.dumps(known, indent=1))
    else:
        Console().print(about.table(known))


@app.command()
def bench(
    only: Annotated[
        list[str] | None, typer.Option(help="A case, such as global_norm (repeatable). All, if left out.")
    ] = None,
    elements: Annotated[int, typer.Option(min=1 << 16, help="Of the gradients.")] = 10_000_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="For each peer of a case.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the ops beside NumPy, and beside PyTorch and MindSpore where they are installed.

    Each answer is checked first. Ours and a peer are then called in turns, on the threads of OMP_NUM_THREADS. It takes
    a minute or two, and 1.5 GB of memory; less with fewer --elements. MindSpore runs an op in the thread that calls it,
    where there are no more than two cores, which is faster.
    """
    # MindSpore reads it when it is imported; its warnings would tear the progress bar apart.
    os.environ.setdefault("GLOG_v", "3")
    environment.make_fast(environment.DISPATCH)  # nothing convolves here
    from boost_ext.cli import bench as measuring

    names = measuring.names()
    with _errors():
        for name in only or []:
            if name not in names:
                raise ValueError(f"bench: --only must be one of {', '.join(names)}, got {name}")
    with progress(TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn()) as bars:
        bar = bars.add_task("", total=1 + len(only or names))

        def on_case(name: str) -> None:
            bars.update(bar, description=name, advance=0 if bars.tasks[bar].description == "" else 1)

        result = measuring.measure(only or names, elements // 32 * 32, seconds, on_case)
        bars.advance(bar)
    if as_json:
        typer.echo(json.dumps(measuring.document(result), indent=1))
        return
    console = Console()
    console.print(measuring.table(result["rows"]))
    for line in measuring.notes(result):
        console.print(line, highlight=False, markup=False)


class Level(str, Enum):
    """Boost levels."""

    O0 = "O0"
    O1 = "O1"
    O2 = "O2"


class ProductPrecision(str, Enum):
    """Of products, as set_float32_matmul_precision() takes it."""

    highest = "highest"
    medium = "medium"


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="A Python file that trains with MindSpore.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script: all that follows it.")] = None,
    level: Annotated[Level, typer.Option(help="Boost level of the training; O0 keeps the numbers.")] = Level.O0,
    precision: Annotated[
        ProductPrecision,
        typer.Option(
            help="Of float32 products and convolutions: medium rounds their factors to bfloat16, where a CPU "
            "multiplies that."
        ),
    ] = ProductPrecision.highest,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")] = False,
    eager: Annotated[
        bool, typer.Option("--eager", help="In PYNATIVE_MODE: do not compile the step, as MindSpore does not.")
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="Print the lines that one would change for the same, as a diff; run nothing.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Run the script with boost_ext and plainly, one after the other, and compare."),
    ] = False,
    variables_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a MindSpore script as it is, faster.

    Its Model, amp.build_train_network and the training cells of mindspore.nn train with boost_ext; arguments, outputs
    and numbers stay. Where MindSpore needs MS_DEV_HOST_BLOCKING_RUN (one or two cores) or ONEDNN_MAX_CPU_ISA (AVX-512,
    with convolutions larger than 1 x 1) to be fast, they are set, unless they are. The plan and what was measured go to
    stderr. Exit code: the script's.
    """
    from boost_ext.cli import script_run
    from boost_ext.scripts import Record

    with _errors():
        spec = script_run.module_spec(script) if module else None
        file = Path(script if spec is None else spec.origin or "")
        if not file.is_file():
            raise ValueError(f"run: script must be an existing Python file, got {script}")
        if dry and (compare or eager):
            raise ValueError(f"run: --dry and {'--compare' if compare else '--eager'} must not be given together")
        if dry:
            _print_edits(file, level.value, precision.value)
            return
    if compare:
        options = ["--level", level.value, "--precision", precision.value, *(["--eager"] if eager else [])]
        children = script_run.compare([*(["-m"] if module else []), script], arguments or [], options)
        script_run.print_comparison(children, Console(stderr=True))
        raise typer.Exit(next((child.code for child in children.values() if child.code), 0))
    variables = environment.make_fast(environment.DISPATCH)  # oneDNN's when the script makes a convolution
    record = Record(script, variables, variables_file=variables_file)
    script_run.set_precision(precision.value, record)
    script_run.after_mindspore(partial(_swap_in, record, level.value, eager))
    raise typer.Exit(script_run.execute(file, arguments or [], record, spec))


def _swap_in(record: Any, level: str, eager: bool) -> None:
    from boost_ext.ms.training.swaps import swap_in

    swap_in(record, level, eager=eager)


def _print_edits(script: Path, level: str, precision: str) -> None:
    from boost_ext.cli.script_edits import diff, edited

    with script.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    with script.open(encoding=encoding, newline="") as text:  # as patch will find it
        source = text.read()
    changed, notes = edited(source, level, environment.missing(), precision)
    typer.echo(diff(source, changed, str(script)), nl=False)
    for note in notes:
        Console(stderr=True).print(note, soft_wrap=True, highlight=False, markup=False)


@app.command()
def train(
    runs: Annotated[
        list[RunName] | None,
        typer.Option(help="What to run; repeat the option for several. All, if left out."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="12, or 3 with --quick.")] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=1438, help="Of all runs but dim_reduce, which takes large ones.")
    ] = 32,
    output: Annotated[
        Path | None,
        typer.Option(help="A new or empty directory; runs/train/<date and time> if left out."),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="MindSpore's execution mode.")] = Mode.pynative,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and the batches.")] = 0,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="Test accuracy to time; 0.97, or 0.9 with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short run that shows every part.")] = False,
    ranks: Annotated[int, typer.Option(min=1, help="More than one: data parallel beside one process instead.")] = 1,
) -> None:
    """Train a small convolutional network on handwritten digits, plainly and with boost_ext, and compare.

    The same network, initial weights, batches and number of epochs each time: plain MindSpore (plain), the step cell
    (boost), mixed precision with dynamic loss scaling (amp), and DimReduce in the subspace that the checkpoints of a
    short plain run span (dim_reduce). Ends with a table, plots as PNG, and all numbers as JSON. Where MindSpore needs
    ONEDNN_MAX_CPU_ISA or MS_DEV_HOST_BLOCKING_RUN to be fast, all runs get them, unless they are set.
    """
    with _errors():
        if ranks > 1 and (runs or target is not None):
            raise ValueError("train: --runs and --target must be left out with --ranks, which trains a pair of its own")
        folder = output or Path("runs", "train", time.strftime("%Y%m%d-%H%M%S"))
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"train: --output must be a new or empty directory, got {folder}")
        variables = environment.make_fast()  # before MindSpore is imported; one process, so for all runs alike
        _need("train", "mindspore", "sklearn", "matplotlib")
        folder.mkdir(parents=True, exist_ok=True)
    for name, value in variables.items():
        Console().print(
            f"Set {name}={value} for all runs, the plain one too: MindSpore is slow here without it.", highlight=False
        )
    from boost_ext.demo.settings import Settings

    given: dict[str, Any] = {"epochs": epochs, "target": target}
    settings = (Settings.quick if quick else Settings)(
        batch_size=batch_size,
        seed=seed,
        mode=mode.value,
        **{key: value for key, value in given.items() if value is not None},
    )
    if ranks > 1:
        with _errors():
            from boost_ext.demo import distributed

            Console().print(distributed.table(distributed.run(ranks, settings, folder), settings))
        return
    _train([run.value for run in runs or list(RunName)], settings, folder)


def _train(names: list[str], settings: Any, folder: Path) -> None:
    from boost_ext.demo import digits, report, runs

    data = digits.load()
    with progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    ) as bars:
        start_up = bars.add_task("start-up", total=1, state="")
        runs.warm_up(data)
        bars.update(start_up, completed=1)
        tasks = {name: bars.add_task(name, total=None, state="") for name in names}

        def on_step(name: str, done: int, total: int, loss: float, accuracy: float | None) -> None:
            state = f"loss {loss:.3f}"
            if accuracy is not None:
                state += f", test accuracy {accuracy:.2%}"
            bars.update(tasks[name], completed=done, total=total, state=state)

        results = runs.train(list(tasks), data, settings, folder, on_step)

    console = Console()
    console.print(report.table(results, settings))
    for line in report.explanations(results, settings):
        console.print(line, highlight=False)
    installed = {"boost_ext": boost_ext.__version__, **versions("numpy", "mindspore", "scikit-learn")}
    report.write_json(folder / "results.json", results, settings, installed)
    written = [*report.write_plots(folder, results, settings), folder / "results.json"]
    console.print("Written:")
    for path in written:
        console.print(f"  {path}", soft_wrap=True, highlight=False)


@app.command()
def pca(
    directory: Annotated[Path, typer.Argument(help="With .ckpt, .npz or .safetensors checkpoints.")],
    output: Annotated[Path, typer.Option(help="The file of the matrix, such as pca.safetensors.")],
    n_components: Annotated[int, typer.Option(min=1, help="Rows of the matrix.")] = 32,
    dtype: Annotated[Precision, typer.Option(help="How it is stored.")] = Precision.float32,
    reference: Annotated[
        Path | None,
        typer.Option(help="The checkpoint whose entries are the columns, in its order; the first one if left out."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of entries that are no weights (repeatable), instead of the usual ones."),
    ] = None,
) -> None:
    """Build the PCA matrix of DimReduce from a directory of checkpoints.

    The columns must be the optimizer's parameters in its order. They are the floating point entries of the reference
    checkpoint, without batch norm statistics and optimizer state (see --exclude).
    """
    with _errors():
        from boost_ext.pca import find_checkpoints, pca_matrix
        from boost_ext.subspace.reference import NO_WEIGHTS, reference_parameters

        checkpoints = find_checkpoints(directory)
        first = reference or checkpoints[0]
        if any(path.suffix == ".ckpt" for path in (first, *checkpoints)):
            _need("mindspore", "mindspore")
        shapes, left_out = reference_parameters(first, exclude=exclude or NO_WEIGHTS, reader=_read_ckpt)
        console = Console()
        if left_out:
            console.print(f"Left out as no weights: {', '.join(left_out)}", highlight=False)
        matrix = pca_matrix(checkpoints, shapes, n_components, path=output, dtype=dtype.value, reader=_read_ckpt)
        rows, columns = matrix.shape
        console.print(
            f"{output}: {rows} components of {columns} elements ({len(shapes)} parameters), {matrix.dtype}, "
            f"from {len(checkpoints)} checkpoints in {directory}",
            soft_wrap=True,
            highlight=False,
        )


def _read_ckpt(path: Path) -> Mapping[str, Any]:
    from boost_ext.ms.core.checkpoint import (
        read_checkpoint,  # only when there is such a file: MindSpore is slow to import
    )

    return read_checkpoint(path)


@app.command(context_settings={"ignore_unknown_options": True})
def doctor(
    target: Annotated[Path, typer.Argument(help="A boost configuration (.json), or a training script (.py).")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Of the script; those that doctor has too after --.")
    ] = None,
    level: Annotated[str | None, typer.Option(help="Boost level of a configuration; O0 if left out.")] = None,
    mode: Annotated[str | None, typer.Option(help="boost.mode, instead of the configuration's.")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="Processes that train; 1 if left out.")] = None,
) -> None:
    """Say which boost algorithms a configuration or a script really uses, and why the others not.

    A configuration is checked, and its plan printed. A script is stopped before its first training step, and the plan
    of each training cell printed; without boost_ext in it, what O1 would do and the lines to change. Both say when
    MindSpore is slow here for want of a variable. Exit code 1: an error, or a script that trains without boost_ext.
    """
    with _errors():
        from boost_ext.cli.doctor import plan_of_file, print_advice, print_report

        if not target.is_file():
            raise ValueError(f"doctor: target must be an existing .json or .py file, got {target}")
        if target.suffix == ".py":
            if (level, mode, ranks) != (None, None, None):
                raise ValueError("doctor: --level, --mode and --ranks are for a configuration; a script has its own")
            _need("mindspore", "mindspore")
            from boost_ext.ms.training.doctor import run_script

            report = run_script(target, arguments or [])
            print_report(report, Console())
            print_advice(Console())  # after the script, which may have set the variable itself
            if not report.healthy:
                raise typer.Exit(1)
        elif arguments:
            raise ValueError(f"doctor: a configuration takes no arguments, got {arguments}")
        else:
            try:
                decided = plan_of_file(target, level or "O0", mode, rank_size=ranks or 1)
            except TypeError as error:
                raise ValueError(str(error)) from error
            Console().print(decided)
            print_advice(Console())


@app.command()
def report(
    logs: Annotated[list[Path], typer.Argument(help="Run logs (.jsonl) that BoostMonitor wrote; several to compare.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page, .html; beside the first log if left out.")
    ] = None,
) -> None:
    """Draw training runs: one HTML page with curves, overflowing tensors, times, plan and versions.

    The page needs no other file and no network.
    """
    from boost_ext import report as run_report

    with _errors(), progress(*Progress.get_default_columns(), transient=True) as bars:
        _need("report", "jinja2", "matplotlib")
        runs = []
        for path in logs:
            bar = bars.add_task(f"reading {escape(path.name)}")
            runs.append(run_report.read(path, partial(_advance, bars, bar)))
        page = run_report.write(runs, output or logs[0].with_suffix(".html"))
    Console().print(f"Written: {page}", soft_wrap=True, highlight=False, markup=False)


def _advance(bars: Progress, bar: TaskID, done: int, total: int) -> None:
    bars.update(bar, completed=done, total=total)
