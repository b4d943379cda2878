#!/usr/bin/env bash
# Ranks started by Open MPI's mpirun; on this host:
#
#     RANKS=4 examples/clusters/openmpi.sh ./train --epochs 10
#
# and on several, which must have the program in the same place:
#
#     HOSTS=host0:4,host1:4 RANKS=8 examples/clusters/openmpi.sh ./train --epochs 10
set -euo pipefail

arguments=(-n "${RANKS:-2}")
if [[ -n "${HOSTS:-}" ]]; then
    # Rank 0 is on the first host, and the ranks meet there.
    first="${HOSTS%%,*}"
    export MASTER_ADDR="${MASTER_ADDR:-${first%%:*}}" MASTER_PORT="${MASTER_PORT:-29500}"
    if [[ -z "${BONFIRE_JOB_TOKEN:-}" ]]; then
        BONFIRE_JOB_TOKEN="$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')"
    fi
    export BONFIRE_JOB_TOKEN
    # Names only: the token itself must not be seen on a command line.
    arguments+=(--host "$HOSTS" -x MASTER_ADDR -x MASTER_PORT -x BONFIRE_JOB_TOKEN)
fi
exec "${MPIRUN:-mpirun}" "${arguments[@]}" "$@"
