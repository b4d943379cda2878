#!/usr/bin/env bash
# Ranks started by PyTorch's torchrun; on this host:
#
#     RANKS=4 examples/clusters/torchrun.sh ./train --epochs 10
#
# and on several, once on each, with the same values but NODE_RANK:
#
#     NNODES=2 NODE_RANK=0 MASTER_ADDR=host0 RANKS=4 examples/clusters/torchrun.sh ./train --epochs 10
set -euo pipefail

arguments=(--no-python --nproc-per-node "${RANKS:-2}")
if [[ -n "${NNODES:-}" ]]; then
    arguments+=(--nnodes "$NNODES" --node-rank "$NODE_RANK"
        --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}")
    # torchrun reads these as well, and then they are its own.
    unset MASTER_ADDR MASTER_PORT NODE_RANK
else
    arguments+=(--standalone)
fi
exec "${TORCHRUN:-torchrun}" "${arguments[@]}" "$@"
