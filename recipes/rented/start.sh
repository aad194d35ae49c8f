#!/bin/bash
# A rented machine with GPUs, such as one of RunPod, Vast.ai or Lambda: makes .venv, checks the machine, and starts a run
# in tmux, under a supervisor, so that it outlives the connection. OUTPUT_DIR is the run's folder. From home, with the
# wheel that `make dist` writes:
#
#     scp dist/*.whl start.sh my.yaml BOX:
#     ssh BOX OUTPUT_DIR=outputs/run bash start.sh pretrain --config my.yaml
#     ssh -t BOX .venv/bin/hmm-datasets watch outputs/run --follow
#
# The second line again continues a run that was stopped. PACKAGE is what pip installs; by default the wheel in this
# folder, in a checkout the checkout. TORCH_INDEX is the address of another CUDA build of torch, for an older driver
# (pytorch.org lists them). CONFIG is a launch configuration; the default is ddp. Without InfiniBand
# NCCL is kept from looking for it; if preflight hangs at the all-reduce, start with NCCL_P2P_DISABLE=1 too.
set -euo pipefail
: "${OUTPUT_DIR:?set it: the folder of the run}"

if tmux has-session -t "=${SESSION:=run}" 2>/dev/null; then
    echo "a tmux session $SESSION is there already: tmux attach -t $SESSION, or set SESSION" >&2
    exit 1
fi
if [ ! -x .venv/bin/hmm-datasets ]; then
    wheels=(hmm_datasets-*.whl)
    if [ -e "${wheels[0]}" ]; then : "${PACKAGE:=${wheels[0]}}"; fi
    "${PYTHON:-python3}" -m venv .venv
    if [ -n "${TORCH_INDEX:-}" ]; then .venv/bin/pip install torch --index-url "$TORCH_INDEX"; fi
    .venv/bin/pip install "${PACKAGE:-.}"
fi
if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then export NCCL_IB_DISABLE="${NCCL_IB_DISABLE:-1}"; fi

gpus=$(nvidia-smi -L | grep -c GPU) || { echo "nvidia-smi lists no GPU on this machine" >&2; exit 1; }
ranks=(--launch "${CONFIG:-ddp}" --num_processes "$gpus")
.venv/bin/hmm-datasets preflight "$OUTPUT_DIR" "${ranks[@]}"

# A tmux server that is there already has another environment. Only what is no secret can be passed on its command line.
mapfile -t variables < <(env | grep -E '^(NCCL|GLOO|OMP|CUDA)_' || true)
mkdir -p "$(dirname "$OUTPUT_DIR")"
tmux new-session -d -s "$SESSION" env "${variables[@]}" \
    bash -c '"$@" 2>&1 | tee -a "$0"' "${OUTPUT_DIR%/}.log" \
    .venv/bin/hmm-datasets supervise -- .venv/bin/hmm-datasets "$@" "${ranks[@]}" --output_dir "$OUTPUT_DIR"
echo "started in tmux ($SESSION), with its output in ${OUTPUT_DIR%/}.log; to stop it: touch $OUTPUT_DIR/stop"
