"""Networks as people write them in torch, with what goes in and which sizes are left open."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Module(nn.Module):
    """A function of modules as a module."""

    def __init__(self, function: Callable[..., object], **parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleDict(parts)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*self.parts.values(), *inputs)


@dataclass(frozen=True)
class Net:
    """A network, example inputs, and the axes of each that may have any size, by name."""

    module: nn.Module
    given: tuple[Tensor, ...]
    open: tuple[Mapping[int, str], ...]


def export(net: Net, *, dynamic: bool, opset: int = 17) -> bytes:
    """Returns the model that torch's exporter makes of a network.

    Its inputs are named in0, in1 and so on.
    """
    names = [f"in{i}" for i in range(len(net.given))]
    buffer: Any = io.BytesIO()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it has no form in ONNX
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                net.module.eval(),
                net.given,
                buffer,
                dynamo=False,
                opset_version=opset,
                input_names=names,
                dynamic_axes=dict(zip(names, net.open, strict=True)) if dynamic else None,
            )
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast_path)
    content: bytes = buffer.getvalue()
    return content


# -- recurrent, by hand ---------------------------------------------------------------------------


def lstm_of_chunks(wx: nn.Linear, wh: nn.Linear, x: Tensor) -> Tensor:
    """Steps of an lstm whose gates are chunks."""
    h = x.new_zeros(x.shape[1], 5)
    c, outputs = h, []
    for t in range(x.shape[0]):
        i, g, m, o = (wx(x[t]) + wh(h)).chunk(4, 1)
        c = torch.sigmoid(g) * c + torch.sigmoid(i) * torch.tanh(m)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def lstm_of_splits(wx: nn.Linear, wh: nn.Linear, x: Tensor) -> Tensor:
    """Steps of an lstm, unbound, whose gates are a split."""
    h = torch.zeros(x.shape[1], 5)
    c, outputs = h, []
    for step in x.unbind(0):
        i, g, m, o = (wx(step) + wh(h)).split(5, dim=-1)
        c = torch.sigmoid(g) * c + torch.sigmoid(i) * torch.tanh(m)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


# -- transformers ---------------------------------------------------------------------------------


class Bert(nn.Module):
    """An encoder as Hugging Face's BERT writes it."""

    def __init__(self, layers: int = 2, size: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.words, self.places = nn.Embedding(50, size), nn.Embedding(32, size)
        self.kinds, self.norm = nn.Embedding(2, size), nn.LayerNorm(size)
        self.layers = nn.ModuleList(_layer(size) for _ in range(layers))
        self.pool, self.head = nn.Linear(size, size), nn.Linear(size, 2)
        self.register_buffer("place", torch.arange(32).unsqueeze(0))

    def apart(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.heads, self.size // self.heads).permute(0, 2, 1, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        place: Tensor = self.get_buffer("place")[:, : ids.size(1)]
        x = self.norm(self.words(ids) + self.places(place) + self.kinds(torch.zeros_like(ids)))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            *projections, project, first_norm, widen, narrow, second_norm = layer.children()
            q, k, v = (self.apart(part(x)) for part in projections)
            scores = torch.matmul(q, k.transpose(-1, -2)) / (self.size // self.heads) ** 0.5
            context = torch.matmul(f.softmax(scores + bias, dim=-1), v).permute(0, 2, 1, 3)
            context = context.contiguous().view(*context.size()[:-2], self.size)
            x = first_norm(project(context) + x)
            x = second_norm(narrow(f.gelu(widen(x))) + x)
        return x, self.head(torch.tanh(self.pool(x[:, 0])))


def _layer(size: int) -> nn.Module:
    square = [nn.Linear(size, size) for _ in range(4)]
    wide = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
    return nn.Sequential(*square, nn.LayerNorm(size), *wide, nn.LayerNorm(size))


class Gpt(nn.Module):
    """A decoder's layer as nanoGPT writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.qkv = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.out, self.more, self.less = nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("seen", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.size()
        x: Tensor = self.words(ids)
        parts = self.qkv(self.norm(x)).split(16, dim=2)
        q, k, v = (part.view(n, t, 4, 4).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        hidden = self.get_buffer("seen")[:, :, :t, :t] == 0
        context = f.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ v
        x = x + self.out(context.transpose(1, 2).contiguous().view(n, t, 16))
        result: Tensor = x + self.less(f.gelu(self.more(self.norm(x)), approximate="tanh"))
        return result


def attention(qkv: nn.Linear, x: Tensor) -> Tensor:
    """torch's own attention of what is taken apart by chunks."""
    n, t, size = x.shape
    q, k, v = (part.view(n, t, 4, 4).transpose(1, 2) for part in qkv(x).chunk(3, -1))
    context = f.scaled_dot_product_attention(q, k, v, is_causal=True)
    return context.transpose(1, 2).reshape(n, t, size)


# -- pictures -------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block as torchvision writes it."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels_out) for _ in range(3))
        self.side = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first_norm, second_norm, side_norm = self.norms
        main_path = second_norm(self.second(f.relu(first_norm(self.first(x)))))
        return f.relu(main_path + side_norm(self.side(x)))


def resnet() -> nn.Module:
    """A small residual network, as after training."""
    stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, 10)
    network = nn.Sequential(*stem, Block(8, 8, 1), Block(8, 16, 2), *ends)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            for name, values in part.state_dict().items():
                # The count of batches is an integer, which cannot be drawn as a float.
                if name != "num_batches_tracked":
                    nn.init.uniform_(values, 0.5, 2.0)
    return network


def windows(x: Tensor) -> Tensor:
    """Windows of a picture and back, as Swin writes it."""
    n, h, w, c = x.shape
    parts = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous()
    parts = parts.view(-1, 4, 4, c) * 2
    merged = parts.view(n, h // 4, w // 4, 4, 4, -1).permute(0, 1, 3, 2, 4, 5)
    return merged.contiguous().view(n, h, w, -1)


# -- all of them ----------------------------------------------------------------------------------


def _size_of_other(x: Tensor, y: Tensor) -> Tensor:
    return f.interpolate(x, size=y.shape[2:], mode="bilinear") + y


def _grid(x: Tensor) -> Tensor:
    places = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return x + torch.stack(places, 0)[None].float()


def _masked(x: Tensor) -> Tensor:
    ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    return x.masked_fill(torch.triu(ones, 1), -1e9).softmax(-1)


def _mean_of_words(words: nn.Embedding, ids: Tensor) -> Tensor:
    mean: Tensor = words(ids).sum(1) / (ids != 0).sum(1, keepdim=True).clamp(min=1)
    return mean


def _filled(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[:, 1:3] = 0.0
    return copy


def _through(layer: nn.Module, *inputs: Tensor) -> object:
    return layer(*inputs)


def nets() -> dict[str, Callable[[], Net]]:
    """Makers of the networks by what they are called."""
    floats, batch, batch_and_time = torch.randn, {0: "n"}, {0: "n", 1: "t"}
    picture, second_axis = {0: "n", 2: "h", 3: "w"}, {1: "n"}
    sides: dict[str, Any] = {"d_model": 16, "nhead": 4, "dim_feedforward": 32}
    batch_first: dict[str, Any] = {"batch_first": True}

    def ids(*shape: int) -> Tensor:
        return torch.randint(0, 50, shape)

    def net(module: nn.Module, *inputs: Tensor, axes: tuple[Mapping[int, str], ...] = ()) -> Net:
        return Net(module, inputs, axes or (batch,) * len(inputs))

    def from_function(function: Callable[..., object], *inputs: Tensor, **parts: nn.Module) -> Net:
        return net(Module(function, **parts), *inputs)

    def encoder(**options: Any) -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(16, 4, 32, **options)

    return {
        "encoder layer": lambda: net(
            Module(_through, layer=encoder(**batch_first)), floats(2, 6, 16), axes=(batch_and_time,)
        ),
        "encoder layer, time first": lambda: net(
            Module(_through, layer=encoder()), floats(6, 2, 16), axes=(second_axis,)
        ),
        "encoder, norms first": lambda: net(
            nn.TransformerEncoder(
                encoder(norm_first=True, activation="gelu", **batch_first),
                2,
                enable_nested_tensor=False,
            ),
            floats(2, 6, 16),
            axes=(batch_and_time,),
        ),
        "transformer": lambda: net(
            Module(
                _through,
                layer=nn.Transformer(
                    num_encoder_layers=1,
                    num_decoder_layers=1,
                    **sides,
                    **batch_first,
                ),
            ),
            floats(2, 6, 16),
            floats(2, 5, 16),
            axes=(batch_and_time, {0: "n", 1: "s"}),
        ),
        "multi-head attention": lambda: net(
            Module(
                lambda layer, q, k: layer(q, k, k),
                layer=nn.MultiheadAttention(16, 4, **batch_first),
            ),
            floats(2, 6, 16),
            floats(2, 5, 16),
            axes=(batch_and_time, {0: "n", 1: "s"}),
        ),
        "attention": lambda: net(
            Module(attention, qkv=nn.Linear(16, 48)), floats(2, 6, 16), axes=(batch_and_time,)
        ),
        "bert": lambda: net(
            Bert(),
            ids(2, 6),
            torch.ones(2, 6, dtype=torch.int64),
            axes=(batch_and_time, batch_and_time),
        ),
        "gpt": lambda: net(Gpt(), ids(2, 6), axes=(batch_and_time,)),
        "lstm": lambda: net(
            nn.LSTM(4, 5, 2, bidirectional=True), floats(7, 2, 4), axes=(second_axis,)
        ),
        "gru": lambda: net(
            nn.GRU(4, 5, bidirectional=True, **batch_first), floats(2, 7, 4), axes=(batch_and_time,)
        ),
        "lstm of chunks": lambda: net(
            Module(lstm_of_chunks, wx=nn.Linear(4, 20), wh=nn.Linear(5, 20)),
            floats(6, 2, 4),
            axes=(second_axis,),
        ),
        "lstm of splits": lambda: net(
            Module(lstm_of_splits, wx=nn.Linear(4, 20), wh=nn.Linear(5, 20)),
            floats(6, 2, 4),
            axes=(second_axis,),
        ),
        "chunks": lambda: from_function(
            lambda x: [part * (i + 1) for i, part in enumerate(x.chunk(3, 1))], floats(2, 7, 4)
        ),
        "unbound": lambda: from_function(lambda x: torch.stack(x.unbind(1)[::2]), floats(2, 4, 3)),
        "words": lambda: net(
            Module(_mean_of_words, words=nn.Embedding(50, 8, padding_idx=0)),
            ids(2, 6),
            axes=(batch_and_time,),
        ),
        "bag of words": lambda: Net(nn.EmbeddingBag(50, 8, mode="mean"), (ids(2, 6),), ({},)),
        "transposed": lambda: net(
            nn.Sequential(
                nn.Conv2d(3, 6, 3, 2, 1),
                nn.ConvTranspose2d(6, 4, 4, 2, 1),
                nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2),
            ),
            floats(1, 3, 8, 8),
            axes=(picture,),
        ),
        "nearest": lambda: net(
            Module(lambda x: f.interpolate(x, scale_factor=2.0)),
            floats(1, 3, 5, 6),
            axes=(picture,),
        ),
        "cubic": lambda: net(
            Module(lambda x: f.interpolate(x, size=(9, 7), mode="bicubic")),
            floats(1, 3, 5, 6),
            axes=(picture,),
        ),
        "size of another": lambda: net(
            Module(_size_of_other),
            floats(1, 3, 5, 6),
            floats(1, 3, 10, 12),
            axes=(picture, {0: "n", 2: "a", 3: "b"}),
        ),
        "pixel shuffle": lambda: net(
            nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2)),
            floats(1, 3, 5, 6),
            axes=(picture,),
        ),
        "pixel unshuffle": lambda: net(nn.PixelUnshuffle(2), floats(1, 3, 4, 6)),
        "group norm": lambda: net(
            nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU()), floats(2, 6, 4, 4), axes=(picture,)
        ),
        "pooled to one": lambda: net(
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)),
            floats(2, 3, 6, 6),
            axes=(picture,),
        ),
        "pooled": lambda: net(
            nn.Sequential(nn.AdaptiveMaxPool2d((4, 2)), nn.AdaptiveAvgPool2d((2, 1))),
            floats(2, 3, 8, 4),
        ),
        "padded": lambda: net(
            Module(lambda x: f.pad(f.pad(x, (1, 2, 0, 1), mode="reflect"), (1, 2, -1, 1))),
            floats(2, 3, 5, 5),
            axes=(picture,),
        ),
        "unflattened": lambda: from_function(
            lambda x: x.unflatten(1, (2, -1)).flatten(0, 1), floats(2, 4, 3)
        ),
        "windows": lambda: from_function(windows, floats(2, 8, 8, 4)),
        "grid": lambda: net(Module(_grid), floats(1, 2, 4, 5), axes=(picture,)),
        "masked": lambda: net(Module(_masked), floats(2, 6, 6), axes=({0: "n", 1: "t", 2: "t"},)),
        "filled": lambda: from_function(_filled, floats(2, 6)),
        "unfolded": lambda: from_function(lambda x: x.unfold(1, 3, 2), floats(2, 9, 4)),
        "resnet": lambda: net(resnet(), floats(1, 3, 32, 32)),
    }
