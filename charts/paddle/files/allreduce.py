"""Check that all workers form one world: every rank contributes its number and checks the sum."""

import os

import paddle
import paddle.distributed as dist

if os.environ.get("BIREME_ACCELERATORS") == "nvidia.com/gpu":
    if not paddle.is_compiled_with_cuda():
        raise SystemExit(f"this worker has GPUs, but paddle {paddle.__version__} was built without CUDA")
    if not paddle.device.cuda.device_count():
        raise SystemExit(f"this worker has GPUs, but paddle {paddle.__version__} finds none")
dist.init_parallel_env()
rank, size = dist.get_rank(), dist.get_world_size()
total = paddle.to_tensor([float(rank)])
dist.all_reduce(total)
assert total.item() == size * (size - 1) / 2, total
print(f"rank {rank} of world size {size}: all-reduce agrees", flush=True)
