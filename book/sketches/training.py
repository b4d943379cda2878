"""What happens in a training: numbers, memory, data and time."""

import math
import re
import statistics

from .drawing import (BLUE, Drawing, GREEN, GREY, ORANGE, PALE_BLUE, PALE_GREEN, PALE_GREY, PALE_ORANGE,
                      PALE_PINK, PALE_RANKS, PAPER, RANKS, RULE, SKY)


def training_step():
    """The calls of the first program, on two ranks."""
    drawing = Drawing("training-step", 296)
    calls = [("launch(train)", "starts the ranks"), ("Ddp::new", "copies rank 0's parameters"),
             ("ddp.backward", "averages the gradients"), ("ddp.step", "same update on every rank")]
    drawing.box(164, 156, 472, 126, PAPER, dash="5 4")
    for rank in range(2):
        x = 176 + 286 * rank
        drawing.text(x + 81, 30, f"rank {rank}", "middle", weight="bold")
        for row, (call, _) in enumerate(calls):
            drawing.box(x, 44 + 62 * row, 162, 36, PALE_RANKS[rank], call)
            if row < 3:
                drawing.line(x + 81, 82 + 62 * row, x + 81, 103 + 62 * row, tip=True)
    drawing.line(340, 124, 458, 124, stroke=ORANGE, tip=True, width=2.5)
    drawing.line(340, 186, 458, 186, stroke=ORANGE, both=True, width=2.5)
    drawing.text(399, 116, "parameters", "middle")
    drawing.text(399, 178, "gradients", "middle")
    for row, (_, note) in enumerate(calls):
        drawing.lines(16, 58 + 62 * row, wrap(note, 18))
    drawing.text(399, 262, "for each batch", "middle", GREY)
    return drawing


def wrap(text, letters):
    """In lines of at most so many letters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def conversion():
    """The program for one device, and for several."""
    drawing = Drawing("conversion", 290)
    drawing.text(96, 32, "before", "middle", weight="bold")
    drawing.text(408, 32, "with Bonfire", "middle", weight="bold")
    rows = [("DataLoader", "DatasetLoader", PALE_GREEN), ("model", "Ddp", PALE_BLUE),
            ("optimizer", "optimizer", PALE_PINK)]
    for row, (before, after, fill) in enumerate(rows):
        y = [46, 112, 214][row]
        drawing.box(36, y, 120, 40, fill, before)
        for rank in range(3):
            drawing.box(216 + 138 * rank, y, 126, 40, fill, after)
    drawing.box(216, 172, 402, 26, ORANGE, "averaged gradients")
    for x in [96, 279, 417, 555]:
        drawing.line(x, 88, x, 109, tip=True)
        drawing.line(x, 154, x, 211 if x == 96 else 169, tip=True)
        if x != 96:
            drawing.line(x, 200, x, 212, tip=True)
    for rank in range(3):
        drawing.text(279 + 138 * rank, 274, f"rank {rank}", "middle")
    drawing.text(96, 274, "one device", "middle")
    return drawing


def prepare():
    """What goes into `prepare`, and what comes out of the loop."""
    drawing = Drawing("prepare", 246)
    for row, (text, fill) in enumerate([("model", PALE_BLUE), ("data", PALE_GREEN), ("configuration", PALE_GREY)]):
        drawing.box(16, 30 + 66 * row, 116, 42, fill, text)
        drawing.line(134, 51 + 66 * row, 168, 100 + 17 * row, tip=True)
    drawing.box(172, 84, 90, 66, BLUE, "prepare")
    drawing.line(264, 117, 294, 117, tip=True)
    drawing.frame(298, 16, 160, 214, "Trainer")
    for row, text in enumerate(["next_batch", "step", "evaluate", "finish"]):
        drawing.box(312, 48 + 46 * row, 132, 32, PALE_ORANGE, text)
        if row < 3:
            drawing.line(378, 81 + 46 * row, 378, 93 + 46 * row, tip=True)
    for row, text in [(1, "parameters"), (2, "journal"), (3, "report, checkpoint")]:
        drawing.line(460, 64 + 46 * row, 490, 64 + 46 * row, tip=True)
        drawing.box(494, 48 + 46 * row, 130, 32, PALE_GREY, text)
    return drawing


def compression():
    """Bytes of one matrix, whole, in 16 bits and as two factors."""
    rows, columns, start = 1024, 1024, 46
    kinds = [("None", 4 * rows * columns), ("Bf16, Fp16", 2 * rows * columns)]
    kinds += [(f"PowerSgd, rank {rank}", 4 * rank * (rows + columns)) for rank in (32, 4)]
    drawing = Drawing("compression", 358)
    drawing.text(16, 32, f"Sent for a gradient of {rows} × {columns} numbers, in KiB", weight="bold")
    for row, (name, size) in enumerate(kinds):
        y = start + 34 * row
        drawing.text(150, y + 18, name, "end")
        width = 400 * size / kinds[0][1]
        drawing.box(160, y, width, 26, ORANGE)
        drawing.text(168 + width, y + 18, f"{size // 1024}")
    drawing.text(16, 218, "PowerSgd: two narrow factors in place of the matrix", weight="bold")
    drawing.box(160, 234, 108, 108, PALE_ORANGE, "n × m")
    drawing.text(292, 293, "≈", "middle", size=20)
    drawing.box(316, 234, 22, 108, ORANGE)
    drawing.text(327, 293, "r", "middle", PAPER)
    drawing.text(358, 293, "×", "middle")
    drawing.box(378, 277, 108, 22, ORANGE, "r")
    drawing.lines(506, 284, "(n + m)·r\nnumbers")
    return drawing


def diloco():
    """When two workers exchange, with Ddp and with DiLoCo."""
    drawing = Drawing("diloco", 282)
    steps, message, left, unit = 6, 0.8, 110, 23.8
    every = {"Ddp: an exchange in every step": 1, f"DiLoCo with {steps} local steps": steps}
    for place, (title, period) in enumerate(every.items()):
        y = 32 + 118 * place
        drawing.text(16, y, title, weight="bold")
        for worker in range(2):
            top = y + 12 + 38 * worker
            drawing.text(left - 10, top + 20, f"worker {worker}", "end")
            now = 0.0
            for step in range(2 * steps):
                drawing.box(left + unit * now, top, unit - 2, 30, RANKS[0] if worker == 0 else SKY)
                now += 1.0
                if (step + 1) % period == 0:
                    drawing.box(left + unit * now, top, unit * message - 2, 30, ORANGE)
                    now += message
    drawing.legend(16, 268, [(BLUE, "a step"), (ORANGE, "exchange with the other worker over a slow link")], 120)
    return drawing


def mixed_precision():
    """Which numbers have 16 bits in a step."""
    drawing = Drawing("mixed-precision", 232)
    drawing.frame(16, 16, 190, 200, "f32")
    drawing.frame(246, 16, 218, 200, "bf16 or f16")
    drawing.frame(504, 16, 120, 200, "f32")
    drawing.box(32, 50, 158, 44, PALE_BLUE, "parameters")
    drawing.box(32, 154, 158, 44, PALE_BLUE, "optimizer, moments")
    drawing.line(111, 152, 111, 97, tip=True)
    drawing.text(120, 129, "update")
    drawing.box(262, 50, 186, 44, PALE_ORANGE, "forward pass")
    drawing.box(262, 154, 186, 44, PALE_ORANGE, "backward pass")
    drawing.box(518, 50, 92, 44, PALE_GREEN, "loss")
    drawing.box(518, 154, 92, 44, PALE_GREEN, "× scale\n(f16)")
    drawing.line(192, 72, 258, 72, tip=True)
    drawing.line(450, 72, 514, 72, tip=True)
    drawing.line(564, 96, 564, 151, tip=True)
    drawing.line(516, 176, 452, 176, tip=True)
    drawing.line(260, 176, 194, 176, tip=True)
    drawing.text(226, 62, "cast", "middle")
    drawing.text(484, 62, "cast", "middle")
    drawing.text(355, 129, "gradients return in f32", "middle")
    return drawing


def batch_norm():
    """Mean and deviation of two ranks' batches, apart and together."""
    drawing = Drawing("batch-norm", 268)
    batches = [[1.0, 1.6, 2.1, 2.9], [2.6, 3.8, 4.3, 5.3]]
    left, unit = 150, 78

    def spread(y, values, colour):
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        drawing.line(left + unit * (mean - deviation), y, left + unit * (mean + deviation), y, stroke=colour, width=4)
        drawing.line(left + unit * mean, y - 11, left + unit * mean, y + 11, stroke=colour, width=4)

    for place, title in enumerate(["Own batch: two means", "Synchronised: one mean on both ranks"]):
        y = 32 + 116 * place
        drawing.text(16, y, title, weight="bold")
        for rank, values in enumerate(batches):
            line = y + 26 + 38 * rank
            drawing.text(left - 20, line + 5, f"rank {rank}", "end")
            drawing.line(left, line, left + 6 * unit, line, stroke=RULE)
            joint = values if place == 0 else batches[0] + batches[1]
            spread(line, joint, RANKS[rank] if place == 0 else GREEN)
            for value in values:
                drawing.box(left + unit * value - 5, line - 5, 10, 10, RANKS[rank])
    drawing.text(16, 254, "Squares: samples. Bars: mean and standard deviation that a step uses.")
    return drawing


def activation_checkpointing():
    """Memory of activations in the course of the two passes."""
    blocks, held, kept, again = 6, 1.0, 0.15, 0.5
    plain, segments, now = [(0.0, 0.0)], [(0.0, 0.0)], 0.0
    for block in range(blocks):
        now += 0.5
        plain.append((now, (block + 1) * held))
        segments += [(now, block * kept + held), (now, (block + 1) * kept)]
    turn = start = now
    for block in reversed(range(blocks)):
        # Backwards a block takes twice as long as forwards; a segment runs forwards before that.
        now += 1.0
        plain.append((now, block * held))
        segments += [(start + again, (block + 1) * kept + held), (start + again + 1.0, block * kept)]
        start += again + 1.0
    drawing = Drawing("activation-checkpointing", 262)
    left, base, unit, height = 24, 206, 580 / start, 23.0
    drawing.line(left, 44, left, base, 624, base)
    drawing.text(16, 30, "memory of activations")
    drawing.text(624, base + 20, "time", "end")
    edge = left + unit * turn
    drawing.line(edge, 48, edge, base, stroke=RULE, dash="4 3")
    drawing.text(edge - 10, 60, "forward", "end", GREY)
    drawing.text(edge + 70, 60, "backward", "start", GREY)
    for points, colour in [(plain, BLUE), (segments, ORANGE)]:
        flat = [number for x, y in points for number in (left + unit * x, base - height * y)]
        drawing.line(*flat, stroke=colour, width=2.5)
    drawing.legend(24, 248, [(BLUE, "plain: all blocks")])
    drawing.legend(208, 248, [(ORANGE, "recompute: inputs, and one block at a time")])
    return drawing


def sampler():
    """Ten samples on four ranks, with each remainder."""
    samples, ranks = 10, 4
    drawing = Drawing("sampler", 284)
    order = list(range(samples))
    drawing.text(16, 38, "order of the epoch")
    for place in order:
        drawing.box(170 + 44 * place, 20, 40, 28, RANKS[place % ranks], str(place))
    padded = order + order[:-samples % ranks]
    kinds = [("Pad", padded), ("Drop", order[:samples // ranks * ranks]), ("Exact", order)]
    for block, (name, taken) in enumerate(kinds):
        left = 84 + 184 * block
        drawing.text(left + 66, 88, name, "middle", weight="bold")
        for rank in range(ranks):
            y = 100 + 38 * rank
            if block == 0:
                drawing.text(70, y + 20, f"rank {rank}", "end")
            for place, sample in enumerate(taken[rank::ranks]):
                again = rank + ranks * place >= samples
                drawing.box(left + 46 * place, y, 40, 28, PALE_RANKS[rank] if again else RANKS[rank], str(sample))
    drawing.text(16, 270, f"Pale: repeated, so that all have {len(padded) // ranks}. "
                 f"Drop leaves out {samples % ranks} of {samples} samples.")
    return drawing


def picture_batches():
    """From a file to a batch on the device."""
    drawing = Drawing("picture-batches", 226)
    drawing.text(16, 34, "Loader: this rank's batches of indices", weight="bold")
    for batch in range(4):
        drawing.box(334 + 48 * batch, 16, 42, 28, PALE_GREY, str(batch))
        drawing.line(355 + 48 * batch, 45, 355 + 48 * batch, 59, tip=True)
    drawing.frame(16, 62, 510, 148, "prefetch: threads work ahead")
    for thread in range(2):
        y = 94 + 56 * thread
        drawing.text(28, y + 26, f"thread {thread}")
        for place, (text, fill) in enumerate([("read", PALE_GREEN), ("decode", PALE_GREEN), ("crop, flip", PALE_ORANGE),
                                              ("normalize", PALE_ORANGE)]):
            drawing.box(104 + 100 * place, y, 86, 42, fill, text)
            if place < 3:
                drawing.line(191 + 100 * place, y + 21, 202 + 100 * place, y + 21, tip=True)
        drawing.line(492, y + 21, 542, 128 + 16 * thread, tip=True)
    drawing.box(546, 94, 78, 98, BLUE, "device:\ntraining")
    return drawing


def learning_rate(root):
    """The two policies of the vision example, with its defaults."""
    defaults = (root / "examples/vision/src/config/sections.rs").read_text()

    def default(name):
        return float(re.search(rf"\b{name}: (?:some\()?([\d.]+)", defaults)[1])

    epochs, warmup = int(default("max_epoch")), default("warmup_epochs")
    factor, steps, multiplier = default("warmup_factor"), [0, 30, 60, 90], default("lr_mult")
    drawing = Drawing("learning-rate", 262)
    left, base, unit, height = 64, 206, 5.5, 150.0

    def warmed(epoch, rate):
        return rate * (1.0 if epoch >= warmup else factor * (1 - epoch / warmup) + epoch / warmup)

    cosine = [warmed(e, (1 + math.cos(math.pi * e / epochs)) / 2) for e in range(epochs)]
    stairs = [warmed(e, multiplier ** (sum(step <= e for step in steps) - 1)) for e in range(epochs)]
    drawing.text(16, 30, "share of BASE_LR")
    drawing.line(left, 44, left, base, 624, base)
    for share in [0.5, 1.0]:
        drawing.line(left, base - height * share, 624, base - height * share, stroke=RULE, dash="4 3")
        drawing.text(left - 10, base - height * share + 5, f"{share:g}", "end")
    for epoch in range(0, epochs + 1, 20):
        drawing.text(left + unit * epoch, base + 20, str(epoch), "middle")
    for values, colour in [(cosine, BLUE), (stairs, ORANGE)]:
        # Each epoch has one rate.
        points = [number for epoch, rate in enumerate(values) for step in (0, 1)
                  for number in (left + unit * (epoch + step), base - height * rate)]
        drawing.line(*points, stroke=colour, width=2.5)
    drawing.legend(64, 250, [(BLUE, "cos")])
    drawing.legend(140, 250, [(ORANGE, f"steps at {', '.join(map(str, steps[1:]))}")])
    drawing.text(624, 250, "epoch", "end")
    return drawing


def pretrained():
    """Names of a file and of a model, and what becomes of them."""
    drawing = Drawing("pretrained", 276)
    drawing.text(112, 32, "file", "middle", weight="bold")
    drawing.text(368, 32, "model", "middle", weight="bold")
    rows = [("module.conv1.weight", "conv1.weight", GREEN, "loaded"),
            ("fc.weight, 1000 rows", "fc.weight, 5 rows", ORANGE, "skipped"),
            (None, "head.bias", ORANGE, "missing"), ("old.weight", None, GREY, "unexpected")]
    for row, (source, target, colour, verdict) in enumerate(rows):
        y = 46 + 48 * row
        if source:
            drawing.box(16, y, 192, 34, PALE_GREY, source)
        if target:
            drawing.box(272, y, 192, 34, PALE_BLUE, target)
        if source and target:
            drawing.line(210, y + 17, 268, y + 17, tip=True, dash="" if verdict == "loaded" else "4 3")
        drawing.box(512, y, 112, 34, colour, verdict)
    drawing.text(16, 258, "Skipped and missing parameters keep their initial values.")
    return drawing


SKETCHES = [training_step, conversion, prepare, compression, diloco, mixed_precision, batch_norm,
            activation_checkpointing, sampler, picture_batches, pretrained]
FROM_SOURCES = [learning_rate]
