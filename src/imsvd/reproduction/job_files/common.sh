# shellcheck shell=bash
# Functions of the job scripts. Each line of the tables has one command, quoted for the shell.

# Split a command of a table into the array `arguments`.
split_words() {
    # Safe, because every word was quoted when the table was written.
    eval "arguments=($1)"
}

# Wait for process $1 regardless of signals, and return its exit code.
await() {
    while kill -0 "$1" 2>/dev/null; do
        wait "$1"
    done
    # A signal makes `wait` return early with another code, so ask again after the process has ended.
    wait "$1"
}

# Whether step $2 of the run in folder $1 is finished.
is_done() {
    [[ -e "$1/$2.done" ]]
}

mark_done() {
    mkdir -p -- "$1" && : >"$1/$2.done"
}
