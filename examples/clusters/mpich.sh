#!/usr/bin/env bash
# Ranks started by MPICH's mpiexec; on this host:
#
#     RANKS=4 examples/clusters/mpich.sh ./train --epochs 10
#
# and on several, which must have the program in the same place:
#
#     HOSTS=host0:4,host1:4 RANKS=8 examples/clusters/mpich.sh ./train --epochs 10
set -euo pipefail

arguments=(-n "${RANKS:-2}")
if [[ -n "${HOSTS:-}" ]]; then
    # Rank 0 is on the first host, and the ranks meet there. MPICH hands its environment on.
    first="${HOSTS%%,*}"
    export MASTER_ADDR="${MASTER_ADDR:-${first%%:*}}" MASTER_PORT="${MASTER_PORT:-29500}"
    if [[ -z "${BONFIRE_JOB_TOKEN:-}" ]]; then
        BONFIRE_JOB_TOKEN="$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')"
    fi
    export BONFIRE_JOB_TOKEN
    arguments+=(-hosts "$HOSTS")
fi
exec "${MPIEXEC:-mpiexec}" "${arguments[@]}" "$@"
