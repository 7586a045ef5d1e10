#!/usr/bin/env bash
# Train one run on many machines under Slurm. Before the time limit it saves, requeues the job and
# continues from there.
#
#   sbatch --nodes 8 runs/slurm-train.sh PRESET DATA OUT [options of zipflm train, key=value ...]
#
# DATA and OUT must be on a file system that all machines share. Options of sbatch on the command
# line, such as --partition, --account or --time, override those below.
#
#SBATCH --job-name=zipflm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --output=zipflm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#
# One task per machine runs torchrun, which starts a process per GPU. --requeue lets Slurm restart the
# job if a machine fails; --open-mode keeps the output of earlier attempts. --signal makes Slurm send
# USR1 to this script only (B:), 300 seconds before the time limit.
set -euo pipefail
preset=${1:?PRESET DATA OUT are needed} data=${2:?PRESET DATA OUT are needed} out=${3:?PRESET DATA OUT are needed}
shift 3

# The processes rendezvous on the first machine, at a port that depends on the job.
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000))

# Seconds that torchrun waits after SIGTERM, while processes save, before it kills them. It must
# be less than the 300 seconds above and more than the longest save takes. (Older versions of torch
# ignore it and wait for 30 seconds.)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

# 1. Before the time limit: SIGTERM to all tasks, but not to this script. Each torchrun forwards it,
#    and the processes save after the current update and exit.
stopping=
stop() {
    stopping=yes
    echo "$0: the time limit is near; saving"
    scancel --signal=TERM "$SLURM_JOB_ID"
}
trap stop USR1

# 2. Train or resume. If a process fails, or does not answer for half an hour (zipflm train
#    --stall-seconds), all of them exit, and torchrun restarts them up to three times from the newest
#    checkpoint. Runs in the background, because bash handles signals only while it waits.
srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${PROCESSES_PER_NODE:-gpu}" \
    --rdzv-backend c10d --rdzv-endpoint "${machines[0]}:$port" --rdzv-id "$SLURM_JOB_ID" \
    --max-restarts 3 \
    -m zipflm train "$preset" --data "$data" --out "$out" --resume-if-any "$@" &
step=$!

status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # the signal interrupted the wait, not the training
    status=0
    wait "$step" || status=$?
done

# 3. Requeue the job if it was stopped before the time limit.
if [ "$status" -ne 0 ] && [ -n "$stopping" ]; then
    echo "$0: requeueing the job"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
