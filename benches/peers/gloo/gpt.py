"""One rank of nanoGPT's CPU preset under torch's DistributedDataParallel over gloo:

    gpt.py STEPS WINDOWS

The model, the optimizer and the clipping are those of `gpt --preset nanogpt-cpu`: 4 pre-norm blocks of width 128
with 4 heads, windows of 64 characters, no biases, an output head that shares the embedding's matrix; AdamW in its
fused form, two groups, gradients clipped to a norm of 1. The windows are random: only the time counts. The
environment says which rank this is; rank 0 prints one JSON object. The first tenth of the steps is not counted.
"""

import json
import math
import sys
import time

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH = 65, 64, 4, 4, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, bias=False)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attended = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.LayerNorm(WIDTH, bias=False)
        self.inner = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.outer = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, stream):
        windows, tokens, _ = stream.shape
        parts = self.query_key_value(self.attention_norm(stream)).split(WIDTH, dim=2)
        query, key, value = (
            part.view(windows, tokens, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attended(seen.transpose(1, 2).reshape(windows, tokens, WIDTH))
        return stream + self.outer(functional.gelu(self.inner(self.mlp_norm(stream))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        stream = self.tokens(tokens) + self.positions
        for block in self.blocks:
            stream = block(stream)
        scores = functional.linear(self.norm(stream), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def main():
    steps, windows = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Gpt())
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    gains = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    text = torch.randint(VOCABULARY, (1 << 20,))
    warmup = math.ceil(steps / 10)
    for step in range(steps):
        if step == warmup:
            distributed.barrier()
            started = time.perf_counter()
        starts = torch.randint(len(text) - CONTEXT, (windows,)).tolist()
        tokens = torch.stack([text[start : start + CONTEXT] for start in starts])
        targets = torch.stack([text[start + 1 : start + 1 + CONTEXT] for start in starts])
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    distributed.barrier()
    seconds = time.perf_counter() - started
    done = (steps - warmup) * windows * CONTEXT * distributed.get_world_size()
    if distributed.get_rank() == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(json.dumps({"tokens_per_second": done / seconds, "parameters": parameters}))
    distributed.destroy_process_group()


main()
