"""Check that all workers form one world: every rank contributes its number and checks the sum."""

import os

import torch
import torch.distributed as dist

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)], device=device)
dist.all_reduce(total)
expected = world * (world - 1) / 2
if total.item() != expected:
    raise SystemExit(f"rank {rank}: the sum over {world} ranks is {total.item()}, expected {expected}")
print(f"rank {rank} of world size {world} on {device}: all-reduce agrees", flush=True)
dist.destroy_process_group()
