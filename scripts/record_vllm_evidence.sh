#!/usr/bin/env bash
# Records what every supported version of vLLM looks like where we touch it.
#
# Needed after a hook, a class derived from vLLM or an import from vLLM was added. Downloads the
# source packages (about 45 MB each) into a temporary folder, reads them, and writes
# registry/vllm_versions/*.yaml and docs/. Nothing of vLLM is kept.
#
# usage: scripts/record_vllm_evidence.sh [VERSION ...]
set -euo pipefail

cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
run="$(dirname "$python")/ascend-run"
versions=("$@")
if [ ${#versions[@]} -eq 0 ]; then
    versions=(0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0)
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

for version in "${versions[@]}"; do
    # The build backend is asked for metadata only; without a device it compiles nothing.
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE="$version" \
        "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary vllm \
        --dest "$folder" "vllm==$version"
    mkdir "$folder/$version"
    tar -xzf "$folder/vllm-$version.tar.gz" -C "$folder/$version" --strip-components=1 \
        --wildcards '*/vllm/*.py' '*/PKG-INFO'
    "$run" patches record --vllm "$folder/$version"
    rm -rf "${folder:?}/vllm-$version.tar.gz" "${folder:?}/$version"
done
"$run" patches docs
