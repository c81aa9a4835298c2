#!/usr/bin/env bash
# accelerate launch with an orderly end: SIGUSR1 or SIGTERM goes on to the workers alone, which save and stop; exit status 75.
# (accelerate itself would leave its workers behind on the one, and kill them half a minute after the other.)
set -u
accelerate launch "$@" &
launcher=$! status=0 stopping=
trap 'stopping=1; workers=$(cat /proc/$launcher/task/*/children); kill -USR1 ${workers:-$launcher}' USR1 TERM
while kill -0 "$launcher" 2>/dev/null; do
    wait "$launcher"
    status=$?
done
if [ -n "$stopping" ] && [ "$status" -ne 0 ]; then exit 75; fi
exit "$status"
