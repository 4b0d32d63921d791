#include "matmul.h"

#include <math.h>
#include <string.h>

#include "gemm/gemm.h"

enum { WIDEST = 64 /* columns of a panel */, MOST_ROWS = 384 /* of a task */ };

struct matmul {
  const struct qir_gemm_kernel *kernel;
  struct qir_matmul_shape s;
  struct qir_matmul_operands o;
  int32_t a_zero, b_zero; /* of the bytes as the kernels see them */
  uint8_t b_flip;         /* what makes a byte of B signed */
  size_t depth;           /* k, padded to whole groups of the kernel */
  size_t panels, row_blocks, block_rows;
  size_t offsets[]; /* a_at, b_at and y_at */
};

/* What one task needs, in scratch memory. */
struct parts {
  const void **rows;
  int32_t *shift, *bias;
  float *multiplier;
  char *panel, *copies;
};

static size_t aligned(size_t bytes) { return qir_round_up(bytes, 64); }

/* Lays out the parts from `memory` on, and returns how many bytes they take. */
static size_t lay_out(const struct matmul *v, char *memory, struct parts *parts) {
  const size_t size = v->kernel->widened ? 2 : 1, rows = v->block_rows;
  size_t at = 0;
  parts->rows = (const void **)(memory + at);
  at += aligned(rows * sizeof(void *));
  parts->shift = (int32_t *)(memory + at);
  at += aligned(rows * sizeof(int32_t));
  parts->bias = (int32_t *)(memory + at);
  at += aligned(WIDEST * sizeof(int32_t));
  parts->multiplier = (float *)(memory + at);
  at += aligned(WIDEST * sizeof(float));
  parts->panel = memory + at;
  at += aligned(WIDEST * v->depth * size);
  parts->copies = memory + at;
  return at + aligned(rows * v->depth * size);
}

/* ---- B ---- */

/* Columns whose values p .. p + 3 are rows of B: four lines of bytes are interleaved. */
static void pack_lines(const struct matmul *v, const uint8_t *b, size_t columns, size_t width,
                       const size_t *place, int8_t *panel, uint32_t *sums) {
  uint8_t zeros[WIDEST], group[4 * WIDEST] = {0};
  memset(zeros, v->b_flip, sizeof zeros);
  for (size_t p = 0; p < v->depth; p += 4, panel += 4 * width) {
    const uint8_t *line[4];
    for (size_t i = 0; i < 4; ++i) line[i] = p + i < v->s.k ? b + (p + i) * v->s.b_value : zeros;
    for (size_t j = 0; j < columns; ++j)
      for (size_t i = 0; i < 4; ++i) group[4 * j + i] = line[i][j] ^ v->b_flip;
    for (size_t i = 0; i < 4; ++i)
      for (size_t j = 0; j < columns; ++j)
        sums[j] += (uint32_t)(int32_t)(int8_t)(line[i][j] ^ v->b_flip);
    for (size_t j = 0; j < width; j += 4) memcpy(panel + 4 * place[j], group + 4 * j, 16);
  }
}

/* Columns whose values are neighbours: four of them are copied at once. */
static void pack_columns(const struct matmul *v, const uint8_t *b, size_t columns, size_t width,
                         const size_t *place, int8_t *panel, uint32_t *sums) {
  const size_t whole = v->s.k / 4 * 4;
  const uint32_t flips = v->b_flip * 0x01010101u;
  for (size_t j = 0; j < columns; ++j) {
    const uint8_t *column = b + j * v->s.b_column;
    int8_t *to = panel + 4 * place[j];
    uint32_t sum = 0;
    for (size_t p = 0; p < v->s.k; ++p) sum += (uint32_t)(int32_t)(int8_t)(column[p] ^ v->b_flip);
    sums[j] = sum;
    for (size_t p = 0; p < whole; p += 4) {
      uint32_t word;
      memcpy(&word, column + p, 4);
      word ^= flips;
      memcpy(to + p * width, &word, 4);
    }
    for (size_t p = whole; p < v->s.k; ++p)
      to[whole * width + p - whole] = (int8_t)(column[p] ^ v->b_flip);
  }
}

static void pack_any(const struct matmul *v, const uint8_t *b, size_t columns, size_t width,
                     const size_t *place, char *panel, uint32_t *sums) {
  const size_t kr = v->kernel->kr;
  const int widened = v->kernel->widened;
  for (size_t p = 0; p < v->s.k; ++p) {
    const uint8_t *line = b + p * v->s.b_value;
    const size_t group = p / kr * width * kr + p % kr;
    for (size_t j = 0; j < columns; ++j) {
      const int8_t value = (int8_t)(line[j * v->s.b_column] ^ v->b_flip);
      const size_t at = group + place[j] * kr;
      if (widened)
        ((int16_t *)panel)[at] = value;
      else
        ((int8_t *)panel)[at] = value;
      sums[j] += (uint32_t)(int32_t)value;
    }
  }
}

/* A panel of B, and what A's zero point adds to the sums of its columns. */
static void pack(const struct matmul *v, const uint8_t *b, size_t columns, size_t width,
                 const struct parts *to) {
  const size_t size = v->kernel->widened ? 2 : 1;
  uint32_t sums[WIDEST] = {0};
  size_t place[WIDEST];
  for (size_t j = 0; j < width; ++j) place[j] = qir_gemm_place(width, v->o.to_float, j);
  const int bytes = !v->kernel->widened && v->kernel->kr == 4;
  if (bytes && v->s.b_column == 1) {
    pack_lines(v, b, columns, width, place, (int8_t *)to->panel, sums);
  } else {
    if (columns < width || v->depth > v->s.k) memset(to->panel, 0, v->depth * width * size);
    if (bytes && v->s.b_value == 1)
      pack_columns(v, b, columns, width, place, (int8_t *)to->panel, sums);
    else
      pack_any(v, b, columns, width, place, to->panel, sums);
  }
  const uint32_t both = (uint32_t)v->s.k * (uint32_t)v->a_zero * (uint32_t)v->b_zero;
  const uint32_t zero = (uint32_t)(v->a_zero - qir_isa_centre(v->kernel->isa));
  for (size_t j = 0; j < width; ++j) to->bias[place[j]] = (int32_t)(both - zero * sums[j]);
}

/* ---- A ---- */

static uint32_t row_sum(const uint8_t *a, uint8_t flip, size_t k) {
  uint32_t sum = 0;
  for (size_t p = 0; p < k; ++p) sum += a[p] ^ flip;
  return sum;
}

/* Points to rows, copies those that the kernel cannot read in place, and sums them up. */
static void take_rows(const struct matmul *v, const uint8_t *a, size_t at, size_t count,
                      const struct parts *to) {
  char *copies = to->copies;
  for (size_t i = 0; i < count; ++i, at += v->s.a_row) {
    const uint8_t *row = a + at;
    to->rows[i] = row;
    if (v->kernel->widened) {
      int16_t *wide = (int16_t *)copies;
      for (size_t p = 0; p < v->s.k; ++p) wide[p] = row[p] ^ v->o.a_flip;
      for (size_t p = v->s.k; p < v->depth; ++p) wide[p] = 0;
      to->rows[i] = wide;
      copies += v->depth * 2;
    } else if (at + v->depth > v->s.a_end) {
      memcpy(copies, row, v->s.k);
      memset(copies + v->s.k, 0, v->depth - v->s.k);
      to->rows[i] = copies;
      copies += v->depth;
    }
    to->shift[i] = (int32_t)(0 - (uint32_t)v->b_zero * row_sum(row, v->o.a_flip, v->s.k));
  }
}

/* ---- all ---- */

/* A task is a block of rows by a panel of columns, of one matrix. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct matmul *v = params;
  const size_t full = v->kernel->nr * v->kernel->nv, j = (size_t)task % v->panels * full;
  const size_t rest = (size_t)task / v->panels, first = rest % v->row_blocks * v->block_rows;
  const size_t batch = rest / v->row_blocks, *at = v->offsets + batch;
  const size_t left = v->s.m - first, count = left < v->block_rows ? left : v->block_rows;
  const size_t width = qir_gemm_width(v->kernel, v->s.n, j);
  size_t columns = v->s.n - j < width ? v->s.n - j : width;
  struct parts parts;
  lay_out(v, scratch, &parts);
  pack(v, (const uint8_t *)buffers[v->o.b] + at[v->s.batches] + j * v->s.b_column, columns, width,
       &parts);
  take_rows(v, buffers[v->o.a], at[0] + first * v->s.a_row, count, &parts);
  for (size_t c = 0; c < width; ++c) parts.multiplier[c] = v->o.multiplier;
#if defined(QIR_FAULT_TAIL_MATMUL) /* never in a build to use, as in gemm.c */
  if (columns < width) --columns;
#endif
  const struct qir_gemm_block block = {
      .rows = parts.rows,
      .row_stride = count,
      .count = count,
      .taps = 1,
      .depth = v->depth,
      .panel = parts.panel,
      .bias = parts.bias,
      .shift = parts.shift,
      .multiplier = parts.multiplier,
      .below_one = fabsf(v->o.multiplier) < 1,
      .width = width,
      .columns = columns,
      .y = (char *)buffers[v->o.y] +
           (at[2 * v->s.batches] + first * v->s.y_row + j) * (v->o.to_float ? 4 : 1),
      .y_stride = v->s.y_row,
      .code = v->o.code,
      .x_flip = v->o.a_flip,
      .to_float = v->o.to_float,
  };
  v->kernel->run(&block);
}

int qir_matmul_make(uint32_t isa, const struct qir_matmul_shape *shape,
                    const struct qir_matmul_operands *o, struct qir_step *step) {
  const struct qir_gemm_kernel *kernel = QIR_SELECT(qir_gemm_kernels, isa);
  const size_t bytes = shape->batches * sizeof(size_t), full = kernel->nr * kernel->nv;
  struct matmul *v = qir_step_alloc(sizeof *v + 3 * bytes);
  if (!v) return 0;
  v->kernel = kernel;
  v->s = *shape;
  v->o = *o;
  if (bytes) {
    memcpy(v->offsets, shape->a_at, bytes);
    memcpy(v->offsets + shape->batches, shape->b_at, bytes);
    memcpy(v->offsets + 2 * shape->batches, shape->y_at, bytes);
  }
  v->a_zero = o->a_zero + o->a_flip;
  v->b_flip = o->b_flip ^ 0x80;
  v->b_zero = o->b_zero - v->b_flip;
  v->depth = qir_round_up(shape->k, kernel->kr);
  v->panels = (shape->n + full - 1) / full;
  v->row_blocks = (shape->m + MOST_ROWS - 1) / MOST_ROWS;
  v->block_rows = v->row_blocks ? (shape->m + v->row_blocks - 1) / v->row_blocks : 0;
  struct parts parts;
  step->run = run;
  step->params = v;
  step->tasks = (long)(shape->batches * v->row_blocks * v->panels);
  step->scratch = lay_out(v, NULL, &parts);
  return 1;
}
