#!/bin/sh
# trainer-agent: question="Has the scratch disk room for checkpoints?" timeout=5
set -eu
path=${SCRATCH:-/tmp}
wanted_mib=${SCRATCH_WANTED_MIB:-1024}
free_mib=$(df -Pm "$path" | awk 'NR == 2 { print $4 }')
status=pass
[ "$free_mib" -ge "$wanted_mib" ] || status=fail
printf '{"status": "%s", "message": "%s MiB are free, wanted %s", "measurements": {"free_mib": %s}}\n' \
    "$status" "$free_mib" "$wanted_mib" "$free_mib"
