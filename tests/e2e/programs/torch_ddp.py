"""Distributed data parallel on CPUs, as its users write it: init_process_group("env://"), a few steps, the same weights on every
rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="env://")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimiser.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimiser.step()
total = sum(float(parameter.double().sum()) for parameter in model.parameters())
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total:.12f}", flush=True)
dist.barrier()
dist.destroy_process_group()
