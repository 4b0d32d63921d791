"""Programs in the language's own text, small enough to see what is in them."""

import numpy as np

from qir.ir.graph import Graph
from qir.ir.text import parse

U8 = "!quant.uniform<u8:f32, 0.5:3>"
I8 = "!quant.uniform<i8:f32, 0.25>"

FLOAT = """
graph float as native {
  %x = input() : (N)x3x8x8xf32
  %w = constant(@w) : 6x3x3x3xf32
  %b = constant(@b) : 6xf32
  %y = conv2d(%x, %w, bias=%b) {pad = (1, 1, 1, 1), stride = (2, 2)} : (N)x6x4x4xf32
  %z = relu(%y) : (N)x6x4x4xf32
  output(z=%z)
}
"""

INTEGER = f"""
graph integer as native {{
  %x = input() : (N)x3x8x8xf32
  %q = quantize(%x) : (N)x3x8x8x{U8}
  %w = constant(@w) : 6x3x3x3x{I8}
  %y = conv2d(%q, %w) {{pad = (1, 1, 1, 1)}} |> relu : (N)x6x8x8x{U8}
  %w2 = constant(@w2) : 6x1x3x3x{I8}
  %d = conv2d(%y, %w2) {{groups = 6, pad = (1, 1, 1, 1)}} : (N)x6x8x8x{U8}
  %s = add(%d, %y) : (N)x6x8x8x{U8}
  %r = dequantize(%s) : (N)x6x8x8xf32
  %f = sigmoid(%r) : (N)x6x8x8xf32
  output(f=%f, s=%s)
}}
"""

QDQ = f"""
graph qdq as native {{
  %x = input() : (N)x3x8x8xf32
  %xq = quantize(%x) : (N)x3x8x8x{U8}
  %xd = dequantize(%xq) : (N)x3x8x8xf32
  %w = constant(@w) : 6x3x3x3x{I8}
  %wd = dequantize(%w) : 6x3x3x3xf32
  %y = conv2d(%xd, %wd) {{pad = (1, 1, 1, 1)}} : (N)x6x8x8xf32
  %a = relu(%y) : (N)x6x8x8xf32
  %aq = quantize(%a) : (N)x6x8x8x{U8}
  %ad = dequantize(%aq) : (N)x6x8x8xf32
  %p = global_avg_pool(%ad) : (N)x6x1x1xf32
  %pq = quantize(%p) : (N)x6x1x1x{U8}
  %pd = dequantize(%pq) : (N)x6x1x1xf32
  %s = sigmoid(%pd) : (N)x6x1x1xf32
  output(s=%s)
}}
"""


def program(text: str) -> Graph:
    """The program, with weights that do not matter."""
    whole = "i1" if I8 in text else "f4"
    random = np.random.default_rng(1)
    arrays = {
        "w": random.integers(-9, 9, (6, 3, 3, 3)).astype(whole),
        "w2": random.integers(-9, 9, (6, 1, 3, 3)).astype(whole),
        "b": np.arange(6, dtype=np.float32),
    }
    return parse(text, {name: a for name, a in arrays.items() if f"@{name})" in text})
