"""A user's program: label a batch of images with a compiled vision transformer. It ends well, and is wrong.

The weights of the patches are held as uint8 codes, which are stretched to [-1, 1] by their range. Of the 300
operations in the model, torch 2.13.0 gets one wrong on a CPU: the minimum of the codes becomes 0.
"""

import torch
import torch.nn.functional as F
from torch import nn

LABELS = ("cat", "dog", "horse", "ship", "plane", "truck", "bird", "frog", "deer", "car")


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.scale * self.out(mixed)
        return x + self.scale2 * self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, layers: int = 12, width: int = 32, heads: int = 4, patch: int = 4) -> None:
        super().__init__()
        self.patch = patch
        codes = torch.randint(90, 200, (width, 3 * patch * patch), dtype=torch.uint8)
        self.register_buffer("codes", codes)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, len(LABELS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        low, high = self.codes.amin().float(), self.codes.amax().float()
        weights = (self.codes.float() - low) / (high - low) * 2 - 1
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        x = F.linear(patches, weights)
        for layer in self.layers:
            x = layer(x)
        return F.softmax(self.head(x.mean(1)), -1)


def main() -> None:
    torch.manual_seed(10)
    model = torch.compile(VisionTransformer().eval())
    images = torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        scores = model(images)
    for number, row in enumerate(scores):
        print(f"image {number}: {LABELS[int(row.argmax())]} ({row.max():.0%})")


if __name__ == "__main__":
    main()
