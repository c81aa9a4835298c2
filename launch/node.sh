#!/usr/bin/env bash
# accelerate launch with a clean stop: SIGUSR1 or SIGTERM is passed to the workers alone, which save and stop; exit status 75.
# Otherwise accelerate's own status. (accelerate itself would orphan its workers on SIGUSR1, kill them half a minute after
# SIGTERM, and return 1 whatever their status: workers that have saved and stopped write so to the file TAL_STOPPED.)
set -u
TAL_STOPPED=$(mktemp) || exit
export TAL_STOPPED
accelerate launch "$@" &
launcher=$! waiting=1 workers=
trap 'waiting=1; workers=$(cat /proc/$launcher/task/*/children); kill -USR1 ${workers:-$launcher}' USR1 TERM
while [ -n "$waiting" ]; do # a signal interrupts the wait
    waiting=
    wait "$launcher"
    status=$?
done
if [ -s "$TAL_STOPPED" ]; then status=75; fi
rm "$TAL_STOPPED"
exit "$status"
