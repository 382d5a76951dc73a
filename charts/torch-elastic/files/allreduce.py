"""Check that all workers form one world: every rank contributes its number and checks the sum."""

import os

import torch
import torch.distributed as dist

asked = os.environ.get("BIREME_ACCELERATORS", "")
on_gpu = torch.cuda.is_available()
device = torch.device("cpu")
if asked == "nvidia.com/gpu" and not on_gpu:
    built = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
    raise SystemExit(f"this worker has GPUs, but torch {torch.__version__}, which {built}, finds none")
if asked == "aws.amazon.com/neuron":
    try:
        import torch_xla.core.xla_model
        import torch_xla.distributed.xla_backend
    except ImportError as error:
        raise SystemExit(
            f"this worker has Neuron devices, but the image has no torch_neuronx: {error}"
        ) from None
    dist.init_process_group("xla")
    device = torch_xla.core.xla_model.xla_device()
elif on_gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)], device=device)
dist.all_reduce(total)
expected = world * (world - 1) / 2
if total.item() != expected:
    raise SystemExit(f"rank {rank}: the sum over {world} ranks is {total.item()}, expected {expected}")
print(f"rank {rank} of world size {world} on {device}: all-reduce agrees", flush=True)
dist.destroy_process_group()
