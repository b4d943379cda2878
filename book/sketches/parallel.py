"""How ranks share the work: the sketches of `how-it-works.md`."""

import math

from .drawing import (BLUE, Drawing, GREEN, GREY, ORANGE, PALE_BLUE, PALE_GREEN, PALE_GREY, PALE_RANKS, PAPER,
                      RANKS, SKY)


def ranks():
    """Four ranks on two hosts, and what each has."""
    drawing = Drawing("ranks", 300)
    for host in range(2):
        left = 16 + 312 * host
        drawing.frame(left, 16, 296, 196, f"host {host}")
        for place in range(2):
            rank, x = 2 * host + place, left + 12 + 138 * place
            drawing.box(x, 46, 134, 154, PALE_GREY)
            drawing.text(x + 67, 66, f"rank {rank}", "middle", weight="bold")
            for row, (fill, text) in enumerate([(PAPER, f"GPU {place}"), (PALE_BLUE, "model"),
                                                (PALE_GREEN, f"batch {rank} of 4")]):
                drawing.box(x + 8, 78 + 40 * row, 118, 34, fill, text)
            drawing.line(x + 67, 202, x + 67, 240, stroke=ORANGE, both=True)
    drawing.box(16, 244, 608, 40, ORANGE, "all-reduce: the same averaged gradients on every rank")
    return drawing


def overlap():
    """A step of four buckets: gradients one after the other, and while the backward pass runs."""
    forward, layer, message, update = 3.0, 2.0, 1.7, 1.0
    drawing = Drawing("overlap", 312)
    unit, left = 25.6, 136
    ends = []

    def step(y, title, overlapped):
        drawing.text(16, y, title, weight="bold")
        for lane, name in enumerate(["compute", "communication"]):
            drawing.text(left - 10, y + 32 + 36 * lane, name, "end")

        def bar(lane, start, length, colour, text):
            drawing.box(left + start * unit, y + 12 + 36 * lane, length * unit - 2, 30, colour, text)

        bar(0, 0, forward, SKY, "forward")
        link = forward + 4 * layer
        for bucket in range(4):
            start = forward + bucket * layer
            bar(0, start, layer, BLUE, str(4 - bucket))
            if overlapped:
                link = start + layer
            bar(1, link, message, ORANGE, str(4 - bucket))
            link += message
        bar(0, link, update, GREEN, "")
        ends.append(left + (link + update) * unit - 2)

    step(32, "One all-reduce after the backward pass", False)
    step(156, "Buckets during the backward pass, as in Ddp", True)
    drawing.line(ends[0], 78, ends[0], 252, stroke=GREY, dash="4 3")
    drawing.line(ends[1], 204, ends[1], 252, stroke=GREY, dash="4 3")
    drawing.line(ends[1] + 3, 232, ends[0] - 3, 232, stroke=GREY, both=True)
    drawing.text((ends[0] + ends[1]) / 2, 224, "saved", "middle", GREY)
    drawing.legend(16, 292, [(BLUE, "backward pass of a layer"),
                             (ORANGE, "all-reduce of its bucket"), (GREEN, "optimizer")])
    return drawing


def all_reduce():
    """Who sends to whom in a ring and directly."""
    drawing = Drawing("all-reduce", 368)
    for centre, title, note in [
        (168, "Ring", "2(n-1) rounds, each with one\nneighbour: many latencies, few links"),
        (480, "Direct (two_shot)", "2 rounds, each with all others:\nfew latencies, many links"),
    ]:
        drawing.text(centre, 32, title, "middle", weight="bold")
        drawing.lines(centre, 334, note, "middle")
        places = [(centre + 104 * math.sin(2 * math.pi * rank / 4), 174 - 104 * math.cos(2 * math.pi * rank / 4))
                  for rank in range(4)]
        for source, (x1, y1) in enumerate(places):
            for target, (x2, y2) in enumerate(places):
                if source == target or (title == "Ring" and target != (source + 1) % 4):
                    continue
                length = math.hypot(x2 - x1, y2 - y1)
                dx, dy = (x2 - x1) / length, (y2 - y1) / length
                # To the side, for between two ranks there are two arrows.
                aside, start = (0, 40) if title == "Ring" else (5, 44)
                drawing.line(x1 + start * dx - aside * dy, y1 + start * dy + aside * dx,
                             x2 - start * dx - aside * dy, y2 - start * dy + aside * dx, tip=True)
        for rank, (x, y) in enumerate(places):
            drawing.box(x - 32, y - 15, 64, 30, RANKS[rank], f"rank {rank}")
    return drawing


def ring_rounds(ranks):
    """What each rank's chunks contain after each round: sets of ranks."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    rounds = [[[set(chunk) for chunk in row] for row in held]]
    for number in range(2 * (ranks - 1)):
        before = rounds[-1]
        for rank in range(ranks):
            prev = (rank - 1) % ranks
            # Chunk r is whole on rank r after the first half, and then goes round.
            chunk = (rank - number - 2) % ranks
            held[rank][chunk] = before[prev][chunk] | (before[rank][chunk] if number < ranks - 1 else set())
        rounds.append([[set(chunk) for chunk in row] for row in held])
    assert all(len(rounds[ranks - 1][rank][rank]) == ranks for rank in range(ranks)), rounds
    assert all(len(chunk) == ranks for row in rounds[-1] for chunk in row), rounds
    return rounds


def all_reduce_rounds():
    """What is in the chunks of each rank in the course of a ring."""
    drawing = Drawing("all-reduce-rounds", 262)
    rounds = ring_rounds(4)
    for panel, (number, title) in enumerate([(0, "at the start"), (1, "1 round"), (3, "3 rounds"), (6, "6 rounds")]):
        left = 84 + 140 * panel
        drawing.text(left + 58, 32, title, "middle", weight="bold")
        for rank, row in enumerate(rounds[number]):
            y = 46 + 38 * rank
            if panel == 0:
                drawing.box(16, y, 62, 30, RANKS[rank], f"rank {rank}")
            for chunk, parts in enumerate(row):
                drawing.box(left + 30 * chunk, y, 27, 30, PAPER)
                for part in sorted(parts):
                    drawing.box(left + 30 * chunk + 2 + 6 * part, y + 3, 5, 24, RANKS[part])
    drawing.text(84, 222, "Each rank has four chunks. A chunk with four colours is the sum of all ranks.")
    drawing.text(84, 244, "In each round a rank sends one chunk to the next rank.")
    return drawing


def zero_ranks():
    """Which part of the training state each of four ranks holds."""
    ranks, scale = 4, 11.5
    kinds = [("parameters", BLUE, 4, 3), ("gradients", ORANGE, 4, 2), ("optimizer", GREEN, 8, 1)]
    drawing = Drawing("zero-ranks", 292)
    for rank in range(ranks):
        drawing.text(108 + 110 * rank + 46, 32, f"rank {rank}", "middle", weight="bold")
    drawing.lines(624, 32, "bytes per\nparameter", "end")
    for stage, name in enumerate(["replicated", "zero1", "zero2", "zero3"]):
        y = 56 + 52 * stage
        drawing.text(16, y + 24, name)
        total = 0.0
        for kind, colour, size, first in kinds:
            sharded = stage >= first
            total += size / ranks if sharded else size
            for rank in range(ranks):
                x, top = 108 + 110 * rank, y + (19 if kind == "optimizer" else 0)
                x += 4 * scale + 2 if kind == "gradients" else 0
                width = size * scale + (2 if kind == "optimizer" else 0)
                drawing.box(x, top, width, 16, PAPER)
                part = width / ranks if sharded else width
                drawing.box(x + (part * rank if sharded else 0), top, part, 16, colour)
        drawing.text(596, y + 24, f"{total:g}", "end", weight="bold")
    drawing.legend(108, 276, [(colour, kind) for kind, colour, _, _ in kinds], 130)
    return drawing


def tensor_parallel():
    """A column-parallel and a row-parallel layer on two ranks."""
    drawing = Drawing("tensor-parallel", 272)
    for x, title in [(184, "ColumnParallelLinear"), (424, "RowParallelLinear")]:
        drawing.text(x, 30, title, "middle", weight="bold")
    drawing.box(16, 100, 48, 76, PALE_GREY, "x")
    drawing.text(40, 196, "whole", "middle")
    for rank in range(2):
        y, colour, pale = 48 + 104 * rank, RANKS[rank], PALE_RANKS[rank]
        middle = y + 44
        # Columns of the first matrix: half as wide. Rows of the second: half as high.
        drawing.box(128, y, 112, 88, PAPER)
        drawing.box(128 + 56 * rank, y, 56, 88, colour, f"rank {rank}")
        drawing.box(290, y, 40, 88, pale, "gelu")
        drawing.box(380, y, 88, 88, PAPER)
        drawing.box(380, y + 44 * rank, 88, 44, colour, f"rank {rank}")
        drawing.line(66, 138 - 16 + 32 * rank, 124, middle, tip=True)
        drawing.line(242, middle, 286, middle, tip=True)
        drawing.line(332, middle, 376, middle, tip=True)
        drawing.line(470, middle, 512, 122 + 32 * rank, tip=True)
    drawing.box(516, 100, 48, 76, ORANGE, "sum")
    drawing.line(566, 138, 584, 138, tip=True)
    drawing.box(588, 100, 36, 76, PALE_GREY, "y")
    drawing.text(184, 258, "half of the columns each", "middle")
    drawing.text(424, 258, "half of the rows each", "middle")
    drawing.text(540, 196, "all-reduce", "middle")
    return drawing


def mesh():
    """pp=2,dp=2,tp=2 on two hosts: who is along which axis."""
    drawing = Drawing("mesh", 304)
    for pp in range(2):
        left = 16 + 340 * pp
        drawing.frame(left, 16, 268, 218, f"host {pp}: stage {pp}")
        for dp in range(2):
            y = 46 + 98 * dp
            for tp in range(2):
                x, rank = left + 14 + 138 * tp, 4 * pp + 2 * dp + tp
                drawing.box(x, y, 102, 76, PALE_GREY, f"rank {rank}\nbatch {dp}\npart {tp}")
            drawing.line(left + 119, y + 38, left + 149, y + 38, stroke=ORANGE, both=True, width=2.5)
        for tp in range(2):
            drawing.line(left + 65 + 138 * tp, 125, left + 65 + 138 * tp, 141, stroke=GREEN, both=True, width=2.5)
    for dp in range(2):
        drawing.line(288, 84 + 98 * dp, 352, 84 + 98 * dp, stroke=BLUE, both=True, width=2.5)
    drawing.legend(16, 260, [(BLUE, "pp: other layers")])
    drawing.legend(180, 260, [(GREEN, "dp: other batches, same parameters")])
    drawing.legend(16, 286, [(ORANGE, "tp: parts of the same layers, same batch; most traffic, so on one host")])
    return drawing


def ring_attention():
    """Blocks of keys and values in a ring, and chunks that give each rank equal work."""
    ranks = 4
    drawing = Drawing("ring-attention", 312)
    drawing.text(150, 32, "Keys and values go round", "middle", weight="bold")
    places = [(150 + 86 * math.sin(2 * math.pi * rank / 4), 154 - 86 * math.cos(2 * math.pi * rank / 4))
              for rank in range(ranks)]
    for rank, (x1, y1) in enumerate(places):
        x2, y2 = places[(rank + 1) % ranks]
        drawing.line(*(start + part * (end - start) for part in (0.36, 0.64) for start, end in ((x1, x2), (y1, y2))),
                     tip=True)
        drawing.box(x1 - 36, y1 - 24, 72, 26, RANKS[rank], f"rank {rank}")
        drawing.box(x1 - 36, y1 + 3, 34, 24, PALE_GREY, "Q")
        drawing.box(x1 + 2, y1 + 3, 34, 24, PALE_RANKS[rank], "KV")
    drawing.text(456, 32, "Causal attention, zig-zag", "middle", weight="bold")
    size, left, top = 24, 378, 56
    work = [0] * ranks
    for row in range(2 * ranks):
        rank = min(row, 2 * ranks - 1 - row)
        drawing.text(left - 10, top + size * row + 17, f"rank {rank}", "end")
        for column in range(2 * ranks):
            seen = column <= row
            work[rank] += seen
            drawing.box(left + size * column, top + size * row, size - 2, size - 2, RANKS[rank] if seen else PALE_GREY)
    assert len(set(work)) == 1, work
    drawing.text(left + 96, top + 210, "keys", "middle")
    drawing.text(150, 294, "Queries stay where they are", "middle")
    drawing.text(456, 294, f"Every rank computes {work[0]} of {sum(work)} blocks", "middle")
    return drawing


def checkpoint():
    """Four sharded ranks save, two go on."""
    drawing = Drawing("checkpoint", 334)
    for rank in range(4):
        x = 16 + 154 * rank
        drawing.box(x, 16, 146, 56, PALE_RANKS[rank], f"rank {rank}\nshard {rank + 1} of 4")
        drawing.line(x + 73, 74, x + 73, 104, tip=True)
    drawing.frame(16, 108, 608, 104, "step-000000120: the whole model, written by rank 0")
    for place, (name, note) in enumerate([("model.bpk", "parameters"), ("optimizer.bpk", "moments"),
                                          ("state.cbor", "data position"), ("manifest.json", "SHA-256")]):
        drawing.box(28 + 148 * place, 142, 140, 58, PALE_GREY, f"{name}\n{note}")
    for rank in range(2):
        x = 16 + 308 * rank
        drawing.line(x + 150, 214, x + 150, 244, tip=True)
        drawing.box(x, 248, 300, 40, PALE_RANKS[rank], f"rank {rank}: shard {rank + 1} of 2")
    drawing.text(320, 316, "Resumed on two ranks; each sample of the epoch is still used once", "middle")
    return drawing


SKETCHES = [ranks, overlap, all_reduce, all_reduce_rounds, zero_ranks, tensor_parallel, mesh, ring_attention,
            checkpoint]
