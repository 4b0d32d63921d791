#include "product.h"

#include <string.h>

enum { PANEL = QIR_SGEMM_DEPTH * QIR_SGEMM_WIDEST /* floats */ };

/* Splits rows so that there are some tasks, each with enough rows for what its panel costs. */
static size_t rows_of(size_t rows, size_t others, size_t least) {
  enum { TASKS = 8 };
  const size_t wanted = (TASKS + others - 1) / (others ? others : 1);
  const size_t most = (rows + least - 1) / least, blocks = wanted < most ? wanted : most;
  return blocks > 1 ? (rows + blocks - 1) / blocks : rows;
}

/* ---- by constant weights ---- */

struct linear {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_linear how;
  size_t panels, block_rows;
  const float *bias; /* or NULL */
  float numbers[];   /* panels, then the bias */
};

static void run_linear(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct linear *v = params;
  const size_t j = (size_t)task % v->panels * v->kernel->width, k = v->how.k, n = v->how.n;
  const size_t first = (size_t)task / v->panels * v->block_rows, left = v->how.rows - first;
  const size_t width = qir_sgemm_width(v->kernel, n, j);
  struct qir_sgemm_block block = {
      .a_row = k,
      .count = left < v->block_rows ? left : v->block_rows,
      .width = width,
      .y = (float *)buffers[v->how.y] + first * n + j,
      .y_row = n,
      .columns = n - j < width ? n - j : width,
      .column_bias = v->bias ? v->bias + j : NULL,
      .bounds = v->how.bounds,
  };
  for (size_t p = 0; p < k; p += block.depth) {
    qir_sgemm_depth(k, p, &block);
    block.a = (const float *)buffers[v->how.x] + first * k + p;
    block.panel = v->numbers + j * k + p * width;
    v->kernel->run(&block);
  }
}

int qir_float_linear_make(uint32_t isa, const struct qir_float_linear *how, struct qir_step *step) {
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const size_t k = how->k, n = how->n, packed = qir_round_up(n, kernel->nr) * k;
  struct linear *v = qir_step_alloc(sizeof *v + (packed + n) * sizeof(float));
  if (!v) return 0;
  v->kernel = kernel;
  v->how = *how;
  v->panels = (n + kernel->width - 1) / kernel->width;
  v->block_rows = rows_of(how->rows, v->panels, 96);
  for (size_t j = 0; j < n; ++j) {
    const size_t at = j / kernel->width * kernel->width, width = qir_sgemm_width(kernel, n, at);
    float *panel = v->numbers + at * k + j - at;
    for (size_t p = 0; p < k; ++p) panel[p * width] = how->weight[j * k + p];
  }
  if (how->bias) v->bias = memcpy(v->numbers + packed, how->bias, n * sizeof(float));
  const size_t blocks = v->block_rows ? (how->rows + v->block_rows - 1) / v->block_rows : 0;
  *step = (struct qir_step){run_linear, v, (long)(blocks * v->panels), 0};
  return 1;
}

/* ---- of two computed operands ---- */

struct matmul {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_matmul how;
  size_t panels, row_blocks, block_rows;
  size_t offsets[]; /* a_at, b_at and y_at */
};

/* `depth` rows of a panel, from B on. */
static void pack(const struct qir_matmul_shape *s, const float *b, size_t depth, size_t columns,
                 size_t width, float *panel) {
  if (s->b_column == 1) {
    for (size_t p = 0; p < depth; ++p, panel += width, b += s->b_value) {
      memcpy(panel, b, columns * sizeof(float));
      memset(panel + columns, 0, (width - columns) * sizeof(float));
    }
    return;
  }
  if (columns < width) memset(panel, 0, depth * width * sizeof(float));
  for (size_t j = 0; j < columns; ++j)
    for (size_t p = 0; p < depth; ++p) panel[p * width + j] = b[p * s->b_value + j * s->b_column];
}

/* A task is a block of rows by a panel of columns, of one matrix. */
static void run_matmul(const void *params, void *const *buffers, void *scratch, long task) {
  const struct matmul *v = params;
  const struct qir_matmul_shape *s = &v->how.s;
  const size_t j = (size_t)task % v->panels * v->kernel->width, rest = (size_t)task / v->panels;
  const size_t first = rest % v->row_blocks * v->block_rows, batch = rest / v->row_blocks;
  const size_t *at = v->offsets + batch, left = s->m - first;
  const size_t width = qir_sgemm_width(v->kernel, s->n, j);
  const float *a = (const float *)buffers[v->how.a] + at[0] + first * s->a_row;
  const float *b = (const float *)buffers[v->how.b] + at[s->batches] + j * s->b_column;
  struct qir_sgemm_block block = {
      .a_row = s->a_row,
      .count = left < v->block_rows ? left : v->block_rows,
      .panel = scratch,
      .width = width,
      .y = (float *)buffers[v->how.y] + at[2 * s->batches] + first * s->y_row + j,
      .y_row = s->y_row,
      .columns = s->n - j < width ? s->n - j : width,
  };
  for (size_t p = 0; p < s->k; p += block.depth) {
    qir_sgemm_depth(s->k, p, &block);
    block.a = a + p;
    pack(s, b + p * s->b_value, block.depth, block.columns, width, scratch);
    v->kernel->run(&block);
  }
}

int qir_float_matmul_make(uint32_t isa, const struct qir_float_matmul *how, struct qir_step *step) {
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const struct qir_matmul_shape *s = &how->s;
  const size_t bytes = s->batches * sizeof(size_t);
  struct matmul *v = qir_step_alloc(sizeof *v + 3 * bytes);
  if (!v) return 0;
  v->kernel = kernel;
  v->how = *how;
  if (bytes) {
    memcpy(v->offsets, s->a_at, bytes);
    memcpy(v->offsets + s->batches, s->b_at, bytes);
    memcpy(v->offsets + 2 * s->batches, s->y_at, bytes);
  }
  v->panels = (s->n + kernel->width - 1) / kernel->width;
  v->block_rows = rows_of(s->m, v->panels * s->batches, 96);
  v->row_blocks = v->block_rows ? (s->m + v->block_rows - 1) / v->block_rows : 0;
  *step = (struct qir_step){run_matmul, v, (long)(s->batches * v->row_blocks * v->panels),
                            PANEL * sizeof(float)};
  return 1;
}

/* ---- what taps see ---- */

/* `count` of the elements start, start + stride ... of a line, and zeros where there are none. */
static void line(const float *row, size_t size, ptrdiff_t start, size_t stride, size_t count,
                 float *to) {
  const ptrdiff_t step = (ptrdiff_t)stride, ends = (ptrdiff_t)size - start;
  size_t low = start < 0 ? (size_t)((step - 1 - start) / step) : 0;
  size_t high = ends > 0 ? (size_t)((ends + step - 1) / step) : 0;
  if (high > count) high = count;
  if (low > high) low = high;
  for (size_t i = 0; i < low; ++i) to[i] = 0;
  if (low < high) {
    const float *from = row + (start + (ptrdiff_t)(low * stride));
    const size_t n = high - low;
    to += low;
    if (stride == 1)
      memcpy(to, from, n * sizeof(float));
    else if (stride == 2)
      for (size_t i = 0; i < n; ++i) to[i] = from[2 * i];
    else
      for (size_t i = 0; i < n; ++i) to[i] = from[i * stride];
    to -= low;
  }
  for (size_t i = high; i < count; ++i) to[i] = 0;
}

/* A part of a plane, padded, in which the pixels that a tap sees in turn are neighbours. */
struct frame {
  size_t pitch; /* floats of a line, of which there are `sw` for a line of the plane */
  size_t shift[QIR_SGEMM_DEPTH]; /* where a tap sees its first pixel; of the first taps */
};

static struct frame frame_of(const struct qir_conv_shape *s) {
  struct frame f = {.pitch = s->ow + (s->kw - 1) * s->dw / s->sw + 1};
  const size_t taps = s->kh * s->kw;
  for (size_t t = 0; t < taps && t < QIR_SGEMM_DEPTH; ++t) {
    const size_t across = t % s->kw * s->dw;
    f.shift[t] = (t / s->kw * s->dh * s->sw + across % s->sw) * f.pitch + across / s->sw;
  }
  return f;
}

/* Floats of a frame for `rows` lines of the output; a whole panel can be read past its end. */
static size_t frame_size(const struct qir_conv_shape *s, const struct frame *f, size_t rows) {
  const size_t lines = (rows - 1) * s->sh + (s->kh - 1) * s->dh + 1;
  return qir_round_up(lines * s->sw * f->pitch + QIR_SGEMM_WIDEST, 16);
}

/* Fills the frame of output lines first .. first + rows. */
static void fill_frame(const struct qir_conv_shape *s, const struct frame *f, const float *plane,
                       size_t first, size_t rows, float *to) {
  const size_t lines = (rows - 1) * s->sh + (s->kh - 1) * s->dh + 1;
  for (size_t y = first * s->sh, end = y + lines; y < end; ++y)
    for (size_t q = 0; q < s->sw; ++q, to += f->pitch) {
      if (y < s->pt || y - s->pt >= s->h)
        memset(to, 0, f->pitch * sizeof(float));
      else
        line(plane + (y - s->pt) * s->w, s->w, (ptrdiff_t)q - (ptrdiff_t)s->pl, s->sw, f->pitch,
             to);
    }
}

/* ---- convolution ---- */

struct conv {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_conv how;
  struct frame frame;
  size_t panels, row_blocks, block_rows;
  size_t in, out, k, pixels; /* channels of a group, values of a sum, pixels of the output */
  int plain;                 /* whether the input is what its one tap sees */
  const float *bias;         /* or NULL */
  float numbers[];
};

/* Floats that may be written past the end of a panel. */
enum { STRIDE = 16 };

/* A panel of what the taps p .. p + depth see at the pixels j onwards. */
static void unfold(const struct conv *v, const float *x, size_t j, size_t columns, size_t width,
                   size_t p, size_t depth, float *panel) {
  const struct qir_conv_shape *s = &v->how.s;
  const size_t taps = s->kh * s->kw, first = j / s->ow, start = j % s->ow;
  const size_t rows = (j + columns - 1) / s->ow - first + 1, below = s->sh * s->sw * v->frame.pitch;
  float *frame = panel + PANEL + STRIDE;
  for (size_t end = p + depth, begun = 0; p < end; ++p, panel += width) {
    const size_t tap = p % taps;
    const float *plane = x + p / taps * s->h * s->w;
    if (v->plain) {
      memcpy(panel, plane + j, columns * sizeof(float));
    } else {
      if (!begun || tap == 0) fill_frame(s, &v->frame, plane, first, rows, frame);
      begun = 1;
      const size_t across = tap % s->kw * s->dw;
      const float *seen =
          frame +
          (tap < QIR_SGEMM_DEPTH
               ? v->frame.shift[tap]
               : (tap / s->kw * s->dh * s->sw + across % s->sw) * v->frame.pitch + across / s->sw);
      for (size_t done = 0, ox = start; done < columns; ox = 0, seen += below) {
        const size_t left = columns - done, count = s->ow - ox < left ? s->ow - ox : left;
        for (size_t i = 0; i < count; i += STRIDE)
          memcpy(panel + done + i, seen + ox + i, STRIDE * sizeof(float));
        done += count;
      }
    }
    memset(panel + columns, 0, (width - columns) * sizeof(float));
  }
}

/* A task is a panel of pixels by a block of output channels, of one group of one image. */
static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t j = (size_t)task % v->panels * v->kernel->width, rest = (size_t)task / v->panels;
  const size_t first = rest % v->row_blocks * v->block_rows, part = rest / v->row_blocks;
  const size_t group = part % s->groups, left = v->out - first;
  const size_t channel = group * v->out + first; /* of the output */
  const size_t width = qir_sgemm_width(v->kernel, v->pixels, j);
  const float *x = (const float *)buffers[v->how.x] + part * v->in * s->h * s->w;
  struct qir_sgemm_block block = {
      .a_row = v->k,
      .count = left < v->block_rows ? left : v->block_rows,
      .panel = scratch,
      .width = width,
      .y = (float *)buffers[v->how.y] + (part * v->out + first) * v->pixels + j,
      .y_row = v->pixels,
      .columns = v->pixels - j < width ? v->pixels - j : width,
      .row_bias = v->bias ? v->bias + channel : NULL,
      .bounds = v->how.bounds,
  };
  for (size_t p = 0; p < v->k; p += block.depth) {
    qir_sgemm_depth(v->k, p, &block);
    block.a = (const float *)buffers[v->how.weight] + channel * v->k + p;
    unfold(v, x, j, block.columns, width, p, block.depth, scratch);
    v->kernel->run(&block);
  }
}

int qir_float_conv_make(uint32_t isa, const struct qir_float_conv *how, struct qir_step *step) {
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const struct qir_conv_shape *s = &how->s;
  struct conv *v = qir_step_alloc(sizeof *v + s->oc * sizeof(float));
  if (!v) return 0;
  v->kernel = kernel;
  v->how = *how;
  v->in = s->c / s->groups;
  v->out = s->oc / s->groups;
  v->k = v->in * s->kh * s->kw;
  v->pixels = s->oh * s->ow;
  if (how->bias) v->bias = memcpy(v->numbers, how->bias, s->oc * sizeof(float));
  v->panels = (v->pixels + kernel->width - 1) / kernel->width;
  v->plain = s->kh * s->kw == 1 && s->sh == 1 && s->sw == 1 && v->pixels == s->h * s->w;
  v->frame = frame_of(s);
  v->block_rows = rows_of(v->out, v->panels * s->n * s->groups, v->plain ? 96 : 256);
  v->row_blocks = (v->out + v->block_rows - 1) / v->block_rows;
  const size_t rows = (kernel->width - 1) / s->ow + 2, most = rows < s->oh ? rows : s->oh;
  const size_t frame = v->plain ? 0 : frame_size(s, &v->frame, most);
  *step = (struct qir_step){run_conv, v, (long)(s->n * s->groups * v->row_blocks * v->panels),
                            (PANEL + STRIDE + frame) * sizeof(float)};
  return 1;
}

/* ---- depthwise ---- */

struct depthwise {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_conv how;
  struct frame frame;
  size_t times; /* output channels of an input channel */
  int flat;     /* whether lines are computed as one, with what lies between them */
  size_t frame_size;
  const float *bias; /* or NULL */
  float numbers[];
};

/* A task is one input channel of one image. */
static void run_depthwise(const void *params, void *const *buffers, void *scratch, long task) {
  const struct depthwise *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t channel = (size_t)task % s->c, taps = s->kh * s->kw, pitch = v->frame.pitch;
  float *frame = scratch, *flat = frame + v->frame_size;
  fill_frame(s, &v->frame, (const float *)buffers[v->how.x] + (size_t)task * s->h * s->w, 0, s->oh,
             frame);
  for (size_t i = 0; i < v->times; ++i) {
    const size_t out = channel * v->times + i;
    float *y = (float *)buffers[v->how.y] + ((size_t)task * v->times + i) * s->oh * s->ow;
    struct qir_taps how = {
        .x = frame,
        .at = v->frame.shift,
        .weight = (const float *)buffers[v->how.weight] + out * taps,
        .taps = taps,
        .bias = v->bias ? v->bias[out] : -0.0f,
        .bounds = v->how.bounds,
    };
    if (v->flat) v->kernel->taps(&how, flat, (s->oh - 1) * pitch + s->ow);
    for (size_t line = 0; line < s->oh; ++line, y += s->ow) {
      if (v->flat) {
        memcpy(y, flat + line * pitch, s->ow * sizeof(float));
      } else {
        v->kernel->taps(&how, y, s->ow);
        how.x += s->sh * s->sw * pitch;
      }
    }
  }
}

int qir_float_depthwise_make(uint32_t isa, const struct qir_float_conv *how,
                             struct qir_step *step) {
  enum { NARROW = 32 };
  const struct qir_conv_shape *s = &how->s;
  struct depthwise *v = qir_step_alloc(sizeof *v + s->oc * sizeof(float));
  if (!v) return 0;
  v->kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  v->how = *how;
  v->times = s->oc / s->c;
  v->frame = frame_of(s);
  v->flat = s->sh == 1 && s->sw == 1 && s->ow < NARROW;
  v->frame_size = frame_size(s, &v->frame, s->oh);
  if (how->bias) v->bias = memcpy(v->numbers, how->bias, s->oc * sizeof(float));
  const size_t flat = v->flat ? qir_round_up(s->oh * v->frame.pitch, 16) : 0;
  *step = (struct qir_step){run_depthwise, v, (long)(s->n * s->c),
                            (v->frame_size + flat) * sizeof(float)};
  return 1;
}
