"""Models whose checkpoints can be simulated: the shapes of their parameters, and who splits them.

Names and splits are those of a Llama that is trained with tensor parallelism: projections out of
the hidden dimension are split by rows, those back into it by columns, norms not at all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder of the Llama family.

    Attributes:
        layers: Number of layers.
        hidden: Width of the hidden state, a multiple of `heads`.
        ffn: Width inside a feed-forward network.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        vocab: Entries of the vocabulary.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a model.

    Attributes:
        name: Its name in the model.
        shape: Global shape in elements.
        layer: The layer that it belongs to: that of the embedding is the first, that of the head
            the last.
        tp_axis: The axis that tensor parallelism splits; None: every rank of it holds all.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    tp_axis: int | None


MODELS = {
    "tiny": Model(layers=4, hidden=64, ffn=192, heads=4, kv_heads=2, vocab=256),
    "llama-8b": Model(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256),
    "llama-70b": Model(layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=128256),
    "llama-405b": Model(layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, vocab=128256),
}
"""Name to model: Llama 3.1 in its three sizes, and one for tests."""


def parameters(model: Model) -> list[Parameter]:
    """Return the parameters of a model, in the order of the model.

    Example:
        >>> [p.name for p in parameters(MODELS["tiny"])][-2:]
        ['norm.weight', 'output.weight']
    """
    last = model.layers - 1
    found = [_matrix("tok_embeddings", model.vocab, model.hidden, layer=0, tp_axis=0)]
    for layer in range(model.layers):
        found += _layer(model, layer)
    found += [
        _norm("norm", model.hidden, layer=last),
        _matrix("output", model.vocab, model.hidden, layer=last, tp_axis=0),
    ]
    return found


def _layer(model: Model, layer: int) -> list[Parameter]:
    hidden, ffn = model.hidden, model.ffn
    keys = model.hidden // model.heads * model.kv_heads
    matrices = {
        "attention.wq": (hidden, hidden, 0),
        "attention.wk": (keys, hidden, 0),
        "attention.wv": (keys, hidden, 0),
        "attention.wo": (hidden, hidden, 1),
        "feed_forward.w1": (ffn, hidden, 0),
        "feed_forward.w2": (hidden, ffn, 1),
        "feed_forward.w3": (ffn, hidden, 0),
    }
    prefix = f"layers.{layer}."
    found = [
        _matrix(prefix + name, rows, columns, layer=layer, tp_axis=tp_axis)
        for name, (rows, columns, tp_axis) in matrices.items()
    ]
    norms = ("attention_norm", "ffn_norm")
    return found + [_norm(prefix + name, hidden, layer=layer) for name in norms]


def _matrix(name: str, rows: int, columns: int, *, layer: int, tp_axis: int) -> Parameter:
    return Parameter(name=name + ".weight", shape=(rows, columns), layer=layer, tp_axis=tp_axis)


def _norm(name: str, width: int, *, layer: int) -> Parameter:
    return Parameter(name=name + ".weight", shape=(width,), layer=layer, tp_axis=None)
