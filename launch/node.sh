#!/usr/bin/env bash
# accelerate launch with a clean stop. After SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or SIGHUP the workers save and stop, and the exit
# status is 75. A second signal ends them at once, with 128 plus its number (Ctrl-C: 130). Otherwise the status is accelerate's.
# (On its own, accelerate would orphan its workers on SIGUSR1, kill them half a minute after the other signals, and return 1
# whatever their status. So workers that have saved and stopped record this in the file TAL_STOPPED.)
set -um # -m: the launcher has a process group of its own, and what a terminal sends reaches this script alone
TAL_STOPPED=$(mktemp) || exit
export TAL_STOPPED
# If Slurm signals every process of a step (proctrack/linuxproc), the launcher must survive the signal; workers unblock it.
env --block-signal=USR1 accelerate launch "$@" </dev/null &
launcher=$! waiting=1 signals=0
# shellcheck disable=SC2086,SC2329 # several words; the traps call it
stop() {
    waiting=1 signals=$((signals + 1)) last=$1 workers=$(cat /proc/$launcher/task/*/children)
    if [ -n "$workers" ]; then
        kill -USR1 $workers
    else
        kill -TERM "$launcher"
    fi
}
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 10' USR1
trap 'stop 15' TERM
while [ -n "$waiting" ]; do # a signal interrupts the wait
    waiting=
    wait "$launcher"
    status=$?
done
if [ -s "$TAL_STOPPED" ]; then
    cat "$TAL_STOPPED" >&2 # how to continue, once more below what accelerate prints
    status=75
elif [ "$signals" -gt 1 ]; then
    status=$((128 + last))
fi
rm "$TAL_STOPPED"
exit "$status"
