"""Processes, devices, hosts and failures, and the crates."""

import math
import re

from .drawing import (BLUE, Drawing, GREEN, GREY, ORANGE, PALE_BLUE, PALE_GREEN, PALE_GREY, PALE_ORANGE,
                      PALE_RANKS, PINK, RULE, SKY, YELLOW)


def layers(root):
    """Who builds on whom, from the crates that there are."""
    rows = [
        ("programs", GREY, ["your crate", "examples", "bonfire-cli"]),
        ("one crate to depend on", BLUE, ["bonfire"]),
        ("around a training", SKY, ["bonfire-learner", "bonfire-report", "bonfire-data", "bonfire-config"]),
        ("training: Burn is here", GREEN, ["bonfire-train", "bonfire-parallel", "bonfire-optim"]),
        ("ranks, and exchange", ORANGE, ["bonfire-launch", "bonfire-collective", "bonfire-connect",
                                         "bonfire-gpu", "bonfire-kernels"]),
        ("plans, files, arithmetic, system", PINK, ["bonfire-plan", "bonfire-checkpoint", "bonfire-layers",
                                                    "bonfire-sys", "bonfire-cuda"]),
    ]
    # For tests alone.
    tools = {"bonfire-testkit", "bonfire-laboratory", "cubecl-llvm", "cuda-stand-in"}
    drawn = {name for _, _, names in rows for name in names}
    missing = {path.name for path in (root / "crates").iterdir()} - drawn - tools
    assert not missing, f"layers() does not draw {missing}"
    drawing = Drawing("layers", 72 * len(rows) + 16)
    for row, (title, colour, names) in enumerate(rows):
        y = 34 + 72 * row
        drawing.text(16, y - 6, title)
        width = 616 / len(names)
        for place, name in enumerate(names):
            drawing.box(16 + place * width, y, width - 8, 36, colour, name.removeprefix("bonfire-"))
    return drawing


def own_crate(root):
    """Which crates a program builds on."""
    burn = re.search(r'^burn = \{ version = "=([\d.]+)"', (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    drawing = Drawing("own-crate", 244)
    drawing.frame(16, 16, 186, 188, "my-training/")
    drawing.box(32, 50, 154, 40, PALE_GREY, "Cargo.toml")
    drawing.box(32, 100, 154, 88, PALE_BLUE, "src/main.rs\nlaunch(train)")
    drawing.frame(262, 16, 186, 188, "bonfire/")
    drawing.box(278, 50, 154, 40, BLUE, "crates/bonfire")
    for row, text in enumerate(["flex", "cuda", "wgpu", "learner", "images", "weights"]):
        drawing.box(278 + 79 * (row % 2), 112 + 28 * (row // 2), 75, 24, PALE_GREEN, text)
    drawing.text(355, 106, "features", "middle", GREY)
    drawing.box(508, 50, 116, 138, PALE_ORANGE, f"Burn\n{burn}\nexactly")
    drawing.line(188, 70, 274, 70, tip=True)
    drawing.text(231, 62, "path", "middle")
    drawing.line(434, 70, 504, 70, tip=True)
    drawing.text(16, 228, "Your crate and Bonfire use the same version of Burn.")
    return drawing


def launching():
    """Which process starts which, and who talks to whom."""
    drawing = Drawing("launching", 288)
    for host in range(2):
        left = 16 + 326 * host
        drawing.frame(left, 16, 282, 178, f"host {host}")
        drawing.box(left + 14, 46, 122, 44, BLUE, "launcher")
        drawing.box(left + 152, 46, 116, 44, PALE_GREY, "guard process")
        for place in range(2):
            rank, x = 2 * host + place, left + 14 + 132 * place
            drawing.box(x, 126, 122, 54, PALE_RANKS[rank], f"rank {rank}\nlocal_rank {place}")
            drawing.line(left + 75, 92, x + 61, 123, tip=True)
            drawing.line(x + 61, 182, x + 61, 215, stroke=GREEN, tip=True, dash="4 3")
        drawing.line(left + 136, 153, left + 146, 153, stroke=ORANGE, width=2.5)
    drawing.line(286, 153, 354, 153, stroke=ORANGE, both=True, width=2.5)
    drawing.box(16, 218, 608, 32, PALE_GREEN, "rendezvous store, in the launcher of host 0: ranks find each other")
    drawing.legend(16, 274, [(ORANGE, "direct connections for data, also between hosts")])
    return drawing


def failure_timeline():
    """Four ranks, one of which is killed, and their launcher."""
    drawing = Drawing("failure-timeline", 300)
    left, killed, known = 92, 268, 296
    for rank in range(4):
        y = 44 + 40 * rank
        drawing.text(left - 10, y + 20, f"rank {rank}", "end")
        for step in range(3):
            start, end = left + 68 * step, left + 68 * step + 64
            if rank == 2 and end > killed:
                end = killed
            drawing.box(start, y, min(end, known) - start, 30, SKY, f"{step + 10}")
        if rank == 2:
            drawing.line(killed - 1, y - 3, killed + 13, y + 33, stroke=ORANGE, width=3)
            drawing.line(killed + 13, y - 3, killed - 1, y + 33, stroke=ORANGE, width=3)
            drawing.text(killed + 36, y + 20, "kill -9")
        else:
            drawing.box(known, y, 170, 30, ORANGE, "error: rank 2 failed")
            drawing.box(known + 174, y, 108, 30, PALE_GREY, "flight record")
    drawing.text(left - 10, 224, "launcher", "end")
    drawing.box(left, 204, known + 282 - left, 30, PALE_BLUE, "runs all ranks")
    drawing.box(known + 286, 204, 42, 30, BLUE, "")
    drawing.line(known + 307, 236, known + 307, 250, stroke=BLUE)
    drawing.text(624, 268, "verdict: rank 2 was killed by signal 9 (SIGKILL)", "end")
    drawing.text(624, 288, "with --max-restarts: all ranks start again and resume", "end", GREY)
    drawing.text(left, 30, "step")
    return drawing


def failure_times(root):
    """How long the other ranks wait, by what has happened to one."""
    def seconds(path, pattern):
        return int(re.search(pattern, (root / path).read_text())[1])

    options = "crates/bonfire-collective/src/options.rs"
    silence = seconds(options, r"const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs\((\d+)\)")
    deadline = seconds(options, r"timeout: Duration::from_secs\((\d+)\)")
    warning = seconds("crates/bonfire-collective/src/health/query.rs",
                      r"const WARN_AFTER: Duration = Duration::from_secs\((\d+)\)")
    drawing = Drawing("failure-times", 300)
    left, decade = 190, 104.0

    def at(time):
        return left + decade * (math.log10(time) + 1)

    cases = [("killed, or panicked", 0.1, "at once"), ("frozen, or host lost", silence, "no heartbeat"),
             ("busy elsewhere", deadline, "deadline")]
    drawing.text(16, 32, "How long the other ranks wait for rank 2", weight="bold")
    for time, label in [(0.1, "0.1 s"), (1, "1 s"), (silence, f"{silence} s"), (warning, f"{warning} s"),
                        (deadline, f"{deadline} s")]:
        drawing.line(at(time), 48, at(time), 238, stroke=RULE, dash="4 3")
        drawing.text(at(time), 258, label, "middle")
    for row, (cause, end, text) in enumerate(cases):
        y = 60 + 60 * row
        drawing.lines(16, y + 22, cause)
        drawing.box(left - 30, y, at(end) - left + 30, 32, PALE_ORANGE)
        drawing.box(at(end) - 5, y, 10, 32, ORANGE)
        if end == deadline:
            drawing.box(at(warning) - 4, y, 8, 32, YELLOW)
            drawing.text(at(warning) - 12, y + 21, "warning", "end")
        if end > 1:
            drawing.text(at(end) - 12, y + 21, text, "end")
        else:
            drawing.text(at(end) + 12, y + 21, text)
    drawing.legend(left - 30, 284, [(PALE_ORANGE, "wait"), (ORANGE, "error on every rank")])
    return drawing


def device_map():
    """Where a model's blocks are, and where they compute."""
    drawing = Drawing("device-map", 270)
    places = [("device 0", PALE_BLUE, ["block 0", "block 1"]), ("cpu: host memory", PALE_GREEN, ["block 2", "block 3"]),
              ("disk: the file", PALE_GREY, ["block 4", "block 5"])]
    for column, (title, fill, blocks) in enumerate(places):
        x = 16 + 212 * column
        drawing.frame(x, 92, 184, 126, title)
        for row, block in enumerate(blocks):
            drawing.box(x + 14, 122 + 46 * row, 156, 36, fill, block)
    drawing.box(16, 16, 608, 42, BLUE, "device 0 computes: block 0, 1, 2, 3, 4, 5")
    drawing.line(108, 90, 108, 61, tip=True)
    for x, text in [(320, "copied on use"), (532, "read ahead, copied")]:
        drawing.line(x, 90, x, 61, tip=True, dash="4 3")
        drawing.text(x - 10, 80, text, "end")
    drawing.text(16, 250, "Blocks of host memory and of the file are freed on the device after their use.")
    return drawing


def learner():
    """What rank 0 does for the others under Burn's learner."""
    drawing = Drawing("learner", 252)
    for rank in range(4):
        x = 16 + 154 * rank
        drawing.text(x + 73, 32, f"rank {rank}", "middle", weight="bold")
        drawing.box(x, 44, 146, 34, PALE_GREEN, f"slice {rank} of 4")
        drawing.line(x + 73, 80, x + 73, 90, tip=True)
        drawing.box(x, 92, 146, 34, PALE_BLUE, "TrainStep")
        drawing.line(x + 73, 128, x + 73, 140, tip=True)
    drawing.box(16, 142, 608, 34, ORANGE, "averaged gradients, and the loss of all ranks")
    drawing.line(89, 178, 89, 192, tip=True)
    drawing.box(16, 194, 300, 42, PALE_GREY, "display, metrics, checkpoints")
    drawing.text(334, 220, "on rank 0 only")
    return drawing


def gpu_paths():
    """How gradients go between ranks with GPUs."""
    drawing = Drawing("gpu-paths", 302)
    for host in range(2):
        left = 16 + 340 * host
        drawing.frame(left, 16, 268, 182, f"host {host}")
        for place in range(2):
            x = left + 14 + 134 * place
            drawing.box(x, 46, 106, 52, PALE_RANKS[2 * host + place], f"rank {2 * host + place}\nGPU {place}")
            drawing.line(x + 53, 100, x + 53, 140, stroke=GREY, both=True, dash="4 3")
        drawing.line(left + 122, 72, left + 146, 72, stroke=GREEN, both=True, width=2.5)
        drawing.box(left + 14, 144, 240, 40, PALE_GREY, "host memory")
    drawing.line(272, 72, 368, 72, stroke=BLUE, both=True, width=2.5)
    drawing.line(272, 164, 368, 164, stroke=GREY, both=True, dash="4 3")
    for row, (colour, text) in enumerate([(GREEN, "one host: from GPU to GPU, without NCCL"),
                                          (BLUE, "several hosts: NCCL, if it is installed"),
                                          (GREY, "otherwise: through host memory, then shared memory or TCP")]):
        drawing.legend(16, 228 + 28 * row, [(colour, text)])
    return drawing


def staged():
    """Gradients that pass through host memory, a bucket at a time."""
    drawing = Drawing("staged", 236)
    for rank in range(2):
        left = 16 + 326 * rank
        drawing.frame(left, 16, 282, 142, f"rank {rank}")
        drawing.box(left + 14, 46, 112, 44, PALE_RANKS[rank], "adapter")
        drawing.box(left + 158, 46, 110, 44, PALE_GREY, "gradients")
        drawing.line(left + 128, 68, left + 154, 68, tip=True)
        drawing.box(left + 158, 108, 110, 38, PALE_ORANGE, "bucket")
        drawing.line(left + 213, 92, left + 213, 105, tip=True)
        drawing.text(left + 70, 132, "host memory", "middle")
        drawing.line(left + 213, 148, left + 213, 172, both=True, stroke=ORANGE)
    drawing.box(16, 176, 608, 44, ORANGE, "all-reduce of a bucket, while the adapter computes the next one")
    return drawing


SKETCHES = [launching, failure_timeline, device_map, learner, gpu_paths, staged]
FROM_SOURCES = [layers, own_crate, failure_times]
