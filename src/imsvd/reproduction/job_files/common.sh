# shellcheck shell=bash
# What the job scripts share. The tables beside it have one command a line, quoted for the shell.

# Sets `arguments` to the words of a command from a table.
split_words() {
    # Every word was quoted when the table was written: nothing in it is expanded.
    eval "arguments=($1)"
}

# Waits for process $1, whatever signals arrive meanwhile, and returns its exit code.
await() {
    local code
    while true; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || return "$code"
    done
}

# Whether step $2 of the run in folder $1 is finished.
is_done() {
    [[ -e "$1/$2.done" ]]
}

mark_done() {
    mkdir -p -- "$1" && : >"$1/$2.done"
}
