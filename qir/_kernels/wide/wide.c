#include "wide.h"

#include <math.h>
#include <string.h>

#define QIR_WIDE_KERNEL(name, isa)                                                  \
  void qir_wide_tile_##name(const float *const *, const float *, size_t, double *); \
  void qir_wide_tap_##name(const double *, const float *, size_t, size_t, double *, size_t);
#include "kernels.inc"
#undef QIR_WIDE_KERNEL

#define QIR_WIDE_KERNEL(name_, isa_) \
  {.name = "qir_wide_" #name_,       \
   .isa = isa_,                      \
   .tile = qir_wide_tile_##name_,    \
   .tap = qir_wide_tap_##name_},
const struct qir_wide_kernel qir_wide_kernels[] = {
#include "kernels.inc"
};
#undef QIR_WIDE_KERNEL
const size_t qir_wide_kernel_count = sizeof qir_wide_kernels / sizeof *qir_wide_kernels;

/* A copy of `count` items behind a struct, or NULL. */
static void *copied(char **at, const void *from, size_t bytes) {
  if (!from) return NULL;
  void *to = memcpy(*at, from, bytes);
  *at += qir_round_up(bytes, 64);
  return to;
}

static void store(void *y, size_t at, double sum, int to_whole) {
  if (to_whole)
    ((int32_t *)y)[at] = (int32_t)(uint64_t)(int64_t)sum;
  else
    ((float *)y)[at] = (float)sum;
}

/* ---- products ---- */

struct product {
  struct qir_wide_product how;
  const struct qir_wide_kernel *kernel;
  size_t panels, line; /* of a matrix; bytes of a column of blocks */
};

static void pack_blocks(const struct product *v, size_t first, size_t columns, float *panel) {
  const struct qir_wide_product *h = &v->how;
  const size_t k = h->s.k, count = (k + h->block - 1) / h->block;
  for (size_t j = 0; j < columns; ++j) {
    const uint8_t *codes = h->codes + (first + j) * v->line;
    const float *scale = h->scale + (first + j) * count;
    const int32_t *zero = h->zero + (first + j) * count;
    for (size_t p = 0; p < k; ++p) {
      const int32_t code = h->bits == 8 ? codes[p] : codes[p / 2] >> p % 2 * 4 & 15;
      panel[p * QIR_WIDE_COLUMNS + j] = (float)(code - zero[p / h->block]) * scale[p / h->block];
    }
  }
}

/* One task is a panel of columns of one of the matrices. */
static void run_product(const void *params, void *const *buffers, void *scratch, long task) {
  const struct product *v = params;
  const struct qir_matmul_shape *s = &v->how.s;
  const size_t t = (size_t)task / v->panels;
  const size_t first = (size_t)task % v->panels * QIR_WIDE_COLUMNS, left = s->n - first;
  const size_t columns = left < QIR_WIDE_COLUMNS ? left : QIR_WIDE_COLUMNS;
  float *panel = scratch;
  if (columns < QIR_WIDE_COLUMNS) memset(panel, 0, s->k * QIR_WIDE_COLUMNS * sizeof *panel);
  if (v->how.b < 0) {
    pack_blocks(v, first, columns, panel);
  } else {
    const float *b = (const float *)buffers[v->how.b] + s->b_at[t] + first * s->b_column;
    for (size_t p = 0; p < s->k; ++p)
      for (size_t j = 0; j < columns; ++j)
        panel[p * QIR_WIDE_COLUMNS + j] = b[p * s->b_value + j * s->b_column];
  }
  const float *a = (const float *)buffers[v->how.a] + s->a_at[t];
  double sums[QIR_WIDE_ROWS * QIR_WIDE_COLUMNS];
  for (size_t i = 0; i < s->m; i += QIR_WIDE_ROWS) {
    const size_t rows = s->m - i < QIR_WIDE_ROWS ? s->m - i : QIR_WIDE_ROWS;
    const float *lines[QIR_WIDE_ROWS];
    for (size_t r = 0; r < QIR_WIDE_ROWS; ++r) lines[r] = a + (i + (r < rows ? r : 0)) * s->a_row;
    v->kernel->tile(lines, panel, s->k, sums);
    for (size_t r = 0; r < rows; ++r)
      for (size_t j = 0; j < columns; ++j) {
        const double sum = sums[r * QIR_WIDE_COLUMNS + j];
        const double shift = v->how.bias ? (double)v->how.bias[first + j] : 0;
        store(buffers[v->how.y], s->y_at[t] + (i + r) * s->y_row + first + j,
              v->how.bias ? sum + shift : sum, v->how.to_whole);
      }
  }
}

int qir_wide_product_make(uint32_t isa, const struct qir_wide_product *how, struct qir_step *step) {
  const size_t n = how->s.n, k = how->s.k, at = how->s.batches * sizeof(size_t);
  const size_t line = how->bits == 8 ? k : (k + 1) / 2;
  const size_t blocks = how->b < 0 ? n * ((k + how->block - 1) / how->block) : 0;
  const size_t header = qir_round_up(sizeof(struct product), 64);
  struct product *v = qir_step_alloc(
      header + 3 * qir_round_up(at, 64) + qir_round_up(n * sizeof(float), 64) +
      qir_round_up(how->b < 0 ? n * line : 0, 64) + 2 * qir_round_up(blocks * sizeof(float), 64));
  if (!v) return 0;
  v->how = *how;
  v->line = line;
  char *end = (char *)v + header;
  v->how.s.a_at = copied(&end, how->s.a_at, at);
  v->how.s.b_at = copied(&end, how->s.b_at, at);
  v->how.s.y_at = copied(&end, how->s.y_at, at);
  v->how.bias = copied(&end, how->bias, n * sizeof(float));
  if (how->b < 0) {
    v->how.codes = copied(&end, how->codes, n * line);
    v->how.scale = copied(&end, how->scale, blocks * sizeof(float));
    v->how.zero = copied(&end, how->zero, blocks * sizeof(int32_t));
  }
  v->kernel = QIR_SELECT(qir_wide_kernels, isa);
  v->panels = (n + QIR_WIDE_COLUMNS - 1) / QIR_WIDE_COLUMNS;
  *step = (struct qir_step){run_product, v, (long)(how->s.batches * v->panels),
                            qir_round_up(k * QIR_WIDE_COLUMNS * sizeof(float), 64)};
  return 1;
}

/* ---- convolutions ---- */

struct conv {
  struct qir_wide_conv how;
  const struct qir_wide_kernel *kernel;
  size_t some; /* QIR_WIDE_ROWS channels or fewer at a time, of a group */
};

/* Which outputs along an axis a tap of the kernel meets: the first, how many, and where the first
 * of them is in the input. */
struct meeting {
  size_t first, count, at, step;
};

/* Inputs are one step apart where outputs are `stride` apart, or the other way round. */
static struct meeting meet(const struct qir_wide_conv *h, int axis, size_t tap) {
  const size_t stride = h->stride[axis], front = h->front[axis];
  const size_t far = tap * h->dilation[axis], in = h->inside[axis], out = h->out[axis];
  struct meeting m = {0, 0, 0, stride};
  if (h->transposed) { /* output o + front = far + i * stride */
    const size_t i = far >= front ? 0 : (front - far + stride - 1) / stride;
    m.first = far + i * stride - front;
    m.at = i;
    if (i < in && m.first < out) {
      const size_t room = (out - 1 - m.first) / stride + 1;
      m.count = room < in - i ? room : in - i;
    }
    return m;
  }
  m.first = far >= front ? 0 : (front - far + stride - 1) / stride;
  m.at = m.first * stride + far - front; /* may be past the end */
  if (m.first < out && m.at < in) {
    const size_t room = (in - 1 - m.at) / stride + 1;
    m.count = room < out - m.first ? room : out - m.first;
  }
  return m;
}

/* Adds a tap where it meets zeros: it is 0 but for a weight that is no finite number. */
static void beside(const double *w, const struct meeting *m, size_t out, double *sums) {
  for (size_t r = 0; r < QIR_WIDE_ROWS; ++r) {
    const double none = w[r] * 0;
    if (none == 0) continue;
    for (size_t i = 0; i < out; ++i)
      if (i < m->first || i >= m->first + m->count) sums[r * out + i] += none;
  }
}

/* One output line of some channels: all taps of all channels of the input, in order. */
static void line(const struct conv *v, void *const *buffers, size_t image, size_t group,
                 size_t channel, size_t rows, size_t i, size_t j, double *sums) {
  const struct qir_wide_conv *h = &v->how;
  const float *x = buffers[h->x], *w = buffers[h->w];
  const size_t deep = h->c / h->groups, wide = h->oc / h->groups, out = h->out[2];
  const size_t taps = h->kernel[0] * h->kernel[1] * h->kernel[2];
  memset(sums, 0, QIR_WIDE_ROWS * out * sizeof *sums);
  for (size_t tap = 0; tap < taps; ++tap) {
    const size_t c = tap % h->kernel[2], b = tap / h->kernel[2] % h->kernel[1];
    const size_t a = tap / h->kernel[2] / h->kernel[1];
    const struct meeting along = meet(h, 2, c);
    const struct meeting planes = meet(h, 0, a), lines = meet(h, 1, b);
    size_t plane = SIZE_MAX, row = SIZE_MAX;
    const size_t step = h->transposed ? 1 : h->stride[0], over = h->transposed ? h->stride[0] : 1;
    if (i >= planes.first && (i - planes.first) % over == 0 &&
        (i - planes.first) / over < planes.count)
      plane = planes.at + (i - planes.first) / over * step;
    const size_t down = h->transposed ? 1 : h->stride[1], apart = h->transposed ? h->stride[1] : 1;
    if (j >= lines.first && (j - lines.first) % apart == 0 &&
        (j - lines.first) / apart < lines.count)
      row = lines.at + (j - lines.first) / apart * down;
    const int outside = plane == SIZE_MAX || row == SIZE_MAX;
    if (outside && h->transposed) continue;
    for (size_t d = 0; d < deep; ++d) {
      double weights[QIR_WIDE_ROWS];
      for (size_t r = 0; r < QIR_WIDE_ROWS; ++r) {
        const size_t o = channel + (r < rows ? r : 0);
        const size_t at =
            h->transposed ? (group * deep + d) * wide + o : (group * wide + o) * deep + d;
        weights[r] = w[at * taps + tap];
      }
      struct meeting met = along;
      if (outside) met.count = 0;
      if (!h->transposed) beside(weights, &met, out, sums);
      if (!met.count) continue;
      const float *from =
          x +
          (((image * h->c + group * deep + d) * h->inside[0] + plane) * h->inside[1] + row) *
              h->inside[2] +
          met.at;
      if (h->transposed) {
        for (size_t r = 0; r < rows; ++r)
          for (size_t p = 0; p < met.count; ++p)
            sums[r * out + met.first + p * h->stride[2]] += weights[r] * (double)from[p];
      } else {
        v->kernel->tap(weights, from, h->stride[2], met.count, sums + met.first, out);
      }
    }
  }
}

/* One task is a line of some channels of an image. */
static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_wide_conv *h = &v->how;
  const size_t wide = h->oc / h->groups, lines = h->out[0] * h->out[1];
  const size_t at = (size_t)task % lines, rest = (size_t)task / lines;
  const size_t channel = rest % v->some * QIR_WIDE_ROWS, group = rest / v->some % h->groups;
  const size_t image = rest / v->some / h->groups;
  const size_t rows = wide - channel < QIR_WIDE_ROWS ? wide - channel : QIR_WIDE_ROWS;
  double *sums = scratch;
  line(v, buffers, image, group, channel, rows, at / h->out[1], at % h->out[1], sums);
  for (size_t r = 0; r < rows; ++r) {
    const size_t o = group * wide + channel + r, first = ((image * h->oc + o) * lines + at);
    for (size_t i = 0; i < h->out[2]; ++i) {
      const double sum = sums[r * h->out[2] + i];
      store(buffers[h->y], first * h->out[2] + i, h->bias ? sum + (double)h->bias[o] : sum,
            h->to_whole);
    }
  }
}

int qir_wide_conv_make(uint32_t isa, const struct qir_wide_conv *how, struct qir_step *step) {
  const size_t header = qir_round_up(sizeof(struct conv), 64);
  struct conv *v = qir_step_alloc(header + qir_round_up(how->oc * sizeof(float), 64));
  if (!v) return 0;
  v->how = *how;
  char *end = (char *)v + header;
  v->how.bias = copied(&end, how->bias, how->oc * sizeof(float));
  v->kernel = QIR_SELECT(qir_wide_kernels, isa);
  v->some = (how->oc / how->groups + QIR_WIDE_ROWS - 1) / QIR_WIDE_ROWS;
  *step = (struct qir_step){run_conv, v,
                            (long)(how->n * how->groups * v->some * how->out[0] * how->out[1]),
                            qir_round_up(QIR_WIDE_ROWS * how->out[2] * sizeof(double), 64)};
  return 1;
}
