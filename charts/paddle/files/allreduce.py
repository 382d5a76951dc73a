"""Check that all workers form one world: every rank contributes its number and checks the sum."""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank, size = dist.get_rank(), dist.get_world_size()
total = paddle.to_tensor([float(rank)])
dist.all_reduce(total)
assert total.item() == size * (size - 1) / 2, total
print(f"rank {rank} of world size {size}: all-reduce agrees", flush=True)
