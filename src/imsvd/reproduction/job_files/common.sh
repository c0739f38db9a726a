# shellcheck shell=bash
# What the job scripts share. The tables beside it have one command a line, quoted for the shell.

# Sets `arguments` to the words of a command from a table.
split_words() {
    # Every word was quoted when the table was written: nothing in it is expanded.
    eval "arguments=($1)"
}

# Waits for process $1, whatever signals arrive meanwhile, and returns its exit code.
await() {
    while kill -0 "$1" 2>/dev/null; do
        wait "$1"
    done
    # Only now: a signal ends `wait` with its own number, even when the process ends meanwhile.
    wait "$1"
}

# Whether step $2 of the run in folder $1 is finished.
is_done() {
    [[ -e "$1/$2.done" ]]
}

mark_done() {
    mkdir -p -- "$1" && : >"$1/$2.done"
}
