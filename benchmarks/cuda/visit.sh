#!/usr/bin/env bash
# All that needs a GPU, in one call and in a given time, for a machine that is at hand for a few minutes:
#
#   benchmarks/cuda/visit.sh [minutes] [folder] [part...]
#
# The parts, all of them or those named: machine (what is there), build (for this card), tests_gpu, tests_cuda and
# tests_ops, benchmarks, metrics (Nsight Compute's counters), sanitizers. Each has its share of the time, and what the
# ones before have left of theirs; one that fails, hangs or loses the card does not stop the next, but a failed build
# does. The folder (default: runs/cuda) gets, while it goes on, summary.txt, logs.txt, bench.json and, in the end,
# ratios.png; a later call into the same folder adds to them. Fails if a part did.
#
# All parts need more than ten minutes. Two calls, each within ten on a machine with 16 cores:
#
#   benchmarks/cuda/visit.sh 9 runs/cuda machine build tests_gpu benchmarks
#   benchmarks/cuda/visit.sh 9 runs/cuda tests_ops tests_cuda metrics sanitizers
#
#   ONLY="optimizer_step global_norm" benchmarks/cuda/visit.sh 2 runs/cuda benchmarks    # these tables alone
#   python -m benchmarks.cuda --results runs/cuda/bench.json --page docs/benchmarks.md   # at home
#
# Without the part build the package of the last one is used, build/cuda-visit/package, with the Python files of now, if
# that build succeeded; it may have been built elsewhere, by the same version of Python:
# ARCHITECTURES=90 visit.sh 20 runs/cuda build.
#
# Needs nvcc, CMake >= 3.24, ninja; Python with numpy, pytest, hypothesis, ml_dtypes, pybind11 and PyTorch. Nothing is
# downloaded. PYTHON, ARCHITECTURES (default: those of the card), ONLY and BUILD (a folder) may be set.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

minutes=${1:-9}
folder=${2:-runs/cuda}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-python3}
build=${BUILD:-build/cuda-visit}
work=$(mktemp -d)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for file in summary.txt logs.txt bench.json; do # of an earlier call
  if [ -e "$folder/$file" ]; then cp "$folder/$file" "$work/earlier.$file"; fi
done
failures=0
child=

# Parts and their shares of the time.
declare -A share=([machine]=2 [build]=6 [tests_gpu]=3 [tests_cuda]=2 [tests_ops]=4 [benchmarks]=6 [metrics]=2
  [sanitizers]=3)
parts=("$@")
if [ $# = 0 ]; then parts=(machine build tests_gpu tests_cuda tests_ops benchmarks metrics sanitizers); fi
total=0
for name in "${parts[@]}"; do
  if [ -z "${share[$name]:-}" ]; then echo "visit.sh: a part must be one of ${!share[*]}, got $name" >&2 && exit 2; fi
  total=$((total + share[$name]))
done
passed=0
end=0 # of the present part, in seconds since the start

say() { printf '%s\n' "$*" | tee -a "$work/summary.txt"; }

# part NAME COMMAND...
part() {
  local name=$1 begun=$SECONDS limit status
  shift
  passed=$((passed + share[$name]))
  end=$(((minutes * 60 - 15) * passed / total))
  limit=$((end - SECONDS))
  if [ "$limit" -lt 5 ]; then
    say "$name: not begun, its time is over"
    failures=$((failures + 1))
    return 1
  fi
  left=$limit timeout --kill-after=10 "$limit" "$@" >"$work/$name.log" 2>&1 &
  child=$!
  wait "$child" # in the background, so that a signal is not kept waiting
  status=$?
  child=
  case $status in
    0) say "$name: passed, $((SECONDS - begun)) s" ;;
    124 | 137) say "$name: stopped after $((SECONDS - begun)) s" ;;
    *) say "$name: FAILED with $status, $((SECONDS - begun)) s" ;;
  esac
  tail -n 3 "$work/$name.log" | cut -c1-300 | sed 's/^/    /' | tee -a "$work/summary.txt"
  [ "$status" = 0 ] || failures=$((failures + 1))
  return "$status"
}

# A few files, none of them large.
collect() {
  local log new=$work/new
  mkdir -p "$new"
  cat "$work/earlier.summary.txt" "$work/summary.txt" >"$new/summary.txt" 2>/dev/null
  for log in "$work/earlier.logs.txt" "$work"/*.log; do
    [ -e "$log" ] || continue
    if [ "$log" = "$work/earlier.logs.txt" ]; then tail -c 4000000 "$log" && continue; fi
    printf '\n== %s\n' "$(basename "$log" .log)"
    if [ "$(wc -c <"$log")" -gt 1500000 ]; then head -c 300000 "$log" && printf '\n(...)\n'; fi
    tail -c 1200000 "$log"
  done >"$new/logs.txt"
  if [ -e "$work/bench/ratios.png" ]; then cp "$work/bench/ratios.png" "$new/"; fi
  "$python" - "$work/bench" "$work/earlier.bench.json" >"$new/bench.json" <<'EOF'
import json, pathlib, sys
earlier = pathlib.Path(sys.argv[2])
found = json.loads(earlier.read_text()) if earlier.exists() else {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    try:
        found[path.stem] = json.loads(path.read_text())
    except ValueError:  # half written
        pass
print(json.dumps(found, indent=1))
EOF
  mv "$new"/* "$folder/"
}

# Also while it goes on: whoever ends this may not ask first.
(while sleep 10 && kill -0 $$; do collect; done) >/dev/null 2>&1 &
collector=$!
finish() {
  kill "$collector" 2>/dev/null
  wait "$collector" 2>/dev/null
  collect
  rm -rf "$work"
}
trap finish EXIT
trap '[ -z "$child" ] || kill "$child"; exit 143' TERM INT

machine() {
  local status=0
  nvidia-smi || status=1
  nvcc --version
  cmake --version
  c++ --version
  "$python" - <<'EOF' || status=1
import os, pathlib, platform, shutil, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version

def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

print(sys.executable, platform.python_version(), platform.platform(), os.cpu_count(), "cores")
names = "numpy torch pytest pytest-xdist pytest-timeout hypothesis ml_dtypes pybind11 cupy-cuda13x jax pydantic rich typer"
print(*(f"{name} {found(name)}" for name in names.split()), sep="\n")
print("Python.h", (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())
print(*(f"{name} {shutil.which(name)}" for name in ("nvcc", "ninja", "compute-sanitizer", "ncu", "cuobjdump")), sep="\n")
print("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH"))
import torch
print(torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_properties(0))
print("functions of DLPack", hasattr(torch.Tensor, "__dlpack_c_exchange_api__"))
EOF
  ldconfig -p | grep -E 'libcuda|libcudart'
  return "$status"
}

# An older package is never used in the place of one that could not be built.
build() {
  local pybind11 architectures=${ARCHITECTURES:-}
  rm -rf "$build/package"
  if [ -z "$architectures" ]; then
    architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u | tr -d . | paste -sd ';')
  fi
  pybind11=$("$python" -m pybind11 --cmakedir) || return 1
  (for name in torch cupy jax; do "$python" -c "import $name"; done) >/dev/null 2>&1 & # reads gigabytes, the first time
  # Another compiler may warn of other things.
  cmake -S . -B "$build" -G Ninja -Dpybind11_DIR="$pybind11" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DBOOST_EXT_WITH_CUDA=ON -DBOOST_EXT_BASELINE_ONLY=ON -DCMAKE_CUDA_ARCHITECTURES="${architectures:-native}" \
    --compile-no-warning-as-error &&
    cmake --build "$build" --parallel "$(nproc)" &&
    mkdir -p "$build/package/boost_ext" && cp "$build"/_core*.so "$build/package/boost_ext/"
}

# The Python files of now.
package() {
  find python/boost_ext -name '*.py' -o -name '*.pyi' -o -name py.typed | while read -r file; do
    mkdir -p "$build/package/$(dirname "${file#python/}")" && cp "$file" "$build/package/${file#python/}"
  done
  "$python" -c 'import boost_ext, boost_ext.cuda; print(info := boost_ext.build_info()); assert info["cuda"]'
}

# pytest in processes of their own: one that hangs, crashes or has lost the card is replaced.
pytest_with() {
  local workers=$1 options=(-q --tb=short -p no:cacheprovider --color=no)
  shift
  if "$python" -c 'import xdist' 2>/dev/null; then options+=(-n "$workers" --max-worker-restart 100); fi
  if "$python" -c 'import pytest_timeout' 2>/dev/null; then # and in the end it is said what has failed
    options+=(--timeout 90 --timeout-method thread --session-timeout $((left > 50 ? left - 25 : left / 2)))
  fi
  "$python" -m pytest "${options[@]}" "$@"
}
# The order of streams by themselves: nobody else may use the card.
tests_gpu() { pytest_with 1 tests/cuda/test_gpu_*.py; }
tests_cuda() { pytest_with 4 tests/cuda --ignore-glob='*test_gpu_*' -k 'not sanitizer'; }
tests_ops() { pytest_with "$(($(nproc) < 8 ? $(nproc) : 8))" tests/ops --device cuda; }

benchmarks() {
  local name status options=(--out "$work/bench")
  for name in ${ONLY:-}; do options+=(--only "$name"); done
  "$python" -m benchmarks.cuda "${options[@]}" --budget $((left - 20)) && return
  status=$?
  if [ "$((left - SECONDS))" -lt 40 ] || [ "$status" = 2 ]; then return "$status"; fi
  echo "Once more, for what it has not begun"
  "$python" -m benchmarks.cuda "${options[@]}" --budget $((left - SECONDS - 20)) --resume
  return "$status"
}

# What Nsight Compute counts of each kernel of some tables, in small sizes: sectors a request, and how busy memory is.
metrics() {
  local ncu status names=${ONLY:-unscale_and_check global_norm accumulate adasum_pair optimizer_step} options=() log
  ncu=$(command -v ncu || command -v /usr/local/cuda/bin/ncu)
  if [ -z "$ncu" ]; then echo "ncu is not installed: no metrics" && return 0; fi
  for name in $names; do options+=(--only "$name"); done
  log=$(timeout $((left - 5)) "$ncu" --csv --launch-count 400 --kernel-name-base demangled --kernel-name regex:boost_ext \
    --metrics "$(
    paste -sd , <<'EOF'
l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum
l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum
l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum
l1tex__t_requests_pipe_lsu_mem_global_op_st.sum
dram__bytes.sum
dram__throughput.avg.pct_of_peak_sustained_elapsed
launch__registers_per_thread
sm__warps_active.avg.pct_of_peak_sustained_active
gpu__time_duration.sum
EOF
  )" "$python" -m benchmarks.cuda --quick --out "$work/metrics" "${options[@]}" 2>&1)
  status=$?
  printf '%s\n' "$log"
  if grep -q ERR_NVGPUCTRPERM <<<"$log"; then
    echo "ncu may not read the counters of this card (ERR_NVGPUCTRPERM): no metrics" && return 0
  fi
  return "$status"
}

# What they find in every op, at the same time.
sanitizers() {
  local tool sanitizer status=0 running=()
  sanitizer=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
  if [ -z "$sanitizer" ]; then echo "compute-sanitizer is not installed" && return 1; fi
  for tool in memcheck racecheck; do
    PYTHONPATH=$PYTHONPATH:tests "$sanitizer" --tool "$tool" --error-exitcode 9 "$python" tests/cuda/every_op.py --short --say \
      >"$work/$tool.log" 2>&1 &
    running+=($!)
  done
  for tool in memcheck racecheck; do
    wait "${running[0]}" || status=1
    running=("${running[@]:1}")
    grep -E 'SUMMARY|^ran|not supported|Error' "$work/$tool.log" | cut -c1-200 | tail -n 2
  done
  return "$status"
}

if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then PATH=$PATH:/usr/local/cuda/bin; fi
# The proxy of the tests calls CUDA's runtime by itself. Its folder alone: not another cuBLAS than PyTorch's.
if ! ldconfig -p 2>/dev/null | grep -q libcudart && ! [ -e /usr/local/cuda/lib64/libcudart.so ]; then
  mkdir -p "$work/cudart"
  for toolkit in "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")" \
    "$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)"; do
    [ -d "$toolkit" ] && find -L "$toolkit" -maxdepth 4 -name 'libcudart.so*' -exec ln -sf {} "$work/cudart/" \;
  done
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$work/cudart"
fi

# Functions for `timeout`, which runs programs only.
export -f machine build package pytest_with tests_gpu tests_cuda tests_ops benchmarks metrics sanitizers
export python work build
export PYTHONPATH="$(realpath -m "$build")/package" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false # JAX would take three quarters of the card

say "$(date -u +%Y-%m-%dT%H:%M) ${parts[*]}"
usable=
for name in "${parts[@]}"; do
  if [ "$name" != machine ] && [ "$name" != build ] && [ -z "$usable" ]; then
    if ! package >"$work/package.log" 2>&1; then
      say "package: FAILED" && tail -n 3 "$work/package.log" | tee -a "$work/summary.txt"
      failures=$((failures + 1))
      break
    fi
    usable=yes
  fi
  if ! part "$name" bash -c "$name" && [ "$name" = build ]; then
    say "nothing else runs: there is no package of this source"
    break
  fi
done
say "$failures parts failed, $SECONDS s"
[ "$failures" = 0 ]
