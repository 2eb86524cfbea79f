"""Be rank RANK of WORLD with a store at HOST; print what is wrong with an all-reduce, an all-gather and the store."""

import datetime as dt
import json
import sys

import torch
import torch.distributed as dist

rank, world, host = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
NUMBERS = 65_536
LONG_VALUE = "v" * 65_536

torch.set_num_threads(1)
store = dist.TCPStore(host, 29500, world, rank == 0, timeout=dt.timedelta(seconds=30))
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=dt.timedelta(seconds=30))

numbers = torch.arange(NUMBERS, dtype=torch.float32) % 97 + 1
total = numbers * (rank + 1)
dist.all_reduce(total)
wrong_sums = int((total != numbers * (world * (world + 1) // 2)).sum())

gathered = [torch.empty_like(numbers) for _ in range(world)]
dist.all_gather(gathered, numbers * (rank + 1))
wrong_parts = [peer for peer, part in enumerate(gathered) if not torch.equal(part, numbers * (peer + 1))]

store.set(f"rank{rank}", LONG_VALUE)
values = [store.get(f"rank{peer}") == LONG_VALUE.encode() for peer in range(world)]
print(json.dumps({"wrong_sums": wrong_sums, "wrong_parts_of": wrong_parts, "store_whole": all(values)}), flush=True)
dist.barrier()
dist.destroy_process_group()
