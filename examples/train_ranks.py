"""A small training that goes on in any layout: what `demo.py` starts on every rank.

    python -m torch.distributed.run --standalone --nproc-per-node 4 \
        examples/train_ranks.py train fsdp2-x-tp FOLDER

trains on 4 ranks and saves in FOLDER/runs; `resume`, in the same or another layout, takes the
newest checkpoint there, saves at once what it has loaded in FOLDER/again, and trains on.  Rank 0
writes the losses to FOLDER, and every rank what it has read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import bcpformat
from bcpformat.api.save import encoded
from bcpformat.torch import get_state, set_state

SEED = 11
SAVED_STEP, MORE_STEPS, MOST_STEPS = 24, 12, 250
WIDTH, HIDDEN, LAYERS, HEADS, VOCABULARY, CONTEXT = 128, 512, 2, 4, 512, 32
BATCH = 16
"""Sequences of a step, of all workers together."""

State = dict[str, Any]
