#!/usr/bin/env bash
# Submits all steps: an array of trainings, and evaluations that wait for their training.
#
#   bash submit.sh --partition=gpu --time=24:00:00 --cpus-per-task=8
#
# All options go to sbatch. Prefix the command with AT_ONCE=4 to train four runs at a time.
# Submit again at any time: finished steps are skipped, interrupted ones resume.
set -euo pipefail

folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$folder/settings.sh"
mkdir -p -- "$folder/logs"
logs=${folder//%/%%}/logs

# submit NAME TABLE ELEMENTS MACHINES OPTIONS…
submit() {
    local name=$1 table=$2 elements=$3 machines=$4
    shift 4
    sbatch --parsable --job-name="$name" --array="$elements" --nodes="$machines" \
        --ntasks-per-node="${gpus:?}" --gpus-per-node="$gpus" --output="$logs/$table-%A_%a.txt" \
        "$@" "$folder/array.sbatch" "$folder" "$table"
}

training=
if [[ -n ${trained:-} ]]; then
    training=$(submit imsvd-train train "$trained${AT_ONCE:+%$AT_ONCE}" "${nodes:?}" "$@")
    # Federated clusters append the name of the cluster to the job number.
    training=${training%%;*}
    echo "trainings: $training"
fi
if [[ -n ${evaluated:-} ]]; then
    # Each task waits for the training with the same number to succeed.
    echo "evaluations: $(submit imsvd-evaluate evaluate "$evaluated" 1 \
        --dependency="aftercorr:$training" "$@")"
fi
if [[ -n ${published:-} ]]; then
    echo "published backbones: $(submit imsvd-evaluate evaluate "$published" 1 "$@")"
fi
