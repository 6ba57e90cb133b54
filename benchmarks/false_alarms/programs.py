"""Healthy training programs, each with its own way to be sensitive to rounding.

A program is a function `(device) -> step`: it builds a model, compiles it with `torch.compile`, and returns a
function that trains for one step. Inputs are drawn in each step, so that activations cross the kinks of
`relu`, ties of `topk` and steps of `round` at other places each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], Tensor]
Program = Callable[[str], Step]


def training(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> Step:
    """Return a step that computes the loss with the compiled model, and updates the parameters eagerly."""
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        loss = loss_of(compiled)  # type: ignore[arg-type]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def classification(device: str) -> Step:
    """Train a CNN: convolution, batch norm, relu, max-pooling."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)

    def loss(model: nn.Module) -> Tensor:
        images = torch.randn(16, 3, 16, 16, device=device)
        return F.cross_entropy(model(images), torch.randint(0, 10, (16,), device=device))

    return training(model, loss)


class Encoder(nn.Module):
    """A small transformer encoder over token ids."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 100)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(ids)))
        return out


def next_token_loss(model: nn.Module, device: str) -> Tensor:
    ids = torch.randint(0, 100, (8, 32), device=device)
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def language_model(device: str) -> Step:
    """Train a transformer with dropout; its feed-forward layers have relu."""
    return training(Encoder(0.1).to(device), lambda model: next_token_loss(model, device))


class Denoiser(nn.Module):
    """Predict the noise of an image, given the time step."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(16, 32)
        self.down, self.up = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.GELU()
        )

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(8, device=image.device) * -0.5)
        phase = time[:, None] * frequencies
        embedded = self.time(torch.cat([phase.sin(), phase.cos()], -1))
        hidden = self.down(image) + embedded[:, :, None, None]
        out: Tensor = self.up(hidden + self.middle(hidden))
        return out


class DiffusionStep(nn.Module):
    """Draw noise and a time step, add the noise, and return the loss of predicting it."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = Denoiser()

    def forward(self, image: Tensor) -> Tensor:
        time = torch.rand(image.shape[0], device=image.device)
        noise = torch.randn_like(image)
        alpha = torch.cos(time * torch.pi / 2).square()[:, None, None, None]
        noisy = alpha.sqrt() * image + (1 - alpha).sqrt() * noise
        return F.mse_loss(self.denoiser(noisy, time * 100), noise)


def diffusion(device: str) -> Step:
    """Train a denoiser whose compiled step draws its own random numbers."""
    return training(DiffusionStep().to(device), lambda model: model(torch.randn(8, 3, 16, 16, device=device)))


def gan(device: str) -> Step:
    """Train a generator and a discriminator, both compiled, by turns."""
    generator = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.Tanh()).to(device)
    critic = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(32, 64)), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    ).to(device)
    make, judge = torch.compile(generator), torch.compile(critic)
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4) for model in (generator, critic)]

    def step() -> Tensor:
        real = torch.randn(32, 32, device=device).clamp(-1, 1)
        fake = make(torch.randn(32, 16, device=device))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return loss.detach()

    return step


class Recurrent(nn.Module):
    """A GRU unrolled by hand over eight steps, with hard activations at its output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(16, 32), nn.Linear(32, 4)

    def forward(self, sequence: Tensor) -> Tensor:
        state = sequence.new_zeros(sequence.shape[0], 32)
        for item in sequence.unbind(1):
            state = self.cell(item, state)
        return F.hardswish(self.head(state))


def recurrent(device: str) -> Step:
    """Train a recurrent network."""
    return training(
        Recurrent().to(device), lambda model: model(torch.randn(16, 8, 16, device=device)).square().mean()
    )


class MessagePassing(nn.Module):
    """Two rounds of messages along edges: gather, scatter-add, scatter-max, mean by degree."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(64, 8)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = F.relu(self.first(nodes))[source]
        summed = nodes.new_zeros(nodes.shape[0], 32).index_add(0, target, messages)
        degree = nodes.new_zeros(nodes.shape[0]).index_add(
            0, target, torch.ones_like(target, dtype=nodes.dtype)
        )
        largest = nodes.new_full((nodes.shape[0], 32), -1.0).scatter_reduce(
            0, target[:, None].expand(-1, 32), messages, "amax"
        )
        mean = summed / degree.clamp(min=1)[:, None]
        out: Tensor = self.second(torch.cat([mean, largest], 1))
        return out


def graph_network(device: str) -> Step:
    """Train a graph network on random edges."""

    def loss(model: nn.Module) -> Tensor:
        nodes = torch.randn(64, 16, device=device)
        source, target = torch.randint(0, 64, (2, 400), device=device)
        return F.smooth_l1_loss(model(nodes, source, target), nodes[:, :8])

    return training(MessagePassing().to(device), loss)


class Experts(nn.Module):
    """A mixture of four experts, of which each token is sent to the two of highest score."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.up, self.down = (nn.Parameter(torch.randn(4, *size) / 8) for size in ((32, 64), (64, 32)))

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        sent = torch.zeros(tokens.shape[0], 4, device=tokens.device).scatter(1, chosen, weights)
        hidden = F.relu(torch.einsum("td,edh->teh", tokens, self.up))
        return torch.einsum("teh,ehd,te->td", hidden, self.down, sent)


def experts(device: str) -> Step:
    """Train a mixture of experts."""

    def loss(model: nn.Module) -> Tensor:
        tokens = torch.randn(64, 32, device=device)
        return (model(tokens) - tokens.roll(1, 1)).square().mean()

    return training(Experts().to(device), loss)


class Detector(nn.Module):
    """Score boxes, sort them by score, and suppress those that overlap a better one."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        found = self.features(anchors)
        order = found[:, 4].sort(descending=True, stable=True).indices
        corner, size = found[order, :2], F.softplus(found[order, 2:4])
        low = torch.maximum(corner[:, None], corner[None])
        high = torch.minimum((corner + size)[:, None], (corner + size)[None])
        common, area = (high - low).clamp(min=0).prod(-1), size.prod(-1)
        overlap = common / (area[:, None] + area[None] - common)
        worse = torch.ones_like(overlap).tril(-1)
        kept = ((overlap.detach() > 0.5) * worse).amax(1) == 0
        return torch.where(kept, found[order, 4], 0.0), corner


def detection(device: str) -> Step:
    """Train a detector through a sort and a suppression by thresholds."""

    def loss(model: nn.Module) -> Tensor:
        scores, corners = model(torch.randn(48, 16, device=device))
        return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)) + corners.abs().mean()

    return training(Detector().to(device), loss)


def quantised(value: Tensor, bits: int) -> Tensor:
    """Return the value rounded to a grid; its gradient is that of the identity."""
    largest = 2 ** (bits - 1) - 1
    scale = value.detach().abs().amax() / largest
    rounded = (value / scale).round().clamp(-largest, largest) * scale
    return value + (rounded - value).detach()


class QuantisationAware(nn.Module):
    """Two linear layers with weights and activations rounded to 8 and 4 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, value: Tensor) -> Tensor:
        hidden = F.relu(F.linear(value, quantised(self.first.weight, 8), self.first.bias))
        return F.linear(quantised(hidden, 4), quantised(self.second.weight, 8), self.second.bias)


def quantisation(device: str) -> Step:
    """Train with fake quantisation."""

    def loss(model: nn.Module) -> Tensor:
        value = torch.randn(32, 32, device=device)
        return F.mse_loss(model(value), value[:, :8])

    return training(QuantisationAware().to(device), loss)


def mixed_float16(device: str) -> Step:
    """Train in mixed float16 with a gradient scaler."""
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8)).to(device)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    def step() -> Tensor:
        value = torch.randn(32, 32, device=device)
        with torch.autocast(device, torch.float16):
            loss = F.mse_loss(compiled(value).float(), value[:, :8])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


def bfloat16(device: str) -> Step:
    """Train a transformer whose parameters are bfloat16."""
    return training(Encoder(0.0).to(device, torch.bfloat16), lambda model: next_token_loss(model, device))


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass.

    Without dropout: compiled code computes the masks of such a block from a seed, and no call is comparable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(3)
        )

    def forward(self, value: Tensor) -> Tensor:
        for block in self.blocks:
            value = value + checkpoint(block, value, use_reentrant=False)
        return value


def checkpointing(device: str) -> Step:
    """Train with gradient checkpointing."""

    def loss(model: nn.Module) -> Tensor:
        value = torch.randn(32, 32, device=device)
        return (model(value) - value.flip(1)).square().mean()

    return training(Checkpointed().to(device), loss)


class Segmenter(nn.Module):
    """A small U-Net: instance norm, a strided and a transposed convolution, interpolation, a skip connection.

    The bias before the normalisation has a gradient of zero, which is all rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True)
        self.down, self.up = nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        wide = F.leaky_relu(self.norm(self.first(image)))
        pooled = F.avg_pool2d(F.relu(self.down(wide)), 2)
        coarse = self.up(F.interpolate(pooled, scale_factor=2, mode="bilinear"))
        out: Tensor = self.head(torch.cat([wide, coarse], 1))
        return out


def segmentation(device: str) -> Step:
    """Train a segmenter with the sum of cross-entropy and Dice loss."""

    def loss(model: nn.Module) -> Tensor:
        logits = model(torch.randn(2, 1, 16, 16, device=device))
        labels = torch.randint(0, 2, (2, 16, 16), device=device)
        found = logits.softmax(1)[:, 1]
        dice = 2 * (found * labels).sum() / (found.sum() + labels.sum() + 1)
        return F.cross_entropy(logits, labels) + 1 - dice

    return training(Segmenter().to(device), loss)


class Triplets(nn.Module):
    """The triplet margin loss of embedded points: differences of distances, cut off at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 32), nn.PReLU(), nn.Linear(32, 8))

    def forward(self, points: Tensor) -> Tensor:
        return F.triplet_margin_loss(*(self.embed(each) for each in points.unbind()), margin=1.0)


def metric_learning(device: str) -> Step:
    """Train an embedding by triplets."""
    return training(Triplets().to(device), lambda model: model(torch.randn(3, 32, 16, device=device)))


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        classification,
        language_model,
        diffusion,
        gan,
        recurrent,
        graph_network,
        experts,
        detection,
        quantisation,
        mixed_float16,
        bfloat16,
        checkpointing,
        segmentation,
        metric_learning,
    )
}


def steps_of(name: str, device: str, seed: int = 0) -> Iterator[Tensor]:
    """Yield the loss of one step after the other, without end."""
    torch.manual_seed(seed)
    step = PROGRAMS[name](device)
    while True:
        yield step()
