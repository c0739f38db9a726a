#!/usr/bin/env bash
# Trains the runs of train.tsv in turn, then runs the evaluations of evaluate.tsv.
#
# One machine:       bash run.sh
# Several machines:  on each, with its own NODE_RANK and a folder shared by all,
#                    NODE_RANK=0 MASTER_ADDR=host0 MASTER_PORT=29500 bash run.sh
#
# Skips finished steps and resumes interrupted ones. A failure does not stop the rest; all failures
# are listed at the end. On Ctrl-C or SIGTERM, the current run saves and the script stops.
set -uo pipefail
# Give every command its own process group, so that Ctrl-C reaches it only through `stop`.
set -m

folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$folder/settings.sh"
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$folder/common.sh"
cd -- "${start:?}" || exit 1

if ((${nodes:?} > 1)); then
    : "${NODE_RANK:?must be the number of this machine, counted from 0}"
    : "${MASTER_ADDR:?must be the host name of the machine with NODE_RANK 0}"
fi

child=
stopped=
failures=()
arguments=()

stop() {
    stopped=1
    [[ -n $child ]] && kill -TERM "$child" 2>/dev/null
}
trap stop INT TERM

# Start `arguments` in the background as step number $1: on `all` machines, on this `machine`, or as
# `one` process.
launch() {
    local machines=1 rendezvous=(--standalone)
    if [[ $2 == one ]]; then
        "${python:?}" -m "${arguments[@]}" </dev/null &
        return
    fi
    if [[ $2 == all ]] && ((nodes > 1)); then
        machines=$nodes
        # Each run has its own port, because the previous run may still hold its port.
        rendezvous=(--nnodes "$nodes" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"
            --master-port "$((${MASTER_PORT:-29500} + $1))")
    fi
    "${python:?}" -m torch.distributed.run "${rendezvous[@]}" --nproc-per-node "${gpus:?}" \
        -m "${arguments[@]}" --set "compute.nodes=$machines" --set "compute.devices=$gpus" \
        </dev/null &
}

# Run one step: number, folder of the run, name of the step, processes, command.
step() {
    local name="${2##*/} $3"
    [[ -n $stopped ]] && return
    if is_done "$2" "$3"; then
        echo "$name: already finished"
        return
    fi
    echo "$name: started"
    split_words "$5"
    launch "$1" "$4"
    child=$!
    await "$child"
    local code=$?
    child=
    if ((code == 0)); then
        mark_done "$2" "$3"
    elif [[ -z $stopped ]]; then
        echo "$name: failed with exit code $code"
        failures+=("$name (exit code $code)")
    fi
}

while IFS=$'\t' read -r -u 3 number target label processes command; do
    step "$number" "$target" "$label" "$processes" "$command"
done 3<"$folder/train.tsv"

if [[ ${NODE_RANK:-0} == 0 ]]; then
    while IFS=$'\t' read -r -u 3 number target label processes command; do
        if ((number <= ${last_run:?})) && ! is_done "$target" train; then
            [[ -z $stopped ]] && echo "${target##*/} $label: skipped, the run is not trained"
            continue
        fi
        step 0 "$target" "$label" "$processes" "$command"
    done 3<"$folder/evaluate.tsv"
fi

if [[ -n $stopped ]]; then
    echo "Stopped; run the same command to resume."
    exit 143
fi
if ((${#failures[@]})); then
    echo "Failed: ${#failures[@]}"
    printf '  %s\n' "${failures[@]}"
    exit 1
fi
echo "All steps are finished."
