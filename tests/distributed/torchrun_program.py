"""What `torchrun` starts in `test_coordinator.py`, as it would start a training."""

from __future__ import annotations

import torch.distributed as dist

from bcpformat.model.manifest import ints
from bcpformat.testing.coordinator_suite import check_coordinator
from bcpformat.torch.coordinator import coordinator_for
from bcpformat.torch.mailbox import Mailbox

_KEPT: list[Mailbox] = []


def main() -> None:
    dist.init_process_group("gloo")
    ranks = coordinator_for(None)
    sizes = ranks.total(ints([1]), timeout_s=60.0).tolist()
    check_coordinator(ranks)
    print(f"rank {ranks.rank}: {sizes}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    _end_with_calls_under_way()


def _end_with_calls_under_way() -> None:
    """Leave work to the thread of a mailbox; the process must exit in good order all the same."""
    host = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    mailbox = Mailbox(host, "last", size=1, answer_s=60.0)
    for number in range(3000):
        mailbox.post(f"key/{number}", bytes(10_000))
    _KEPT.append(mailbox)


if __name__ == "__main__":
    main()
