#include "wide.h"

#include <string.h>

#define QIR_WIDE_KERNEL(name, isa, rows)                                       \
  void qir_wide_tile_##name(const double *, const double *, size_t, double *); \
  void qir_wide_floats_##name(const double *, const double *, size_t,          \
                              const struct qir_wide_floats *);                 \
  void qir_wide_taps_##name(const struct qir_wide_taps *, double *);
#include "kernels.inc"
#undef QIR_WIDE_KERNEL

#define QIR_WIDE_KERNEL(name_, isa_, rows_) \
  {.name = "qir_wide_" #name_,              \
   .isa = isa_,                             \
   .rows = rows_,                           \
   .tile = qir_wide_tile_##name_,           \
   .floats = qir_wide_floats_##name_,       \
   .taps = qir_wide_taps_##name_},
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
  size_t parts, together; /* tasks of a matrix, and panels of one */
  size_t line;            /* bytes of a column of blocks */
};

enum { MOST_TOGETHER = 4 /* panels */ };

static void pack_blocks(const struct product *v, size_t first, size_t columns, double *panel) {
  const struct qir_wide_product *h = &v->how;
  const size_t k = h->s.k, count = (k + h->block - 1) / h->block;
  for (size_t j = 0; j < columns; ++j) {
    const uint8_t *codes = h->codes + (first + j) * v->line;
    const float *scale = h->scale + (first + j) * count;
    const int32_t *zero = h->zero + (first + j) * count;
    for (size_t p = 0; p < k; ++p) {
      const int32_t code = h->bits == 8 ? codes[p] : codes[p / 2] >> p % 2 * 4 & 15;
      const float number = (float)((int64_t)code - zero[p / h->block]) * scale[p / h->block];
      panel[p * QIR_WIDE_COLUMNS + j] = (double)number;
    }
  }
}

/* Columns of B whose values are at b[p * value + j * column], as a panel. */
static void pack_columns(const float *restrict b, const struct qir_matmul_shape *s, size_t columns,
                         double *restrict panel) {
  if (s->b_column == 1 && columns == QIR_WIDE_COLUMNS)
    for (size_t p = 0; p < s->k; ++p)
      for (size_t j = 0; j < QIR_WIDE_COLUMNS; ++j)
        panel[p * QIR_WIDE_COLUMNS + j] = (double)b[p * s->b_value + j];
  else
    for (size_t j = 0; j < columns; ++j)
      for (size_t p = 0; p < s->k; ++p)
        panel[p * QIR_WIDE_COLUMNS + j] = (double)b[p * s->b_value + j * s->b_column];
}

/* Rows of A, `stride` from each other, as a tile reads them; those that do not exist are zeros. */
static void pack_rows(const float *restrict a, size_t stride, size_t rows, size_t all, size_t k,
                      double *restrict to) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t p = 0; p < k; ++p) to[r * k + p] = (double)a[r * stride + p];
  memset(to + rows * k, 0, (all - rows) * k * sizeof *to);
}

/* What bias there is for some columns; -0, which changes no sum, where there is none. */
static void widen_bias(const float *bias, size_t n, double *to) {
  for (size_t j = 0; j < n; ++j) to[j] = bias ? (double)bias[j] : -0.0;
}

/* Bytes of panels and of the rows of a tile. */
static size_t tile_scratch(size_t k, size_t panels) {
  return qir_round_up(k * (panels * QIR_WIDE_COLUMNS + QIR_WIDE_ROWS) * sizeof(double), 64);
}

/* A tile of results at y[at] and on, of f32 or of i32. */
static void finish(const struct qir_wide_kernel *kernel, const double *a, const double *panel,
                   size_t k, int to_whole, struct qir_wide_floats *to, void *y, size_t at) {
  if (!to_whole) {
    to->y = (float *)y + at;
    kernel->floats(a, panel, k, to);
    return;
  }
  double sums[QIR_WIDE_ROWS * QIR_WIDE_COLUMNS];
  kernel->tile(a, panel, k, sums);
  for (size_t r = 0; r < to->rows; ++r)
    for (size_t j = 0; j < to->columns; ++j)
      store(y, at + r * to->y_row + j, sums[r * QIR_WIDE_COLUMNS + j] + to->bias[j], 1);
}

/* One task is some panels of columns of one of the matrices. */
static void run_product(const void *params, void *const *buffers, void *scratch, long task) {
  const struct product *v = params;
  const struct qir_matmul_shape *s = &v->how.s;
  const size_t t = (size_t)task / v->parts, all = v->kernel->rows, size = s->k * QIR_WIDE_COLUMNS;
  const size_t begin = (size_t)task % v->parts * v->together * QIR_WIDE_COLUMNS;
  const size_t stop = begin + v->together * QIR_WIDE_COLUMNS, end = stop < s->n ? stop : s->n;
  double *panels = scratch, *lines = panels + v->together * size;
  double bias[MOST_TOGETHER * QIR_WIDE_COLUMNS];
  widen_bias(v->how.bias ? v->how.bias + begin : NULL, end - begin, bias);
  double *panel = panels;
  for (size_t first = begin; first < end; first += QIR_WIDE_COLUMNS, panel += size) {
    const size_t left = end - first, columns = left < QIR_WIDE_COLUMNS ? left : QIR_WIDE_COLUMNS;
    if (columns < QIR_WIDE_COLUMNS) memset(panel, 0, size * sizeof *panel);
    if (v->how.b < 0)
      pack_blocks(v, first, columns, panel);
    else
      pack_columns((const float *)buffers[v->how.b] + s->b_at[t] + first * s->b_column, s, columns,
                   panel);
  }
  const float *a = (const float *)buffers[v->how.a] + s->a_at[t];
  for (size_t i = 0; i < s->m; i += all) {
    const size_t rows = s->m - i < all ? s->m - i : all;
    pack_rows(a + i * s->a_row, s->a_row, rows, all, s->k, lines);
    panel = panels;
    for (size_t first = begin; first < end; first += QIR_WIDE_COLUMNS, panel += size) {
      const size_t left = end - first;
      struct qir_wide_floats to = {.bias = bias + first - begin,
                                   .rows = rows,
                                   .columns = left < QIR_WIDE_COLUMNS ? left : QIR_WIDE_COLUMNS,
                                   .y_row = s->y_row};
      finish(v->kernel, lines, panel, s->k, v->how.to_whole, &to, buffers[v->how.y],
             s->y_at[t] + i * s->y_row + first);
    }
  }
}

/* Panels of one task share the rows of A, as long as they stay in the nearest cache. */
static void divide(struct product *v) {
  enum { CACHE = 32 * 1024, TASKS = 16 };
  const size_t bytes = v->how.s.k * QIR_WIDE_COLUMNS * sizeof(double);
  const size_t panels = (v->how.s.n + QIR_WIDE_COLUMNS - 1) / QIR_WIDE_COLUMNS;
  size_t some = bytes && bytes <= CACHE ? CACHE / bytes : 1;
  if (some > MOST_TOGETHER) some = MOST_TOGETHER;
  if (some > panels) some = panels;
  while (some > 1 && v->how.s.batches * ((panels + some - 1) / some) < TASKS) --some;
  v->parts = some ? (panels + some - 1) / some : 1;
  v->together = v->parts ? (panels + v->parts - 1) / v->parts : 1; /* equal shares */
}

int qir_wide_product_make(uint32_t isa, const struct qir_wide_product *how, struct qir_step *step) {
  const size_t n = how->s.n, k = how->s.k, at = how->s.batches * sizeof(size_t);
  const size_t line = how->bits == 8 ? k : (k + 1) / 2;
  const size_t blocks = how->b < 0 ? n * ((k + how->block - 1) / how->block) : 0;
  const size_t header = qir_round_up(sizeof(struct product), 64);
  struct product *v = qir_step_alloc(
      header + 3 * qir_round_up(at, 64) + qir_round_up(how->bias ? n * sizeof(float) : 0, 64) +
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
  divide(v);
  *step = (struct qir_step){run_product, v, (long)(how->s.batches * v->parts),
                            how->s.batches ? tile_scratch(k, v->together) : 0};
  return 1;
}

/* ---- convolutions ---- */

enum { LARGEST = 1 << 18 /* doubles of a padded plane */, MOST_TAPS = 64 };

struct conv {
  struct qir_wide_conv how;
  const struct qir_wide_kernel *kernel;
  size_t some;              /* panels of output pixels of an image */
  size_t places[MOST_TAPS]; /* of the taps of a depthwise one, in padded planes */
};

/* What the windows of `columns` output pixels from `first` on hold, a line for each channel of a
 * group and tap; outside are zeros. */
static void unfold(const struct conv *v, const float *x, size_t first, size_t columns,
                   double *panel) {
  const struct qir_wide_conv *h = &v->how;
  const size_t deep = h->c / h->groups, area = h->inside[0] * h->inside[1] * h->inside[2];
  const size_t taps = h->kernel[0] * h->kernel[1] * h->kernel[2];
  size_t at[QIR_WIDE_COLUMNS];
  for (size_t tap = 0; tap < taps; ++tap) {
    const size_t of[QIR_WIDE_AXES] = {tap / h->kernel[2] / h->kernel[1],
                                      tap / h->kernel[2] % h->kernel[1], tap % h->kernel[2]};
    for (size_t j = 0; j < columns; ++j) {
      const size_t pixel = first + j;
      const size_t out[QIR_WIDE_AXES] = {pixel / h->out[2] / h->out[1],
                                         pixel / h->out[2] % h->out[1], pixel % h->out[2]};
      at[j] = 0;
      for (int axis = 0; axis < QIR_WIDE_AXES; ++axis) {
        /* what lies before the first element wraps to a large number */
        const size_t place =
            out[axis] * h->stride[axis] + of[axis] * h->dilation[axis] - h->front[axis];
        if (place >= h->inside[axis]) at[j] = SIZE_MAX;
        if (at[j] != SIZE_MAX) at[j] = at[j] * h->inside[axis] + place;
      }
    }
    for (size_t d = 0; d < deep; ++d) {
      double *to = panel + (d * taps + tap) * QIR_WIDE_COLUMNS;
      for (size_t j = 0; j < columns; ++j)
        to[j] = at[j] == SIZE_MAX ? 0 : (double)x[d * area + at[j]];
    }
  }
}

/* One task is some pixels of a group of channels of an image: rows of weights by a panel. */
static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_wide_conv *h = &v->how;
  const size_t wide = h->oc / h->groups, deep = h->c / h->groups;
  const size_t pixels = h->out[0] * h->out[1] * h->out[2];
  const size_t first = (size_t)task % v->some * QIR_WIDE_COLUMNS, left = pixels - first;
  const size_t columns = left < QIR_WIDE_COLUMNS ? left : QIR_WIDE_COLUMNS;
  const size_t group = (size_t)task / v->some % h->groups,
               image = (size_t)task / v->some / h->groups;
  const size_t k = deep * h->kernel[0] * h->kernel[1] * h->kernel[2];
  const size_t area = h->inside[0] * h->inside[1] * h->inside[2];
  const float *x = (const float *)buffers[h->x] + (image * h->c + group * deep) * area;
  const float *w = (const float *)buffers[h->w] + group * wide * k;
  double *panel = scratch, *lines = panel + k * QIR_WIDE_COLUMNS;
  if (columns < QIR_WIDE_COLUMNS) memset(panel, 0, k * QIR_WIDE_COLUMNS * sizeof *panel);
  unfold(v, x, first, columns, panel);
  const size_t all = v->kernel->rows;
  for (size_t i = 0; i < wide; i += all) {
    const size_t rows = wide - i < all ? wide - i : all;
    pack_rows(w + i * k, k, rows, all, k, lines);
    double sums[QIR_WIDE_ROWS * QIR_WIDE_COLUMNS];
    v->kernel->tile(lines, panel, k, sums);
    for (size_t r = 0; r < rows; ++r) {
      const size_t o = group * wide + i + r, at = (image * h->oc + o) * pixels + first;
      const double bias = h->bias ? (double)h->bias[o] : -0.0; /* which changes no sum */
      const double *row = sums + r * QIR_WIDE_COLUMNS;
      if (h->to_whole)
        for (size_t j = 0; j < columns; ++j) store(buffers[h->y], at + j, row[j] + bias, 1);
      else
        for (size_t j = 0; j < columns; ++j)
          ((float *)buffers[h->y])[at + j] = (float)(row[j] + bias);
    }
  }
}

/* ---- depthwise ones ---- */

/* Adds a tap to a line of sums; what it meets outside of the line, or for `from` NULL, is zeros. */
static void add_tap(const struct qir_wide_conv *h, size_t tap, double weight, const float *from,
                    double *restrict sums) {
  const size_t stride = h->stride[2], front = h->front[2], far = tap * h->dilation[2];
  const size_t out = h->out[2], in = h->inside[2];
  size_t low = far >= front ? 0 : (front - far + stride - 1) / stride;
  size_t high = in + front > far ? (in + front - far - 1) / stride + 1 : 0;
  if (high > out) high = out;
  if (low > high || !from) low = high = 0;
  if (weight * 0.0 != 0) { /* infinite or NaN */
    for (size_t i = 0; i < low; ++i) sums[i] += weight * 0.0;
    for (size_t i = high; i < out; ++i) sums[i] += weight * 0.0;
  }
  if (low == high) return;
  from += low * stride + far - front;
  if (stride == 1)
    for (size_t i = 0; i < high - low; ++i) sums[low + i] += weight * (double)from[i];
  else
    for (size_t i = 0; i < high - low; ++i) sums[low + i] += weight * (double)from[i * stride];
}

/* One task is a channel of an image; taps are added in the order in which tiles add them. */
static void run_depthwise(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_wide_conv *h = &v->how;
  const size_t channel = (size_t)task % h->c, lines = h->out[0] * h->out[1];
  const size_t taps = h->kernel[0] * h->kernel[1] * h->kernel[2];
  const float *x =
      (const float *)buffers[h->x] + (size_t)task * h->inside[0] * h->inside[1] * h->inside[2];
  const float *w = (const float *)buffers[h->w] + channel * taps;
  double *sums = scratch;
  for (size_t line = 0; line < lines; ++line) {
    memset(sums, 0, h->out[2] * sizeof *sums);
    for (size_t tap = 0; tap < taps; ++tap) {
      const size_t tz = tap / h->kernel[2] / h->kernel[1], ty = tap / h->kernel[2] % h->kernel[1];
      const size_t z = line / h->out[1] * h->stride[0] + tz * h->dilation[0] - h->front[0];
      const size_t y = line % h->out[1] * h->stride[1] + ty * h->dilation[1] - h->front[1];
      const int there = z < h->inside[0] && y < h->inside[1]; /* below zero wraps */
      add_tap(h, tap % h->kernel[2], (double)w[tap],
              there ? x + (z * h->inside[1] + y) * h->inside[2] : NULL, sums);
    }
    const size_t first = ((size_t)task * lines + line) * h->out[2];
    for (size_t i = 0; i < h->out[2]; ++i)
      store(buffers[h->y], first + i, h->bias ? sums[i] + (double)h->bias[channel] : sums[i],
            h->to_whole);
  }
}

/*
 * Images: a plane is padded once, as one plane for each remainder of the strides, of lines that
 * follow each other. Then each tap reads all output pixels in order, from a place of its own; what
 * it reads between the lines is never kept.
 */
struct padded {
  size_t tall, across; /* lines and columns that are seen, padding included */
  size_t high, line;   /* of them in a plane */
  size_t columns;      /* sums, of QIR_WIDE_COLUMNS a multiple */
};

static size_t seen_along(const struct qir_wide_conv *h, int axis) {
  return (h->out[axis] - 1) * h->stride[axis] + (h->kernel[axis] - 1) * h->dilation[axis] + 1;
}

static struct padded padded_of(const struct qir_wide_conv *h) {
  struct padded p = {seen_along(h, 1), seen_along(h, 2), 0, 0, 0};
  p.high = (p.tall + h->stride[1] - 1) / h->stride[1];
  p.line = (p.across + h->stride[2] - 1) / h->stride[2];
  p.columns = qir_round_up(h->out[1] * p.line, QIR_WIDE_COLUMNS);
  return p;
}

/* Doubles of the planes, and of what a vector reads past them. */
static size_t padded_size(const struct qir_wide_conv *h, const struct padded *p) {
  return h->stride[1] * h->stride[2] * p->high * p->line + p->line + QIR_WIDE_COLUMNS;
}

static void pad_plane(const struct qir_wide_conv *h, const struct padded *p, const float *x,
                      double *to) {
  const size_t sh = h->stride[1], sw = h->stride[2], top = h->front[1], left = h->front[2];
  memset(to, 0, padded_size(h, p) * sizeof *to);
  for (size_t y = 0; y < h->inside[1] && y + top < p->tall; ++y, x += h->inside[2])
    for (size_t phase = 0; phase < sw; ++phase) {
      const size_t plane = (y + top) % sh * sw + phase, first = (phase + sw - left % sw) % sw;
      double *line = to + (plane * p->high + (y + top) / sh) * p->line + (first + left) / sw;
      const size_t room = p->across > left ? p->across - left : 0;
      const size_t end = room < h->inside[2] ? room : h->inside[2];
      if (sw == 1)
        for (size_t i = 0; i < end; ++i) line[i] = (double)x[i];
      else
        for (size_t i = first; i < end; i += sw) *line++ = (double)x[i];
    }
}

/* One task is a channel of an image; taps are added in the order in which tiles add them. */
static void run_planes(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_wide_conv *h = &v->how;
  const struct padded p = padded_of(h);
  const size_t channel = (size_t)task % h->c, taps = h->kernel[1] * h->kernel[2];
  const size_t pixels = h->out[1] * h->out[2], area = h->inside[1] * h->inside[2];
  double *planes = scratch, *sums = planes + padded_size(h, &p);
  pad_plane(h, &p, (const float *)buffers[h->x] + (size_t)task * area, planes);
  v->kernel->taps(&(struct qir_wide_taps){(const float *)buffers[h->w] + channel * taps, planes,
                                          v->places, taps, p.columns},
                  sums);
  const double bias = h->bias ? (double)h->bias[channel] : -0.0; /* which changes no sum */
  const size_t first = (size_t)task * pixels;
  for (size_t y = 0; y < h->out[1]; ++y) {
    const double *line = sums + y * p.line;
    float *to = (float *)buffers[h->y] + first + y * h->out[2];
    if (h->to_whole)
      for (size_t i = 0; i < h->out[2]; ++i)
        store(buffers[h->y], first + y * h->out[2] + i, line[i] + bias, 1);
    else
      for (size_t i = 0; i < h->out[2]; ++i) to[i] = (float)(line[i] + bias);
  }
}

/* Where each tap begins to read. */
static void place_taps(const struct qir_wide_conv *h, size_t *places) {
  const struct padded p = padded_of(h);
  const size_t sh = h->stride[1], sw = h->stride[2];
  for (size_t ky = 0; ky < h->kernel[1]; ++ky)
    for (size_t kx = 0; kx < h->kernel[2]; ++kx) {
      const size_t y = ky * h->dilation[1], x = kx * h->dilation[2];
      *places++ = ((y % sh * sw + x % sw) * p.high + y / sh) * p.line + x / sw;
    }
}

static int is_plane(const struct qir_wide_conv *h) {
  if (h->inside[0] * h->kernel[0] * h->out[0] != 1 || !h->out[1] || !h->out[2]) return 0;
  const struct padded p = padded_of(h);
  return !h->front[0] && padded_size(h, &p) <= LARGEST && h->kernel[1] * h->kernel[2] <= MOST_TAPS;
}

/* ---- transposed ones ---- */

/* Which outputs along an axis a tap meets: the first, how many, and the input of the first of them;
 * they are `stride` apart. */
struct meeting {
  size_t first, count, at;
};

static struct meeting meet(const struct qir_wide_conv *h, int axis, size_t tap) {
  const size_t stride = h->stride[axis], front = h->front[axis], far = tap * h->dilation[axis];
  const size_t in = h->inside[axis], out = h->out[axis];
  const size_t i = far >= front ? 0 : (front - far + stride - 1) / stride;
  struct meeting m = {far + i * stride - front, 0, i};
  if (i < in && m.first < out) {
    const size_t room = (out - 1 - m.first) / stride + 1;
    m.count = room < in - i ? room : in - i;
  }
  return m;
}

/* The input that an output gets from a tap; SIZE_MAX if there is none. */
static size_t source(const struct meeting *m, size_t stride, size_t output) {
  if (output < m->first || (output - m->first) % stride) return SIZE_MAX;
  const size_t i = (output - m->first) / stride;
  return i < m->count ? m->at + i : SIZE_MAX;
}

/* One task is a line of an output channel: all taps, and all channels of the input, in order. */
static void run_transposed(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_wide_conv *h = &v->how;
  const size_t lines = h->out[0] * h->out[1], at = (size_t)task % lines;
  const size_t o = (size_t)task / lines % h->oc, image = (size_t)task / lines / h->oc;
  const size_t deep = h->c / h->groups, wide = h->oc / h->groups, group = o / wide;
  const size_t taps = h->kernel[0] * h->kernel[1] * h->kernel[2];
  const float *x = buffers[h->x], *w = buffers[h->w];
  double *sums = scratch;
  memset(sums, 0, h->out[2] * sizeof *sums);
  for (size_t tap = 0; tap < taps; ++tap) {
    const struct meeting planes = meet(h, 0, tap / h->kernel[2] / h->kernel[1]);
    const struct meeting rows = meet(h, 1, tap / h->kernel[2] % h->kernel[1]);
    const struct meeting along = meet(h, 2, tap % h->kernel[2]);
    const size_t plane = source(&planes, h->stride[0], at / h->out[1]);
    const size_t row = source(&rows, h->stride[1], at % h->out[1]);
    if (plane == SIZE_MAX || row == SIZE_MAX) continue;
    for (size_t d = 0; d < deep; ++d) {
      const size_t c = group * deep + d;
      const double weight = w[(c * wide + o % wide) * taps + tap];
      const float *from =
          x + (((image * h->c + c) * h->inside[0] + plane) * h->inside[1] + row) * h->inside[2] +
          along.at;
      for (size_t i = 0; i < along.count; ++i)
        sums[along.first + i * h->stride[2]] += weight * (double)from[i];
    }
  }
  const size_t first = ((image * h->oc + o) * lines + at) * h->out[2];
  for (size_t i = 0; i < h->out[2]; ++i)
    store(buffers[h->y], first + i, h->bias ? sums[i] + (double)h->bias[o] : sums[i], h->to_whole);
}

int qir_wide_conv_make(uint32_t isa, const struct qir_wide_conv *how, struct qir_step *step) {
  const size_t header = qir_round_up(sizeof(struct conv), 64);
  struct conv *v =
      qir_step_alloc(header + qir_round_up(how->bias ? how->oc * sizeof(float) : 0, 64));
  if (!v) return 0;
  v->how = *how;
  char *end = (char *)v + header;
  v->how.bias = copied(&end, how->bias, how->oc * sizeof(float));
  v->kernel = QIR_SELECT(qir_wide_kernels, isa);
  const size_t lines = how->out[0] * how->out[1], pixels = lines * how->out[2];
  if (how->transposed) {
    *step = (struct qir_step){run_transposed, v, (long)(how->n * how->oc * lines),
                              qir_round_up(how->out[2] * sizeof(double), 64)};
    return 1;
  }
  if (how->groups == how->c && how->c == how->oc && is_plane(how)) {
    const struct padded p = padded_of(how);
    place_taps(how, v->places);
    *step =
        (struct qir_step){run_planes, v, (long)(how->n * how->c),
                          qir_round_up((padded_size(how, &p) + p.columns) * sizeof(double), 64)};
    return 1;
  }
  if (how->groups == how->c && how->c == how->oc) {
    *step = (struct qir_step){run_depthwise, v, pixels ? (long)(how->n * how->c) : 0,
                              qir_round_up(how->out[2] * sizeof(double), 64)};
    return 1;
  }
  const size_t taps = how->kernel[0] * how->kernel[1] * how->kernel[2];
  v->some = (pixels + QIR_WIDE_COLUMNS - 1) / QIR_WIDE_COLUMNS;
  *step = (struct qir_step){run_conv, v, (long)(how->n * how->groups * v->some),
                            tile_scratch(how->c / how->groups * taps, 1)};
  return 1;
}
