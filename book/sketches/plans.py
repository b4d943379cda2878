"""Drawings of what Bonfire computes: plans, schedules, simulated and measured times."""

import json
import math
import re
import struct
import subprocess

from .drawing import (BLUE, Drawing, GREEN, GREY, INK, ORANGE, PALE_GREY, PINK, RULE, SKY, YELLOW)


def output(command, **options):
    command = [str(word) for word in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}"
    return done.stdout


def model(folder):
    """A file with the shapes of a model of 6.7 thousand million parameters, and no values."""
    width, inner, layers_count, words = 4096, 11008, 32, 32000
    shapes = {"embed": [words, width], "head": [words, width]}
    for layer in range(layers_count):
        shapes |= {f"{layer}.{name}": [width, width] for name in "qkvo"}
        shapes |= {f"{layer}.gate": [inner, width], f"{layer}.up": [inner, width], f"{layer}.down": [width, inner]}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        # A file of zeros that takes no room.
        file.truncate(8 + len(text) + end)
    return path


def gibibytes(text):
    number, unit = (text.split() + [""])[:2]
    return 0.0 if number == "-" else float(number) / {"GiB": 1, "MiB": 1024, "KiB": 1 << 20, "B": 1 << 30}[unit]


def placements(table):
    """The rows of a plan: a placement, and its values by column."""
    head = next(place for place, line in enumerate(table) if line.startswith("placement"))
    names = re.split(r"\s+", table[head].strip())[1:]
    rows = [re.split(r"\s{2,}", line.strip()) for line in table[head + 1:]]
    return [(row[0], dict(zip(names, row[1:]))) for row in rows if len(row) > 5]


def bars(drawing, rows, kinds, top, unit, scale, label):
    """A bar for each row, of parts by kind, with their sum behind it."""
    left = 100
    for place, (name, value) in enumerate(rows):
        x, y = left, top + 44 * place
        drawing.text(left - 10, y + 21, name, "end")
        for kind, colour, _ in kinds:
            size = gibibytes(value[kind]) * unit
            if size * scale > 0.5:
                drawing.box(x, y, size * scale, 32, colour, label(size) if size * scale > 38 else "")
            x += size * scale
        drawing.text(624, y + 21, label((x - left) / scale), "end", weight="bold")


def zero_memory(bonfire, folder, _):
    """What `bonfire plan` says of each placement."""
    ranks = 8
    # What a pass keeps is in no file; so much is usual for a sequence or two of such a model.
    table = output([bonfire, "plan", model(folder), "--ranks", ranks, "--activations", "24GiB"]).splitlines()
    rows = placements(table)
    kinds = [("parameters", BLUE, "parameters"), ("optimizer", GREEN, "optimizer"), ("buckets", ORANGE, "gradients"),
             ("activations", SKY, "activations"), ("unit", PINK, "a gathered parameter")]
    drawing = Drawing("zero-memory", 52 + 44 * len(rows) + 52)
    billions = float(table[0].split()[0]) / 1000
    drawing.text(16, 32, f"{billions:.1f} billion parameters, f32, AdamW: GiB on each of {ranks} ranks", weight="bold")
    # At another time activations are gone, and a bar without them would seem to be another placement's merit.
    assert {value["when"] for _, value in rows} == {"in a pass"}, table
    longest = max(sum(gibibytes(value[kind]) for kind, _, _ in kinds) for _, value in rows)
    bars(drawing, rows, kinds, 50, 1, 460 / longest, lambda size: f"{size:.0f}")
    y = 50 + 44 * len(rows) + 16
    drawing.legend(100, y, [(colour, meaning) for _, colour, meaning in kinds[:3]])
    drawing.legend(100, y + 24, [(colour, meaning) for _, colour, meaning in kinds[3:]])
    return drawing


def memory_plan(_bonfire, _folder, root):
    """The plan that `planning.md` prints, beside its limit."""
    page = (root / "book/src/planning.md").read_text()
    table = page[page.index("\nplacement "):].split("\n```")[0].splitlines()
    limit = int(re.search(r"fits (\d+) MiB", page)[1])
    rows = placements(table)
    kinds = [("parameters", BLUE, "parameters"), ("optimizer", GREEN, "optimizer"), ("activations", SKY, "activations"),
             ("buckets", ORANGE, "buckets"), ("unit", PINK, "unit"), ("program", GREY, "program")]
    drawing = Drawing("memory-plan", 66 + 44 * len(rows) + 56)
    drawing.text(16, 32, "Planned memory of a rank, in MiB", weight="bold")
    scale = 460 / max(1024 * gibibytes(value["all"]) for _, value in rows)
    y = 62 + 44 * len(rows)
    drawing.line(100 + limit * scale, 40, 100 + limit * scale, y, dash="4 3")
    bars(drawing, rows, kinds, 62, 1024, scale, lambda size: f"{size:.0f}")
    drawing.text(92 + limit * scale, 52, f"limit: {limit}", "end")
    drawing.legend(100, y + 24, [(colour, meaning) for _, colour, meaning in kinds[:3]], 150)
    drawing.legend(100, y + 46, [(colour, meaning) for _, colour, meaning in kinds[3:]], 150)
    return drawing


PASSES = {"F": SKY, "B": BLUE, "I": GREEN, "W": YELLOW}


def schedule(bonfire, folder, kind):
    """Actions of each rank: rank, pass, micro-batch, stage, start and length, in forward passes; and the whole."""
    path = folder / "timeline.json"
    printed = output([bonfire, "simulate", "pipeline", "--stages", 4, "--micro-batches", 8, "--schedule", kind,
                      "--timeline", path])
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "pass"]
    actions = [(event["tid"], event["name"].lstrip("0123456789")[0], event["args"]["micro_batch"],
                event["args"]["stage"], event["ts"] / 1000, event["dur"] / 1000) for event in events]
    said = dict(re.findall(r"^(bubble|makespan) ([\d.]+)", printed, re.MULTILINE))
    return actions, float(said["makespan"]), said["bubble"]


def draw_schedule(drawing, actions, makespan, top, left, unit):
    """Boxes of all ranks, as one path for each kind of pass, and numbers as one text for each rank."""
    for rank in range(4):
        y = top + 20 * rank
        drawing.text(left - 8, y + 14, f"rank {rank}", "end")
        drawing.box(left, y, makespan * unit, 18, PALE_GREY)
    for kind, colour in PASSES.items():
        boxes = "".join(f"M{left + start * unit:.1f} {top + 20 * rank + 1}h{length * unit - 1:.1f}v16"
                        f"h-{length * unit - 1:.1f}z" for rank, what, _, _, start, length in actions if what == kind)
        if boxes:
            drawing.parts.append(f'<path d="{boxes}" fill="{colour}"/>')
    numbered = min(length for *_, length in actions) * unit >= 11
    for rank in range(4 if numbered else 0):
        for ink, kinds in [(INK, "FIW"), ("#fff", "B")]:
            own = sorted((start + length / 2, micro) for r, what, micro, _, start, length in actions
                         if r == rank and what in kinds)
            if own:
                places = " ".join(f"{left + middle * unit - 3.4:.1f}" for middle, _ in own)
                drawing.parts.append(f'<text x="{places}" y="{top + 20 * rank + 13.5}" font-size="12" fill="{ink}">'
                                     f'{"".join(str(micro) for _, micro in own)}</text>')


def pipeline(bonfire, folder, _):
    """One schedule, with its bubble."""
    actions, makespan, bubble = schedule(bonfire, folder, "1f1b")
    drawing = Drawing("pipeline", 168)
    draw_schedule(drawing, actions, makespan, 44, 70, 554 / makespan)
    drawing.text(16, 30, f"1F1B: 4 ranks, 8 micro-batches, bubble {bubble} %", weight="bold")
    drawing.legend(70, 150, [(SKY, "forward"), (BLUE, "backward"), (PALE_GREY, "bubble: the rank waits")])
    return drawing


def pipeline_schedules(bonfire, folder, _):
    """All schedules below each other, on one scale of time."""
    kinds = [("gpipe", "GPipe"), ("1f1b", "1F1B"), ("interleaved", "interleaved 1F1B"), ("zb-h1", "ZB-H1"),
             ("zbv", "ZBV")]
    plans = [(title, *schedule(bonfire, folder, kind)) for kind, title in kinds]
    unit = 554 / max(makespan for _, _, makespan, _ in plans)
    drawing = Drawing("pipeline-schedules", 118 * len(plans) + 66)
    for place, (title, actions, makespan, bubble) in enumerate(plans):
        top = 38 + 118 * place
        drawing.text(16, top - 8, f"{title}: bubble {bubble} %, {makespan:g} units", weight="bold")
        draw_schedule(drawing, actions, makespan, top, 70, unit)
    y = 118 * len(plans) + 30
    drawing.legend(70, y, [(SKY, "F: forward"), (BLUE, "B: backward"), (PALE_GREY, "bubble")])
    drawing.legend(70, y + 22, [(GREEN, "I: gradient of the input"), (YELLOW, "W: gradient of the weights")])
    return drawing


def all_reduce_peers(_bonfire, _folder, root):
    """The bandwidth of an all-reduce beside that of other libraries, as a run of benches/peers has measured it."""
    report = json.loads((root / "benches/results/2026-11-29-intel-xeon-2-cores.json").read_text())
    size, time_us = 64 << 20, {}
    for row in report["rows"]:
        if row["ranks"] == 2 and row["size_bytes"] == size:
            time_us.setdefault(row["program"], []).append(row["time_us"])
    groups = [
        ("in shared memory", [("Bonfire", "bonfire shm, region"), ("Open MPI", "Open MPI shm"),
                              ("MPICH", "MPICH shm")]),
        ("over TCP", [("Bonfire", "bonfire tcp"), ("Open MPI", "Open MPI tcp"), ("MPICH", "MPICH tcp"),
                      ("gloo", "gloo")]),
    ]
    speeds = {program: size / sorted(times)[len(times) // 2] / 1e3 for program, times in time_us.items()}
    scale = 360 / max(speeds[program] for _, rows in groups for _, program in rows)
    drawing = Drawing("all-reduce-peers", 304)
    drawing.text(16, 32, "All-reduce of 64 MiB, two ranks on one host: GB/s, more is better", weight="bold")
    y = 50
    for title, rows in groups:
        drawing.text(16, y + 19, title)
        for name, program in rows:
            speed = speeds[program]
            drawing.text(212, y + 19, name, "end")
            drawing.box(222, y, scale * speed, 26, ORANGE if name == "Bonfire" else GREY)
            drawing.text(230 + scale * speed, y + 19, f"{speed:.1f}")
            y += 32
        y += 12
    return drawing


def all_reduce_times(bonfire, folder, _):
    """Simulated time of some algorithms by size, and which is the fastest."""
    sizes = [1 << shift for shift in range(10, 31, 2)]
    shown = {"one_shot": BLUE, "two_shot": ORANGE, "double_tree": GREEN, "ring": PINK}
    times = {name: [] for name in shown}
    for size in sizes:
        path = folder / "times.json"
        output([bonfire, "simulate", "--ranks", 8, "--link", "nvlink-h100", "--op", "all-reduce", "--bytes", size,
                "--json", path])
        for row in json.loads(path.read_text()):
            if row["algorithm"] in times:
                times[row["algorithm"]].append(row["time_us"])
    drawing = Drawing("all-reduce-times", 346)
    left, base = 84, 272
    low, high = (math.log10(bound([time for line in times.values() for time in line])) for bound in (min, max))
    drawing.text(16, 32, "All-reduce of 8 ranks, NVLink of H100, simulated", weight="bold")

    def at(size, time):
        return (left + 530 * (math.log2(size) - 10) / 20, base - 220 * (math.log10(time) - low) / (high - low))

    for place, name in [(10, "1 KiB"), (15, "32 KiB"), (20, "1 MiB"), (25, "32 MiB"), (30, "1 GiB")]:
        x, _ = at(1 << place, 1)
        drawing.line(x, base - 220, x, base, stroke=RULE)
        drawing.text(x, base + 20, name, "end" if place == 30 else "middle")
    for time, name in [(10, "10 µs"), (100, "100 µs"), (1000, "1 ms"), (10000, "10 ms")]:
        if low <= math.log10(time) <= high:
            _, y = at(1, time)
            drawing.line(left, y, left + 530, y, stroke=RULE)
            drawing.text(left - 8, y + 5, name, "end")
    for name, line in times.items():
        points = [number for size, time in zip(sizes, line) for number in at(size, time)]
        drawing.line(*points, stroke=shown[name], width=2.5)
    for place, size in enumerate(sizes[:-1]):
        best = min(times, key=lambda name: times[name][place] + times[name][place + 1])
        x, _ = at(size, 1)
        drawing.box(x, base + 30, 53, 10, shown[best])
    drawing.text(left - 8, base + 40, "fastest", "end")
    drawing.legend(left, 332, [(colour, name) for name, colour in shown.items()], 130)
    return drawing


PLANS = [zero_memory, memory_plan, pipeline, pipeline_schedules, all_reduce_peers, all_reduce_times]
