"""What `torchrun` starts in `test_coordinator.py`, as it would start a training."""

from __future__ import annotations

import torch.distributed as dist

from bcpformat.model.manifest import ints
from bcpformat.testing.coordinator_suite import check_coordinator
from bcpformat.torch.coordinator import coordinator_for


def main() -> None:
    dist.init_process_group("gloo")
    ranks = coordinator_for(None)
    sizes = ranks.total(ints([1]), timeout_s=60.0).tolist()
    check_coordinator(ranks)
    print(f"rank {ranks.rank}: {sizes}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
