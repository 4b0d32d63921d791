"""Networks of text, block for block as transformers has them, of two layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDE, HEADS = 100, 64, 4


def _heads(x: Tensor, count: int = HEADS) -> Tensor:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def _together(x: Tensor) -> Tensor:
    y = x.transpose(1, 2).contiguous()
    return y.reshape(*y.shape[:2], -1)


class BertLayer(nn.Module):
    """Attention with scores that are masked by a sum, GELU, norms after the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.dense, self.norm = nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE, eps=1e-12)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.last, self.dropout = nn.LayerNorm(WIDE, eps=1e-12), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (_heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDE // HEADS) + mask
        y = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)
        x = self.norm(self.dropout(self.dense(_together(y))) + x)
        y = self.dropout(self.down(F.gelu(self.up(x))))
        return self.last(y + x)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """BERT with its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (
            nn.Embedding(WORDS, WIDE, padding_idx=0),
            nn.Embedding(64, WIDE),
            nn.Embedding(2, WIDE),
        )
        self.norm, self.dropout = nn.LayerNorm(WIDE, eps=1e-12), nn.Dropout(0.1)
        self.layers = nn.ModuleList(BertLayer() for _ in range(2))
        self.pooler = nn.Linear(WIDE, WIDE)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1]).expand(1, -1)
        x = self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.places(places)
        x = self.dropout(self.norm(x))
        low = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, low)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weights have one row for each input."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(into, out) / math.sqrt(into))
        self.bias = nn.Parameter(torch.randn(out) / 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.size()[:-1], -1)


class GptLayer(nn.Module):
    """Causal attention, GELU by its tanh formula, norms before the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.attention, self.project = Conv1D(WIDE, 3 * WIDE), Conv1D(WIDE, WIDE)
        self.up, self.down = Conv1D(WIDE, 4 * WIDE), Conv1D(4 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part) for part in self.attention(self.norm1(x)).split(WIDE, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.project(_together(y)) + x
        y = self.up(self.norm2(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3))))
        return x + self.down(y)  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """GPT-2, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(64, WIDE)
        self.layers = nn.Sequential(GptLayer(), GptLayer())
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]).unsqueeze(0))
        return self.head(self.norm(self.layers(x)))  # type: ignore[no-any-return]


class RmsNorm(nn.Module):
    """LLaMA's norm, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDE) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _repeated(x: Tensor, count: int) -> Tensor:
    batch, heads, length, size = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, count, length, size)
    return x.reshape(batch, heads * count, length, size)


class LlamaLayer(nn.Module):
    """Rotary places, two heads of keys and values for four of queries, gated SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, half = RmsNorm(), RmsNorm(), WIDE // 2
        self.q, self.out = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.k, self.v = nn.Linear(WIDE, half, bias=False), nn.Linear(WIDE, half, bias=False)
        self.gate, self.up = (nn.Linear(WIDE, 2 * WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDE, WIDE, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = _heads(self.q(y)), _heads(self.k(y), 2), _heads(self.v(y), 2)
        q, k = (t * cos + _turned(t) * sin for t in (q, k))
        k, v = _repeated(k, 2), _repeated(v, 2)
        x = x + self.out(_together(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """LLaMA with a language head of its own."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm, self.head = RmsNorm(), nn.Linear(WIDE, WORDS, bias=False)
        size = WIDE // HEADS
        self.register_buffer("steps", 1.0 / 10000 ** (torch.arange(0, size, 2) / size))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        places = torch.arange(ids.shape[1])[None, :].float()
        angles = (self.steps[None, :, None] @ places[:, None, :]).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))  # type: ignore[no-any-return]
