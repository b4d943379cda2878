"""PyTorch's figures for `check`, on the same GPU: a step of GPT-2's network, a copy, a matrix product.

Prints a line `NAME: VALUE` for each. Its network is what the example gpt trains: no dropout, a head that is the table of tokens, AdamW.
"""

import argparse
import sys
import time

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.norm(self.blocks(x)))


def seconds(work, repetitions, device):
    """The mean of some repetitions, after three that do not count."""
    for _ in range(3):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repetitions):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repetitions


def step(args, device, dtype, kernels):
    torch.manual_seed(0)
    model = Gpt(args.vocabulary, args.context, args.layers, args.width, args.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    tokens = torch.randint(args.vocabulary, (args.batch, args.context + 1), device=device)

    def work():
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32), nn.attention.sdpa_kernel(kernels):
            logits = model(tokens[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return seconds(work, args.steps, device)


def main():
    parser = argparse.ArgumentParser()
    for name in ["vocabulary", "context", "layers", "width", "heads", "batch", "steps", "elements"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch: {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}")

    math = nn.attention.SDPBackend.MATH
    flash = nn.attention.SDPBackend.FLASH_ATTENTION
    cases = [("f32", torch.float32, math, False), ("tf32", torch.float32, math, True), ("bf16", torch.bfloat16, math, False),
             ("bf16 flash", torch.bfloat16, flash, False)]
    for name, dtype, kernels, tf32 in cases:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            took = step(args, device, dtype, kernels)
        except RuntimeError as error:
            print(f"{name}: not run, {str(error).splitlines()[0]}")
            continue
        print(f"{name}: {took * 1e3:.1f} ms a step, {args.batch * args.context / took:.0f} tokens/s", flush=True)

    source = torch.rand(args.elements, device=device)
    target = torch.empty_like(source)
    took = seconds(lambda: target.copy_(source), args.steps, device)
    print(f"copy: {2 * source.nbytes / took / 1e9:.1f} GB/s, read and written")
    side = int(args.elements**0.5) // 64 * 64
    one, other = (torch.rand(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    took = seconds(lambda: one @ other, args.steps, device)
    print(f"product of bf16, side {side}: {2 * side**3 / took / 1e12:.2f} TFLOP/s")


main()
