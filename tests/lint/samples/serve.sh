#!/bin/bash
# Self-written forms of one idea: everything a person may do in a script.
set -euo pipefail

MODEL=${MODEL:-Eco-Tech/Qwen3.5-27B-w8a8-mtp}
PORT=8077
EXTRA="--max-model-len 8192 --max-num-seqs 32"
FLAGS=(
  --tensor-parallel-size 2   # two dies of one card
  --trust-remote-code
  --quantization ascend
)
export HCCL_BUFFSIZE=512
export OMP_NUM_THREADS=1 OMP_PROC_BIND=false

# Variables, an array, an unquoted list of flags.
vllm serve "$MODEL" --port "$PORT" $EXTRA "${FLAGS[@]}" \
  --max-num-batched-tokens 4096

# Own variables of one command, `=`, JSON in both quotes.
TASK_QUEUE_ENABLE=1 vllm serve Eco-Tech/Qwen3.5-27B-w8a8-mtp \
  --tensor-parallel-size=2 \
  --max-model-len=8192 --max-num-seqs=16 --max-num-batched-tokens=4096 \
  --quantization=ascend \
  --speculative-config "{\"method\": \"qwen3_5_mtp\", \"num_speculative_tokens\": 3}" \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY",
                         "cudagraph_capture_sizes": [4, 8, 16, 32, 64]}' \
  --gpu-memory-utilization 0.9

# Dotted keys, short flags, a pipe, the background.
nohup vllm serve Eco-Tech/Qwen3.5-27B-w8a8-mtp -tp 2 -dp 2 -q ascend \
  --compilation-config.cudagraph_mode FULL_DECODE_ONLY \
  --max_model_len 8192 --max_num_seqs 16 --max_num_batched_tokens 4096 2>&1 | tee serve.log &

# The module, behind other launchers.
env VLLM_USE_MODELSCOPE=True numactl -N 0 python3 -m vllm.entrypoints.openai.api_server \
  --model Eco-Tech/Qwen3.6-27B-w8a8 --max-model-len 8192 --tensor-parallel-size 2 \
  --max-num-seqs 16 --max-num-batched-tokens 4096 --quantization ascend > log.txt 2>&1

if [ "${ROLE:-}" = big ]; then SEQS=64; else SEQS=16; fi
cd /tmp && vllm serve Qwen/Qwen3.5-27B -tp 4 --max-num-seqs $SEQS --max-model-len 4096

docker run --rm -e HCCL_OP_EXPANSION_MODE=AIV --env OMP_NUM_THREADS=1 \
  quay.io/ascend/vllm-ascend:main \
  bash -c "export TASK_QUEUE_ENABLE=1 && vllm serve Qwen/Qwen3.5-27B --max-model-len 4096 -tp 4"

cat > inner.sh <<'EOF'
export HCCL_BUFFSIZE=1024
vllm serve Qwen/Qwen3.5-35B-A3B --enable-expert-parallel -tp 2 --max-model-len 4096
EOF

cat <<EOF | ssh node1 bash
vllm serve $MODEL --port \$1 --max-model-len 4096 -tp 2
EOF

echo "vllm serve is starting"
pkill -f "vllm serve" || true
# vllm serve commented-out --port 1
