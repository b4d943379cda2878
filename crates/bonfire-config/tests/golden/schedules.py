"""Rates of DeepSpeed's own schedulers, for tests/schedules.rs, step by step as its engine has them: the scheduler is
made, and called after each step of the optimizer.

Made with the file deepspeed/runtime/lr_schedules.py of DeepSpeed edaa7221, alone, with stand-ins for what it imports; that
of the source archive of 0.19.8 has the same rates.

    python3 schedules.py DeepSpeed/deepspeed/runtime/lr_schedules.py > schedules.json
"""

import importlib.util
import json
import sys
import types


class Optimizer:
    def __init__(self, rate):
        self.param_groups = [{"lr": rate, "betas": (0.9, 0.999)}]
        self.defaults = {"betas": (0.9, 0.999)}


class Logger:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name == "Optimizer":
            return Optimizer
        if name == "is_tensor":
            return lambda value: False
        if name == "logger":
            return Logger()
        return type(name, (), {})


for name in ("torch", "torch.optim", "deepspeed", "deepspeed.utils"):
    sys.modules[name] = Anything(name)
spec = importlib.util.spec_from_file_location("lr_schedules", sys.argv[1])
schedules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedules)

CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}),
    ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 3e-4, "warmup_num_steps": 10, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_max_lr": 1e-3}),
    ("WarmupDecayLR", {"total_num_steps": 100, "warmup_num_steps": 20}),
    ("WarmupDecayLR", {"total_num_steps": 50, "warmup_num_steps": 10, "warmup_min_lr": 1e-6, "warmup_max_lr": 0.1, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 100, "warmup_num_steps": 20}),
    ("WarmupCosineLR", {"total_num_steps": 60, "warmup_num_steps": 5, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05, "warmup_type": "linear"}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 20}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "decay_lr_rate": 0.5, "cycle_first_step_size": 10, "cycle_second_step_size": 30, "decay_step_size": 5, "decay_mom_rate": 0.1}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 12, "cycle_first_stair_count": 4, "cycle_second_stair_count": 3, "cycle_momentum": False, "decay_step_size": 5}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 5, "lr_range_test_staircase": True}),
]

found = []
for name, params in CASES:
    optimizer = Optimizer(2e-3)
    scheduler = getattr(schedules, name)(optimizer, **params)
    steps = [0, 1, 2, 3, 5, 8, 9, 10, 11, 19, 20, 21, 29, 30, 39, 40, 41, 45, 59, 60, 99, 100, 150, 999, 1000, 5000]
    trained = []
    for _ in range(steps[-1] + 1):
        trained.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    rates = [trained[step] for step in steps]
    found.append({"type": name, "params": params, "steps": steps, "rates": rates})
print(json.dumps({"optimizer_rate": 2e-3, "cases": found}))
