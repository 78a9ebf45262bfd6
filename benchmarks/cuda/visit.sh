#!/usr/bin/env bash
# All that needs a GPU, in one call and in a given time, for a machine that is at hand for a few minutes:
#
#   benchmarks/cuda/visit.sh [minutes] [folder]
#
# builds for the card that is there, runs tests/cuda and tests/ops on it, compute-sanitizer, and the benchmarks. A third
# of the time each for the build, the tests and the benchmarks; a part that fails or takes too long does not stop the
# next. It leaves in the folder (default: runs/cuda) summary.txt, logs.txt, bench.json, tables.md, for docs/benchmarks.md,
# and ratios.png, and fails if a part did.
#
# Needs nvcc, CMake >= 3.24, ninja; Python with numpy, pytest, hypothesis, ml_dtypes, pybind11 and PyTorch. Nothing is
# downloaded. PYTHON and ARCHITECTURES (default: native) may be set.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

minutes=${1:-9}
folder=${2:-runs/cuda}
python=${PYTHON:-python3}
architectures=${ARCHITECTURES:-native}
seconds=$((minutes * 60))
build=build/cuda-visit
work=$(mktemp -d)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
failures=0
child=

say() { printf '%s\n' "$*" | tee -a "$work/summary.txt"; }

# part NAME END COMMAND...: until END, in seconds since the start.
part() {
  local name=$1 limit=$(($2 - SECONDS)) begun=$SECONDS status
  shift 2
  if [ "$limit" -lt 5 ]; then
    say "$name: not begun, its time is over"
    failures=$((failures + 1))
    return 1
  fi
  timeout --kill-after=10 "$limit" "$@" >"$work/$name.log" 2>&1 &
  child=$!
  wait "$child"  # in the background, so that a signal is not kept waiting
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

# A few files, none of them large, also when the time of the caller is over.
collect() {
  local log
  for log in "$work"/*.log; do
    [ -e "$log" ] || continue
    printf '\n== %s\n' "$(basename "$log" .log)"
    if [ "$(wc -c <"$log")" -gt 2000000 ]; then echo "(its last 2 MB)"; fi
    tail -c 2000000 "$log"
  done >"$folder/logs.txt"
  for file in summary.txt bench/tables.md bench/ratios.png; do
    if [ -e "$work/$file" ]; then cp "$work/$file" "$folder/"; fi
  done
  "$python" - "$work/bench" >"$folder/bench.json" <<'EOF'
import json, pathlib, sys
print(json.dumps({p.stem: json.loads(p.read_text()) for p in sorted(pathlib.Path(sys.argv[1]).glob("*.json"))}, indent=1))
EOF
  rm -rf "$work"
}
trap collect EXIT
trap '[ -z "$child" ] || kill "$child"; exit 143' TERM INT

about() {
  nvidia-smi || return 1
  nvcc --version
  cmake --version
  "$python" --version
  "$python" - <<'EOF'
from importlib.metadata import PackageNotFoundError, version

def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

names = "numpy torch pytest pytest-xdist hypothesis ml_dtypes pybind11 cupy-cuda13x jax pydantic rich typer matplotlib"
print(*(f"{name} {found(name)}" for name in names.split()), sep="\n")
EOF
}

compile() {
  local pybind11
  pybind11=$("$python" -m pybind11 --cmakedir) || return 1
  cmake -S . -B "$build" -G Ninja -Dpybind11_DIR="$pybind11" -DPython_EXECUTABLE="$(command -v "$python")" \
    -DBOOST_EXT_WITH_CUDA=ON -DBOOST_EXT_BASELINE_ONLY=ON -DCMAKE_CUDA_ARCHITECTURES="$architectures" &&
    cmake --build "$build" --parallel "$(nproc)" &&
    rm -rf "$build/package" && mkdir -p "$build/package" && cp -r python/boost_ext "$build/package/" &&
    rm -f "$build"/package/boost_ext/_core*.so && cp "$build"/_core*.so "$build/package/boost_ext/" &&
    "$python" -c 'import boost_ext, boost_ext.cuda; print(boost_ext.build_info())'
}

sanitizers() { "$python" -m pytest -q -rs tests/cuda/test_every_op.py -k sanitizer; }

# The proxy of the tests calls CUDA's runtime by itself. Its folder alone: not another cuBLAS than PyTorch's.
if ! ldconfig -p 2>/dev/null | grep -q libcudart && ! [ -e /usr/local/cuda/lib64/libcudart.so ]; then
  toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  mkdir -p "$work/cudart"
  find -L "$toolkit" -maxdepth 4 -name 'libcudart.so*' -exec ln -sf {} "$work/cudart/" \;
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$work/cudart"
fi

# Functions for `timeout`, which runs programs only.
export -f about compile sanitizers
export python build architectures
export PYTHONPATH="$PWD/$build/package" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
quiet=(-q -p no:cacheprovider --color=no)
workers=()
if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n "$(($(nproc) < 8 ? $(nproc) : 8))"); fi

part machine 60 bash -c about
if part build $((seconds / 3)) bash -c compile; then
  tests=$((seconds * 2 / 3))
  # By themselves: an error of the GPU fails everything after it in its process.
  part tests_gpu $((tests - seconds / 6)) "$python" -m pytest "${quiet[@]}" tests/cuda/test_gpu_*.py
  part tests_cuda $((tests - seconds / 9)) "$python" -m pytest "${quiet[@]}" tests/cuda --ignore-glob='*test_gpu_*' -k 'not sanitizer'
  part tests_ops $((tests - seconds / 18)) "$python" -m pytest "${quiet[@]}" "${workers[@]}" tests/ops --device cuda
  part sanitizers "$tests" bash -c sanitizers
  part benchmarks $((seconds - 15)) "$python" -m benchmarks.cuda --budget $((seconds - SECONDS - 60)) --out "$work/bench"
fi
say "$failures parts failed, $SECONDS s"
[ "$failures" = 0 ]
