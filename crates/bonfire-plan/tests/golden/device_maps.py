"""Device maps of 200 random models, as Hugging Face's accelerate makes them.

    pip install accelerate==1.15.0 torch && python device_maps.py > device_maps.json

A case is [tree, budgets, strategy, classes, fallback, map]. A tree is [class, parameters, buffers, children]: of a
parameter its name, bytes and number (those with the same number are one), of a buffer its name and bytes, of a child
its name and tree. The map is a text where accelerate raises an error.
"""

import copy
import json
import logging
import random
import sys
import warnings

import accelerate
import torch
from accelerate.utils import modeling

CASES = 200
CLASSES = ["Block", "Layer", "Norm", "Attention", "Head"]


def tie_order(model):
    """Python's order of sets differs from run to run; this one is that of names."""
    return sorted(find_tied_parameters(model))


find_tied_parameters, modeling.find_tied_parameters = modeling.find_tied_parameters, tie_order


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.identities = 0

    def size(self):
        return 4 * self.random.choice([1, 2, 3, 5, 8, 16, 25, 40, 100])

    def parameters(self, most):
        made = []
        for name in ["weight", "bias", "scale"][: self.random.randint(0, most)]:
            self.identities += 1
            made.append([name, self.size(), self.identities])
        return made

    def tree(self, depth):
        chance = self.random.random()
        if depth == 0 or chance < 0.3:
            buffers = [["mean", self.size()]] if self.random.random() < 0.15 else []
            return [self.random.choice(CLASSES[1:]), self.parameters(2), buffers, []]
        # A list of equal blocks, a block of its own, or something irregular.
        if chance < 0.6:
            block = self.tree(depth - 1)
            children = [[str(index), self.renumbered(block)] for index in range(self.random.randint(1, 12))]
            return ["List", [], [], children]
        names = self.random.sample(["attn", "mlp", "norm", "proj", "gate", "embed", "head"], self.random.randint(1, 4))
        own = self.parameters(1) if self.random.random() < 0.2 else []
        buffers = [["table", self.size()]] if self.random.random() < 0.08 else []
        return ["Block", own, buffers, [[name, self.tree(depth - 1)] for name in names]]

    def renumbered(self, tree):
        tree = copy.deepcopy(tree)
        pending = [tree]
        while pending:
            _, parameters, _, children = pending.pop()
            for parameter in parameters:
                self.identities += 1
                parameter[2] = self.identities
            pending.extend(child for _, child in children)
        return tree

    def tie(self, tree):
        """Makes some parameters of the same size one."""
        found, pending = [], [tree]
        while pending:
            _, parameters, _, children = pending.pop()
            found.extend(parameters)
            pending.extend(child for _, child in children)
        for _ in range(self.random.choice([0, 0, 1, 1, 2])):
            if len(found) > 1:
                one, other = self.random.sample(found, 2)
                other[1:] = one[1:]


def module(tree, tensors):
    name, parameters, buffers, children = tree
    made = type(name, (torch.nn.Module,), {})()
    for name, size, identity in parameters:
        tensor = torch.nn.Parameter(torch.empty(size // 4, device="meta"))
        made.register_parameter(name, tensors.setdefault(identity, tensor))
    for name, size in buffers:
        made.register_buffer(name, torch.empty(size // 4, device="meta"))
    for name, child in children:
        made.add_module(name, module(child, tensors))
    return made


def case(seed):
    maker = Maker(seed)
    tree = ["Model", maker.parameters(1) if maker.random.random() < 0.3 else [], [], []]
    names = ["embed", "layers", "norm", "head"][: maker.random.randint(1, 4)]
    tree[3] = [[name, maker.tree(maker.random.randint(0, 3))] for name in names]
    maker.tie(tree)
    model = module(tree, {})
    total = modeling.compute_module_sizes(model)[""]
    share = lambda: int(total * maker.random.choice([0, 0.1, 0.2, 0.35, 0.5, 0.7, 1, 1.5]))
    devices = maker.random.randint(0, 4)
    names = list(range(devices)) if maker.random.random() < 0.9 else [2 * index + 1 for index in range(devices)]
    budgets = {name: share() for name in names}
    if maker.random.random() < 0.8:
        budgets["cpu"] = share() * 2
    strategy = maker.random.choice(["sequential", "balanced", "balanced_low_0"])
    kept = maker.random.sample(CLASSES, maker.random.randint(0, 2))
    present = {type(one).__name__ for one in model.modules()}
    kept = [name for name in kept if name in present]
    fallback = maker.random.random() < 0.2
    try:
        memory = dict(budgets)
        if strategy != "sequential":
            memory = modeling.get_balanced_memory(
                model, memory, kept or None, low_zero=strategy == "balanced_low_0"
            )
        found = modeling.infer_auto_device_map(model, memory, kept or None, fallback_allocation=fallback)
        found = {name: str(place) for name, place in found.items()}
    except (IndexError, KeyError) as error:
        found = type(error).__name__
    budgets = {str(name): size for name, size in budgets.items()}
    return [tree, budgets, strategy, kept, fallback, found]


logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
cases, seed = [], 0
while len(cases) < CASES:
    made = case(seed)
    seed += 1
    if len(json.dumps(made)) < 3000:
        cases.append(made)
made_with = f"accelerate {accelerate.__version__}, torch {torch.__version__.split('+')[0]}"
lines = ",\n".join(json.dumps(made, separators=(",", ":")) for made in cases)
sys.stdout.write(f'{{"made_with":"{made_with}","command":"python device_maps.py","cases":[\n{lines}\n]}}\n')
