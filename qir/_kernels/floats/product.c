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
  struct qir_panels panels;
  size_t row_blocks, block_rows;
  const float *bias; /* or NULL */
  float numbers[];   /* panels, then the bias */
};

/* A task is a block of rows by a panel; tasks of a panel follow each other. */
static void run_linear(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct linear *v = params;
  const struct qir_panel at = qir_panel_at(&v->panels, (size_t)task / v->row_blocks);
  const size_t k = v->how.k, n = v->how.n;
  const size_t first = (size_t)task % v->row_blocks * v->block_rows, left = v->how.rows - first;
  struct qir_sgemm_block block = {
      .a_row = k,
      .a_value = 1,
      .count = left < v->block_rows ? left : v->block_rows,
      .width = at.width,
      .y = (float *)buffers[v->how.y] + first * n + at.first,
      .y_row = n,
      .columns = at.columns,
      .column_bias = v->bias ? v->bias + at.first : NULL,
      .bounds = v->how.bounds,
  };
  for (size_t p = 0; p < k; p += block.depth) {
    qir_sgemm_depth(k, p, &block);
    block.a = (const float *)buffers[v->how.x] + first * k + p;
    block.panel = v->numbers + at.first * k + p * at.width;
    qir_sgemm_next(&block, v->numbers + qir_packed_size(&v->panels, k));
    v->kernel->run(&block);
  }
}

int qir_float_linear_make(uint32_t isa, const struct qir_float_linear *how, struct qir_step *step) {
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const struct qir_panels panels = qir_panels_of(kernel, how->n);
  const size_t packed = qir_packed_size(&panels, how->k);
  struct linear *v = qir_step_alloc(sizeof *v + (packed + how->n) * sizeof(float));
  if (!v) return 0;
  v->kernel = kernel;
  v->how = *how;
  v->panels = panels;
  v->block_rows = rows_of(how->rows, panels.count, 96);
  v->row_blocks = v->block_rows ? (how->rows + v->block_rows - 1) / v->block_rows : 0;
  qir_pack_weights(&panels, how->weight, how->k, v->numbers);
  if (how->bias) v->bias = memcpy(v->numbers + packed, how->bias, how->n * sizeof(float));
  *step = (struct qir_step){run_linear, v, (long)(v->row_blocks * panels.count), 0};
  return 1;
}

/* ---- of two computed operands ---- */

struct matmul {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_matmul how;
  struct qir_panels panels;
  size_t row_blocks, block_rows;
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
  const struct qir_panel panel = qir_panel_at(&v->panels, (size_t)task % v->panels.count);
  const size_t rest = (size_t)task / v->panels.count, j = panel.first, width = panel.width;
  const size_t first = rest % v->row_blocks * v->block_rows, batch = rest / v->row_blocks;
  const size_t *at = v->offsets + batch, left = s->m - first;
  const float *a = (const float *)buffers[v->how.a] + at[0] + first * s->a_row;
  const float *b = (const float *)buffers[v->how.b] + at[s->batches] + j * s->b_column;
  struct qir_sgemm_block block = {
      .a_row = s->a_row,
      .a_value = 1,
      .count = left < v->block_rows ? left : v->block_rows,
      .panel = scratch,
      .width = width,
      .y = (float *)buffers[v->how.y] + at[2 * s->batches] + first * s->y_row + j,
      .y_row = s->y_row,
      .columns = panel.columns,
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
  v->panels = qir_panels_of(kernel, s->n);
  v->block_rows = rows_of(s->m, v->panels.count * s->batches, 96);
  v->row_blocks = v->block_rows ? (s->m + v->block_rows - 1) / v->block_rows : 0;
  *step = (struct qir_step){run_matmul, v, (long)(s->batches * v->row_blocks * v->panels.count),
                            PANEL * sizeof(float)};
  return 1;
}

/* ---- convolution ---- */

struct conv {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_conv how;
  struct qir_panels panels;
  size_t row_blocks, block_rows;
  size_t in, out, k, pixels; /* channels of a group, values of a sum, pixels of the output */
  const float *bias;         /* or NULL */
  float numbers[];           /* packed weights if channels are columns, then the bias */
};

/* A task is a panel of pixels by a block of output channels, of one group of one image. */
static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const struct qir_panel at = qir_panel_at(&v->panels, (size_t)task % v->panels.count);
  const size_t rest = (size_t)task / v->panels.count;
  const size_t first = rest % v->row_blocks * v->block_rows, part = rest / v->row_blocks;
  const size_t left = v->out - first;
  const size_t channel = part % s->groups * v->out + first; /* of the output */
  struct qir_unfold seen = {
      .s = s,
      .x = (const float *)buffers[v->how.x] + part * v->in * s->h * s->w,
      .j = at.first,
      .columns = at.columns,
      .width = at.width,
  };
  struct qir_sgemm_block block = {
      .a_row = v->k,
      .a_value = 1,
      .count = left < v->block_rows ? left : v->block_rows,
      .panel = scratch,
      .width = at.width,
      .y = (float *)buffers[v->how.y] + (part * v->out + first) * v->pixels + at.first,
      .y_row = v->pixels,
      .columns = at.columns,
      .row_bias = v->bias ? v->bias + channel : NULL,
      .bounds = v->how.bounds,
  };
  for (size_t p = 0; p < v->k; p += block.depth) {
    seen.p = p;
    seen.depth = qir_sgemm_depth(v->k, p, &block);
    block.a = (const float *)buffers[v->how.weight] + channel * v->k + p;
    v->kernel->unfold(&seen, scratch);
    v->kernel->run(&block);
  }
}

enum { FEW = QIR_SGEMM_WIDEST /* pixels of an image whose channels are columns */ };

/* A task is a panel of output channels, for all pixels of one group of one image. */
static void run_few_pixels(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const struct qir_panel at = qir_panel_at(&v->panels, (size_t)task % v->panels.count);
  const size_t part = (size_t)task / v->panels.count, group = part % s->groups;
  const int plain = qir_conv_plain(s);
  float *sums = (float *)scratch + PANEL + QIR_SGEMM_SLOP;
  struct qir_unfold seen = {
      .s = s,
      .x = (const float *)buffers[v->how.x] + part * v->in * s->h * s->w,
      .columns = v->pixels,
      .width = FEW,
  };
  struct qir_sgemm_block block = {
      .a_row = 1,
      .a_value = plain ? v->pixels : FEW,
      .count = v->pixels,
      .width = at.width,
      .y = sums,
      .y_row = at.width,
      .columns = at.width,
      .bounds = v->how.bounds,
  };
  const float *panels = v->numbers + group * qir_packed_size(&v->panels, v->k) + at.first * v->k;
  for (size_t p = 0; p < v->k; p += block.depth) {
    seen.p = p;
    seen.depth = qir_sgemm_depth(v->k, p, &block);
    block.a = plain ? seen.x + p * v->pixels : scratch;
    block.panel = panels + p * at.width;
    block.column_bias =
        v->bias ? v->bias + group * v->panels.vectors * v->panels.nr + at.first : NULL;
    if (!plain) v->kernel->unfold(&seen, scratch);
    v->kernel->run(&block);
  }
  float *y = (float *)buffers[v->how.y] + (part * v->out + at.first) * v->pixels;
  for (size_t j = 0; j < at.columns; ++j, y += v->pixels)
    for (size_t i = 0; i < v->pixels; ++i) y[i] = sums[i * at.width + j];
}

/* Whether vectors of channels are better than vectors of pixels: these would be half empty. */
static int few_pixels(const struct qir_sgemm_kernel *kernel, const struct qir_float_conv *how) {
  const size_t pixels = how->s.oh * how->s.ow, out = how->s.oc / how->s.groups;
  return how->constant && pixels <= FEW && out >= 2 * kernel->nr && pixels % kernel->nr != 0 &&
         pixels < 4 * kernel->nr;
}

int qir_float_conv_make(uint32_t isa, const struct qir_float_conv *how, struct qir_step *step) {
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const struct qir_conv_shape *s = &how->s;
  const size_t out = s->oc / s->groups, k = s->c / s->groups * s->kh * s->kw;
  const size_t pixels = s->oh * s->ow, parts = s->n * s->groups;
  const int few = few_pixels(kernel, how);
  const struct qir_panels panels = qir_panels_of(kernel, few ? out : pixels);
  const size_t group = few ? qir_packed_size(&panels, k) : 0, width = panels.vectors * panels.nr;
  const size_t biases = few ? s->groups * width : s->oc;
  struct conv *v = qir_step_alloc(sizeof *v + (s->groups * group + biases) * sizeof(float));
  if (!v) return 0;
  v->kernel = kernel;
  v->how = *how;
  v->how.constant = NULL; /* the caller's */
  v->in = s->c / s->groups;
  v->out = out;
  v->k = k;
  v->pixels = pixels;
  v->panels = panels;
  float *bias = v->numbers + s->groups * group;
  if (how->bias) v->bias = bias;
  if (few) {
    for (size_t g = 0; g < s->groups; ++g) {
      qir_pack_weights(&panels, how->constant + g * out * k, k, v->numbers + g * group);
      if (how->bias) memcpy(bias + g * width, how->bias + g * out, out * sizeof(float));
    }
    *step = (struct qir_step){run_few_pixels, v, (long)(parts * panels.count),
                              (PANEL + QIR_SGEMM_SLOP + FEW * QIR_SGEMM_WIDEST) * sizeof(float)};
    return 1;
  }
  if (how->bias) memcpy(bias, how->bias, s->oc * sizeof(float));
  v->block_rows = rows_of(out, panels.count * parts, qir_conv_plain(s) ? 96 : 256);
  v->row_blocks = (out + v->block_rows - 1) / v->block_rows;
  *step = (struct qir_step){run_conv, v, (long)(parts * v->row_blocks * panels.count),
                            (PANEL + QIR_SGEMM_SLOP) * sizeof(float)};
  return 1;
}

/* ---- depthwise ---- */

struct depthwise {
  const struct qir_sgemm_kernel *kernel;
  struct qir_float_conv how;
  const float *bias; /* or NULL */
  float numbers[];
};

/* A task is one output channel of one image. */
static void run_depthwise(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct depthwise *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t out = (size_t)task % s->oc, image = (size_t)task / s->oc;
  const size_t channel = image * s->c + out / (s->oc / s->c);
  const struct qir_plane plane = {
      .s = s,
      .x = (const float *)buffers[v->how.x] + channel * s->h * s->w,
      .weight = (const float *)buffers[v->how.weight] + out * s->kh * s->kw,
      .bias = v->bias ? v->bias[out] : -0.0f,
      .bounds = v->how.bounds,
  };
  v->kernel->plane(&plane, (float *)buffers[v->how.y] + (size_t)task * s->oh * s->ow);
}

int qir_float_depthwise_make(uint32_t isa, const struct qir_float_conv *how,
                             struct qir_step *step) {
  const struct qir_conv_shape *s = &how->s;
  struct depthwise *v = qir_step_alloc(sizeof *v + s->oc * sizeof(float));
  if (!v) return 0;
  v->kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  v->how = *how;
  v->how.constant = NULL;
  if (how->bias) v->bias = memcpy(v->numbers, how->bias, s->oc * sizeof(float));
  *step = (struct qir_step){run_depthwise, v, (long)(s->n * s->oc), 0};
  return 1;
}
