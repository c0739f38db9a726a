#!/usr/bin/env bash
# Trains every run of train.tsv, one after the other, and then carries evaluate.tsv out.
#
# On one machine:  bash run.sh
# On several:      on each of them, with its own NODE_RANK and a folder that all of them share,
#                  NODE_RANK=0 MASTER_ADDR=host0 MASTER_PORT=29500 bash run.sh
#
# What is finished is skipped, what was interrupted goes on. A failure stops nothing else; all of
# them are listed at the end. After Ctrl-C or SIGTERM the run at work saves, and the script ends.
set -uo pipefail
# Every command gets a process group of its own, so that Ctrl-C reaches it once, through `stop`.
set -m

folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
source "$folder/settings.sh"
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$folder/common.sh"
cd -- "${start:?}" || exit 1

if ((${nodes:?} > 1)); then
    : "${NODE_RANK:?is the number of this machine, from 0 on}"
    : "${MASTER_ADDR:?is the name of the machine with NODE_RANK 0}"
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

# Starts `arguments` in the background: step number $1, on `all` machines, on one `machine`, or as
# `one` process.
launch() {
    local machines=1 rendezvous=(--standalone)
    if [[ $2 == one ]]; then
        "${python:?}" -m "${arguments[@]}" </dev/null &
        return
    fi
    if [[ $2 == all ]] && ((nodes > 1)); then
        machines=$nodes
        # A port for every run: the one before may not have left its own yet.
        rendezvous=(--nnodes "$nodes" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"
            --master-port "$((${MASTER_PORT:-29500} + $1))")
    fi
    "${python:?}" -m torch.distributed.run "${rendezvous[@]}" --nproc-per-node "${gpus:?}" \
        -m "${arguments[@]}" --set "compute.nodes=$machines" --set "compute.devices=$gpus" \
        </dev/null &
}

# Carries out a line of a table: number, folder of the run, name of the step, processes, command.
step() {
    local name="${2##*/} $3"
    [[ -n $stopped ]] && return
    if is_done "$2" "$3"; then
        echo "$name: finished before"
        return
    fi
    echo "$name: begins"
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
            [[ -z $stopped ]] && echo "${target##*/} $label: left out, the run is not trained"
            continue
        fi
        step 0 "$target" "$label" "$processes" "$command"
    done 3<"$folder/evaluate.tsv"
fi

if [[ -n $stopped ]]; then
    echo "Stopped; the same command goes on."
    exit 143
fi
if ((${#failures[@]})); then
    echo "Failed: ${#failures[@]}"
    printf '  %s\n' "${failures[@]}"
    exit 1
fi
echo "All is done."
