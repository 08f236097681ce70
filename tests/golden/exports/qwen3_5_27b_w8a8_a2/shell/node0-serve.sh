#!/usr/bin/env bash
# qwen3_5_27b_w8a8_a2, plan DIGEST: node 0 (vllm)
# vllm-ascend 0.23.0; written by ascend_recipes:
#   ascend-run export …
set -euo pipefail

# Images set up their toolkit for interactive shells only.
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  if [ -f "${file}" ]; then
    set +eu
    # shellcheck disable=SC1090
    source "${file}"
    set -eu
  fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}/usr/local/lib"

export HCCL_BUFFSIZE=512
export OMP_NUM_THREADS=1
export OMP_PROC_BIND=false
export TASK_QUEUE_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=1800
exec vllm serve /models/Qwen3.5-27B-w8a8-mtp \
  --host 127.0.0.1 \
  --port 8000 \
  --seed 1024 \
  --max-model-len 133000 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 16384 \
  --block-size 128 \
  --no-enable-prefix-caching \
  --gpu-memory-utilization 0.9 \
  --tensor-parallel-size 2 \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 3, "enforce_eager": true}' \
  --served-model-name qwen3_5_27b \
  --quantization ascend \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice
