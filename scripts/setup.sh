#!/usr/bin/env bash
# Builds .venv in stages; `setup.sh checks` adds what only `make test` needs. Safe to run again at
# any time: a finished stage is skipped, a stage that was interrupted or whose content changed runs
# again, and an environment that does not work is built anew. Packages come from wherever pip is
# configured to look.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMPS=$VENV/setup
STAGES=(venv torch build_tools vllm torchvision project)
if [ "${1:-}" = checks ]; then STAGES+=(torch_npu vllm_ascend lowering); fi
readonly STAGES

readonly TORCH="torch==2.13.0"
readonly VLLM="vllm==0.32.0"
readonly TORCHVISION="torchvision==0.28.0"
readonly BUILD_TOOLS=("setuptools>=78.1.1,<81" setuptools_scm setuptools_rust packaging cmake
  ninja wheel jinja2 grpcio-tools)

# What the vendor lane asks and the lowering lane compiles with. Beside the environment's packages,
# not among them: torch_npu and triton-ascend would change how torch and triton behave.
readonly VENDOR=$VENV/vendor
readonly LOWERING=$VENV/lowering
readonly TORCH_NPU="torch_npu==2.13.0"
readonly VLLM_ASCEND="vllm-ascend==0.23.0.post1"
readonly COMPILERS=("triton-ascend==3.2.0" "ascendnpu-ir==1.2.0" "pybind11==3.1.0" "numpy==2.3.5")

say() { printf '[setup %s/%s] %s\n' "$number" "${#STAGES[@]}" "$*" >&2; }
fail() { say "$*"; exit 1; }
pip() { "$VENV/bin/python" -m pip install --disable-pip-version-check "$@"; }

# --- stages: what it installs, how, and how one sees that it works ------------------------------
describe() {
  case $1 in
    venv) echo "Python environment in $VENV" ;;
    torch) echo "$TORCH" ;;
    build_tools) echo "build tools of vLLM" ;;
    vllm) echo "$VLLM without a device (built here, about 2 minutes)" ;;
    torchvision) echo "$TORCHVISION" ;;
    torch_npu) echo "$TORCH_NPU and stand-ins for CANN in $VENDOR" ;;
    vllm_ascend) echo "operator definitions of $VLLM_ASCEND in $VENDOR" ;;
    lowering) echo "${COMPILERS[0]} in $LOWERING (0.8 GB)" ;;
    project) echo "ascend-recipes and its development tools" ;;
  esac
}

install() {
  local stage=$1; shift
  case $stage in
    venv) rm -rf "$VENV" && "$PYTHON" -m venv "$VENV" ;;
    torch) pip "$@" "$TORCH" ;;
    build_tools) pip "$@" "${BUILD_TOOLS[@]}" ;;
    # An out-of-tree platform brings its own device: vLLM is built with none, against our torch.
    vllm) VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=${VLLM#*==} \
      pip "$@" --no-build-isolation --no-binary vllm "$VLLM" ;;
    # Its own pins would replace torch; vLLM needs only its Python part.
    torchvision) pip "$@" --no-deps "$TORCHVISION" ;;
    torch_npu) install_torch_npu ;;
    vllm_ascend) download_vllm_ascend ;;
    lowering) rm -rf "$LOWERING" && "$PYTHON" -m venv "$LOWERING" &&
      "$LOWERING/bin/python" -m pip install --disable-pip-version-check --no-deps "${COMPILERS[@]}" ;;
    project) pip "$@" -e ".[dev]" ;;
  esac
}

install_torch_npu() {
  rm -rf "$VENDOR/torch_npu" "$VENDOR/cann_stub"
  pip --no-deps --target "$VENDOR/torch_npu" "$TORCH_NPU" &&
    "$VENV/bin/python" scripts/cann_stub.py "$VENDOR/torch_npu" "$VENDOR/cann_stub"
}

# The library cannot be built here; its source says which operators it defines and what they take.
download_vllm_ascend() {
  rm -rf "$VENDOR/vllm_ascend"
  SOC_VERSION=ascend910b1 "$VENV/bin/python" -m pip download --disable-pip-version-check --no-deps \
    --no-build-isolation --no-binary :all: --dest "$VENDOR/vllm_ascend" "$VLLM_ASCEND" &&
    "$VENV/bin/python" -c "$KEEP_DEFINITIONS" "$VENDOR/vllm_ascend"
}

readonly KEEP_DEFINITIONS='
import pathlib, re, sys, tarfile
folder = pathlib.Path(sys.argv[1])
wanted = re.compile(r"[^/]+/(csrc/(?:torch_binding\.cpp|(?:attention|gmm|moe)/.+\.(?:cpp|h|md)))")
(archive,) = folder.glob("*.tar.gz")
with tarfile.open(archive) as package:
    for member in package:
        found = wanted.fullmatch(member.name)
        if found and member.isfile() and "/op_kernel/" not in member.name:
            target = folder / found[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(package.extractfile(member).read())
archive.unlink()
'

verify() {
  case $1 in
    venv) python_works "import sys, pip; assert sys.version_info >= (3, 11)" ;;
    torch) python_works "import torch" ;;
    build_tools) python_works "import setuptools_scm, setuptools_rust, grpc_tools" ;;
    vllm) python_works "import vllm.version" ;;
    torchvision) python_works "import importlib.metadata as m; m.version('torchvision')" ;;
    torch_npu) TORCH_DEVICE_BACKEND_AUTOLOAD=0 LD_LIBRARY_PATH="$VENDOR/cann_stub" \
      PYTHONPATH="$VENDOR/torch_npu" python_works "import torch_npu" ;;
    vllm_ascend) python_works "open('$VENDOR/vllm_ascend/csrc/torch_binding.cpp')" ;;
    lowering) "$LOWERING/bin/python" -c "import triton.language" >/dev/null 2>&1 ;;
    project) python_works "import ascend_recipes, hydra, pytest, mypy, ruff" ;;
  esac
}

python_works() { [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c "$1" >/dev/null 2>&1; }

# --- stamps ---------------------------------------------------------------------------------------
# A stage's key covers what it installs and every stage before it, so that a new torch rebuilds vLLM.
key_of() {
  local stage text=""
  for stage in "${STAGES[@]}"; do
    case $stage in
      torch) text+="$TORCH" ;;
      build_tools) text+="${BUILD_TOOLS[*]}" ;;
      vllm) text+="$VLLM empty" ;;
      torchvision) text+="$TORCHVISION" ;;
      # These stand apart: only the torch that torch_npu links to matters to any of them.
      torch_npu) text="$TORCH $TORCH_NPU $(cat scripts/cann_stub.py)" ;;
      vllm_ascend) text="$VLLM_ASCEND" ;;
      lowering) text="${COMPILERS[*]}" ;;
      project) text+=$(cat pyproject.toml) ;;
    esac
    [ "$stage" = "$1" ] && break
  done
  printf '%s' "$text" | cksum | tr ' ' -
}

is_done() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$(key_of "$1")" ]; }

stamp() {
  mkdir -p "$STAMPS"
  key_of "$1" >"$STAMPS/$1.new"
  mv "$STAMPS/$1.new" "$STAMPS/$1"
}

# --- running one stage ------------------------------------------------------------------------------
# The installer's own output goes to a log; what is shown is that it still works, and on what.
with_progress() {
  local log=$1 started=$SECONDS shown=0; shift
  set -m  # a process group of its own, so that an interruption ends the installer's children too
  "$@" >"$log" 2>&1 &
  child=$!
  set +m
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.1
    if [ $((SECONDS - started - shown)) -ge 10 ]; then
      shown=$((SECONDS - started))
      say "  … $shown s: $(grep -v ^WARNING "$log" | tail -n 1 | tr -d "\r" | cut -c 1-90)"
    fi
  done
  local status=0
  wait "$child" || status=$?
  child=""
  return "$status"
}

run_stage() {
  local stage=$1 started=$SECONDS log
  log=$(mktemp)
  [ "$stage" != venv ] && [ -e "$STAMPS/$stage.started" ] && say "$stage was interrupted: again"
  say "$(describe "$stage") …"
  [ "$stage" = venv ] || { mkdir -p "$STAMPS"; : >"$STAMPS/$stage.started"; }
  # A package that an interruption left half written satisfies pip but does not import.
  if ! with_progress "$log" install "$stage" || {
    ! verify "$stage" && { [ "$stage" = venv ] ||
      ! with_progress "$log" install "$stage" --force-reinstall || ! verify "$stage"; }; }; then
    tail -n 25 "$log" >&2
    fail "$stage failed; the whole output is in $log. Run the same command again to resume here."
  fi
  stamp "$stage"
  rm -f "$STAMPS/$stage.started" "$log"
  say "$stage is ready ($((SECONDS - started)) s)"
}

interrupted() {
  trap - INT TERM
  if [ -n "$child" ]; then kill -TERM -- "-$child" 2>/dev/null || true; fi
  say "interrupted; run the same command again to resume at this stage"
  exit 130
}

number=1 child="" work_done=0
PYTHON=${PYTHON:-python3}
trap interrupted INT TERM
if command -v flock >/dev/null; then
  exec 9>.setup.lock
  flock -n 9 || { say "another set-up is running here: waiting for it"; flock 9; }
fi

for stage in "${STAGES[@]}"; do
  if [ "$stage" = venv ]; then
    verify venv || { [ ! -e "$VENV" ] || say "$VENV does not work: building it anew"; run_stage venv; work_done=1; }
  elif ! is_done "$stage"; then
    run_stage "$stage"
    work_done=1
  fi
  number=$((number + 1))
done
number=${#STAGES[@]}
if [ "$work_done" = 1 ]; then say "done"; fi
