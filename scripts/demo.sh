#!/usr/bin/env bash
# The main job of hither on real records, in one command: build, load, kill with SIGKILL in mid-load, reopen, verify, resume, query.
#
# Usage: scripts/demo.sh            HITHER_BIN=PATH uses a program that is already built
#                                   HITHER_DEMO_DIR=DIR puts the temporary directory there (such as /dev/shm)
# Exit status 0 only if everything that was reported durable is there and nothing else.
set -euo pipefail
export LC_ALL=C
# Given paths are relative to the caller's directory.
[[ "${HITHER_BIN:-}" != */* ]] || HITHER_BIN=$(realpath -- "$HITHER_BIN")
temporary=$(realpath -- "${HITHER_DEMO_DIR:-${TMPDIR:-/tmp}}")
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'demo: FAILED: %s\n' "$*" >&2; exit 1; }
show() { printf '$ hither %s\n' "$*"; "$hither" "$@"; }

readonly wanted=300000
work=$(mktemp -d "$temporary/hither-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
export HITHER_DATA="$work/store"

build() {
    say "building the program"
    if [[ -n "${HITHER_BIN:-}" ]]; then
        hither=$HITHER_BIN
    else
        cargo build --release -p hither-cli
        hither="$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/hither"
    fi
    "$hither" --version
}

# Selects records of one line each: key, tab, value. They need no escapes, so that standard tools can compare them with
# a dump.
plain() { awk -F '\t' 'NF == 2 && length($1) > 0 && $0 !~ /[^ -~\t]/ && $0 !~ /\\/'; }

make_records() {
    say "collecting records from this machine"
    { find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path "$work" \) -prune -o -type f -printf '%p\t%s\n' 2>/dev/null || true; } |
        plain | head -n $((wanted * 2)) > "$work/paths" || true
    printf '%s files of this machine with their sizes\n' "$(wc -l < "$work/paths")"
    cp "$work/paths" "$work/found"
    if (( $(wc -l < "$work/found") < wanted )); then
        local missing=$(( wanted - $(wc -l < "$work/found") ))
        { find /usr /etc -xdev -type f \( -name '*.h' -o -name '*.py' -o -name '*.pl' -o -name '*.pm' -o -name '*.conf' -o -name '*.list' \
            -o -name '*.rs' -o -name '*.html' -o -name '*.md' -o -name '*.txt' -o -name '*.sh' \) -print0 2>/dev/null || true; } |
            { xargs -0 awk '{ gsub(/\t/, " "); print FILENAME ":" FNR "\t" $0 }' 2>/dev/null || true; } |
            plain | head -n "$missing" >> "$work/found" || true
        printf 'and lines of text files, by file and line number\n'
    fi
    # In random order, and every key once.
    sort -u -t $'\t' -k 1,1 "$work/found" | shuf --random-source=<(yes) > "$work/records"
    records=$(wc -l < "$work/records")
    printf '%s records, %s bytes\n' "$records" "$(wc -c < "$work/records")"
    (( records >= 100000 )) || fail "only $records records could be collected"
}

# Loads into a new store and kills the program after a third. Returns the program's status: 0 if it was done first.
load_until_killed() {
    rm -rf "$HITHER_DATA"
    "$hither" load --group 512 "$work/records" > "$work/reports" &
    local loader=$! word count killed=no
    durable=0
    while read -r word count; do
        [[ $word == durable ]] || fail "unexpected report: $word $count"
        durable=$count
        if [[ $killed == no ]] && (( durable >= records / 3 )); then
            kill -KILL "$loader" 2>/dev/null || true
            killed=yes
        fi
    done < "$work/reports"
    wait "$loader"
}

load_and_kill() {
    say "loading, and killing the program with SIGKILL after a third"
    mkfifo "$work/reports"
    local attempt status=0
    for attempt in 1 2 3; do
        status=0
        load_until_killed || status=$?
        # A kill that comes too late counts like none: the program may have been about to close the store.
        (( status == 0 || (status == 137 && durable >= records) )) || break
        printf 'attempt %s: the load was over before it was killed\n' "$attempt"
    done
    (( status == 137 )) || fail "the load ended with status $status instead of being killed"
    (( durable < records )) || fail "everything was durable before the load was killed"
    printf 'killed; reported durable: %s of %s records\n' "$durable" "$records"
}

verify_after_kill() {
    say "opening the store again and verifying"
    show check || fail "the store is not sound"
    "$hither" dump "$work/after-kill"
    sort "$work/after-kill" > "$work/stored"
    head -n "$durable" "$work/records" | sort > "$work/promised"
    sort "$work/records" > "$work/everything"
    comm -23 "$work/promised" "$work/stored" > "$work/lost"
    comm -13 "$work/everything" "$work/stored" > "$work/foreign"
    printf '%s records are in the store; promised %s, lost %s, not of the input %s\n' \
        "$(wc -l < "$work/stored")" "$durable" "$(wc -l < "$work/lost")" "$(wc -l < "$work/foreign")"
    [[ ! -s "$work/lost" ]] || fail "records that were reported durable are missing: $(head -n 1 "$work/lost")"
    [[ ! -s "$work/foreign" ]] || fail "the store holds what was never loaded: $(head -n 1 "$work/foreign")"
}

resume() {
    say "resuming the load"
    show load --resume "$work/records" > "$work/resumed"
    tail -n 1 "$work/resumed"
    "$hither" dump "$work/complete"
    cmp "$work/complete" "$work/everything" || fail "the dump is not the sorted input"
    "$hither" load "$work/complete" --data "$work/copy" > /dev/null
    "$hither" dump --data "$work/copy" | cmp - "$work/complete" || fail "a dump did not load back to the same dump"
    printf 'the dump is the sorted input, byte for byte, and loads back to the same dump\n'
}

query() {
    say "asking it"
    local key value answer
    key=$(tail -n 1 "$work/records" | cut -f 1)
    value=$(tail -n 1 "$work/records" | cut -f 2)
    answer=$(show get "$key")
    printf '%s\n' "$answer"
    [[ ${answer##*$'\n'} == "$value" ]] || fail "get $key did not give $value"
    show scan --prefix /usr/bin/ --limit 5
    show scan --prefix /usr/lib/ --reverse --limit 2 --json
    show put greeting 'hello, world'
    show get greeting
    show del greeting
    if show get greeting; then fail "a deleted key was found"; fi
    show keyspaces
    show stat
    show doctor
}

build
make_records
load_and_kill
verify_after_kill
resume
query
say "everything that was reported durable is there: $records records, killed at $durable"
