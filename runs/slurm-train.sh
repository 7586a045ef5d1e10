#!/usr/bin/env bash
# One run on many machines under Slurm, for as long as it takes: it saves before the time limit, goes
# back into the queue and goes on from there.
#
#   sbatch --nodes 8 runs/slurm-train.sh PRESET DATA OUT [options of zipflm train, key=value ...]
#
# DATA and OUT must lie on a file system that all machines share. Options of sbatch given on the
# command line, such as --partition, --account or --time, win over those below.
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
# One task per machine is torchrun, which starts a process per GPU. --requeue lets Slurm start the job
# again when a machine fails; --open-mode keeps what the attempts before have said. --signal has Slurm
# tell this script, and nobody else (B:), 300 seconds before the time limit.
set -euo pipefail
preset=${1:?PRESET DATA OUT are needed} data=${2:?PRESET DATA OUT are needed} out=${3:?PRESET DATA OUT are needed}
shift 3

# Where the processes find each other: the first machine, at a port that no other job has.
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000))

# What torchrun may need to end its processes after SIGTERM, while they save; then it kills them.
# Less than the 300 seconds above, more than the longest save. (A torch that does not know this
# waits for 30 seconds.)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

# 1. Before the time limit: SIGTERM to all tasks, but not to this script. Each torchrun passes it on,
#    the processes save after the update they are in, and nothing is started again.
asked=
stop() {
    asked=yes
    echo "$0: the time is nearly up; saving"
    scancel --signal=TERM "$SLURM_JOB_ID"
}
trap stop USR1

# 2. Train, or go on training. A process that fails, or does not answer for half an hour (zipflm
#    train --stall-seconds), ends all of them, and torchrun starts them again up to three times, from the
#    newest checkpoint. In the background, because bash acts on a signal only while it waits.
srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${PROCESSES_PER_NODE:-gpu}" \
    --rdzv-backend c10d --rdzv-endpoint "${machines[0]}:$port" --rdzv-id "$SLURM_JOB_ID" \
    --max-restarts 3 \
    -m zipflm train "$preset" --data "$data" --out "$out" --resume-if-any "$@" &
step=$!

status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do # the signal has interrupted the waiting, not the training
    status=0
    wait "$step" || status=$?
done

# 3. Finished, or back into the queue, or an error that another try would not mend.
if [ "$status" -ne 0 ] && [ -n "$asked" ]; then
    echo "$0: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
