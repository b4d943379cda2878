"""The order of passes that PyTorch gives its pipeline schedules, for tests/pipeline/text.rs.

Made with torch 2.15.0: the file torch/distributed/pipelining/schedules.py of its wheel, alone. Only the generators
are taken from it, so nothing has to be installed.

    python3 orders.py torch/distributed/pipelining/schedules.py > orders.csv

With `all` behind the file name it prints every shape of up to 8 ranks, 17 micro-batches and 4 stages on a rank that
PyTorch has.
"""

import ast
import re
import sys
import types
from collections import defaultdict
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

FUTURE = ast.parse("from __future__ import annotations").body
CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb_h1": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}
FEW = [
    ("gpipe", 3, 1, 4), ("1f1b", 4, 1, 6), ("interleaved", 2, 3, 4), ("interleaved", 3, 2, 5),
    ("interleaved", 4, 2, 2), ("zb_h1", 4, 1, 6), ("zb_h1", 3, 1, 2), ("zbv", 3, 2, 6), ("zbv", 4, 2, 3),
]


class Generators:
    def __init__(self, path):
        self.path = path
        with open(path) as file:
            self.tree = ast.parse(file.read())
        self.scope = {
            "Enum": Enum, "NamedTuple": NamedTuple, "Any": Any, "defaultdict": defaultdict, "lru_cache": lru_cache,
            "re": re, "logger": types.SimpleNamespace(debug=lambda *_: None),
            "_add_reduce_grad": lambda actions, _: actions,
        }
        self.run(self.tree.body, "_ComputationType", "_Action", "_get_1f1b_rank_ops", "_get_warmup_ops")
        words = self.scope["_ComputationType"]
        self.scope.update(words.__members__)
        self.scope.update(F=words.FORWARD, I=words.BACKWARD_INPUT, W=words.BACKWARD_WEIGHT)

    def run(self, nodes, *names):
        wanted = [node for node in nodes if getattr(node, "name", None) in names]
        module = ast.Module(body=FUTURE + wanted, type_ignores=[])
        exec(compile(module, self.path, "exec"), self.scope)
        return self.scope[names[-1]]

    def lists(self, kind, ranks, chunks, micro_batches):
        rounds = max(1, micro_batches // ranks)
        schedule = types.SimpleNamespace(
            _num_stages=ranks, _n_microbatches=micro_batches, pp_group_size=ranks, n_local_stages=chunks,
            num_stages=ranks * chunks, number_of_rounds=rounds, microbatches_per_round=micro_batches // rounds,
        )
        nodes = next(node.body for node in self.tree.body if getattr(node, "name", None) == CLASSES[kind])
        if kind in ("gpipe", "1f1b"):
            order = self.run(nodes, "_get_pipeline_order")(schedule)
            return [order[rank] for rank in range(ranks)]
        of_rank = self.run(nodes, "_calculate_single_rank_operations")
        return [of_rank(schedule, rank) for rank in range(ranks)]


def every_shape():
    for ranks in range(1, 9):
        for micro_batches in range(1, 18):
            rounds = max(1, micro_batches // ranks)
            yield ("gpipe", ranks, 1, micro_batches)
            yield ("zbv", ranks, 2, micro_batches)
            if micro_batches >= ranks:
                yield ("1f1b", ranks, 1, micro_batches)
            if micro_batches % rounds == 0:
                yield ("zb_h1", ranks, 1, micro_batches)
                for chunks in (2, 3, 4):
                    yield ("interleaved", ranks, chunks, micro_batches)


generators = Generators(sys.argv[1])
for shape in every_shape() if sys.argv[2:] == ["all"] else FEW:
    print("#", *shape)
    for actions in generators.lists(*shape):
        print(",".join(str(action) for action in actions if action is not None))
