"""Everything that knows torch: its tensors as leaves and as destinations, its types as nodes.

The core never imports this; `api` loads it by name when a state may hold something of torch.
"""

from bcpformat.torch.framework import FRAMEWORK, loaded_framework

__all__ = ["FRAMEWORK", "loaded_framework"]
