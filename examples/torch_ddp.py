#!/usr/bin/env python3
"""Data-parallel PyTorch, unchanged: the gang's environment is what init_process_group("env://") reads.

    gangline run --ranks 2 -- python3 examples/torch_ddp.py

Debian 13's PyTorch is built without libuv, which its own default asks for: there, USE_LIBUV=0 in the environment.
"""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.randn(16, 1)
    generator = torch.Generator().manual_seed(1000 + rank)  # every rank draws its own samples
    for step in range(1, int(os.environ.get("STEPS", "200")) + 1):
        x = torch.randn(64, 16, generator=generator)
        loss = torch.nn.functional.mse_loss(model(x), x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    if rank == 0:
        print(f"world {world}, the ranks add up to {int(total.item())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
