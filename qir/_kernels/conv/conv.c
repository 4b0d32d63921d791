#include "conv.h"

#include <string.h>

#include "gemm/gemm.h"

struct conv {
  const struct qir_gemm_kernel *kernel;
  struct qir_conv_shape s;
  struct qir_gemm_block block; /* what all blocks have in common */
  int x, y;
  size_t taps, cg, og; /* taps of the window, channels of a group */
  int dense;           /* output pixel i reads input pixel i and no other */
  int gather;          /* rows of A are copied to scratch, as `block.depth` values each */
  int lines;           /* taps beside each other are neighbours in memory */
  size_t rows, row_blocks, panel_blocks, pixels;
  size_t group_bytes;
  const uint8_t *pad; /* cg bytes of the zero point */
  char *packed;
  struct qir_gemm_packed groups[]; /* one a group */
};

/* Input bytes of the output pixels first .. first + count - 1, all in one row of the output. */
static void point_run(const struct conv *v, const uint8_t *x, size_t first, size_t count,
                      const void **rows, size_t stride) {
  const struct qir_conv_shape *s = &v->s;
  const size_t ox = first % s->ow, oy = first / s->ow % s->oh, n = first / s->ow / s->oh;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t iy = oy * s->sh + ky * s->dh - s->pt; /* wraps below zero: then not below h */
    for (size_t kx = 0; kx < s->kw; ++kx, rows += stride) {
      if (iy >= s->h) {
        for (size_t i = 0; i < count; ++i) rows[i] = v->pad;
        continue;
      }
      const uint8_t *line = x + (n * s->h + iy) * s->w * s->c;
      size_t ix = ox * s->sw + kx * s->dw - s->pl;
      for (size_t i = 0; i < count; ++i, ix += s->sw)
        rows[i] = ix < s->w ? line + ix * s->c : v->pad;
    }
  }
}

static void point_rows(const struct conv *v, const uint8_t *x, size_t first, size_t count,
                       const void **rows) {
  if (v->dense) {
    for (size_t i = 0; i < count; ++i) rows[i] = x + (first + i) * v->s.c;
    return;
  }
  for (size_t i = 0; i < count;) {
    const size_t left = v->s.ow - (first + i) % v->s.ow;
    const size_t run = left < count - i ? left : count - i;
    point_run(v, x, first + i, run, rows + i, count);
    i += run;
  }
}

/* Copies n bytes, few of them: eight at a time, the last eight again where n is no multiple. */
static inline void copy_few(uint8_t *to, const uint8_t *from, size_t n) {
  uint64_t eight;
  if (n < 8) {
    for (size_t i = 0; i < n; ++i) to[i] = from[i];
    return;
  }
  for (size_t i = 0; i + 8 <= n; i += 8) {
    memcpy(&eight, from + i, 8);
    memcpy(to + i, &eight, 8);
  }
  memcpy(&eight, from + n - 8, 8);
  memcpy(to + n - 8, &eight, 8);
}

static void copy_values(const struct conv *v, char *to, const uint8_t *from, size_t at, size_t n) {
  if (!v->kernel->widened) {
    if (n > 128)
      memcpy(to + at, from, n);
    else
      copy_few((uint8_t *)to + at, from, n);
    return;
  }
  int16_t *wide = (int16_t *)to + at;
  const uint8_t flip = v->block.x_flip;
  for (size_t i = 0; i < n; ++i) wide[i] = (uint8_t)(from[i] ^ flip);
}

/* Copies line ky of the windows of neighbouring pixels; a tap outside of x is padding. */
static void gather_line(const struct conv *v, const uint8_t *line, size_t ox, size_t count,
                        size_t at, char *to) {
  const struct qir_conv_shape *s = &v->s;
  const size_t bytes = v->block.depth * (v->kernel->widened ? 2 : 1);
  size_t left = ox * s->sw - s->pl; /* wraps below zero: then not below w */
  for (size_t i = 0; i < count; ++i, left += s->sw, to += bytes) {
    if (line && v->lines && left < s->w && left + s->kw <= s->w) {
      copy_values(v, to, line + left * s->c, at, s->kw * v->cg);
      continue;
    }
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const size_t ix = left + kx * s->dw;
      const uint8_t *from = line && ix < s->w ? line + ix * s->c : v->pad;
      copy_values(v, to, from, at + kx * v->cg, v->cg);
    }
  }
}

/* Copies the windows of the pixels first .. first + count - 1, all in one row of the output. */
static void gather_run(const struct conv *v, const uint8_t *x, size_t first, size_t count,
                       char *to) {
  const struct qir_conv_shape *s = &v->s;
  const size_t ox = first % s->ow, oy = first / s->ow % s->oh, n = first / s->ow / s->oh;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t iy = oy * s->sh + ky * s->dh - s->pt;
    const uint8_t *line = iy < s->h ? x + (n * s->h + iy) * s->w * s->c : NULL;
    gather_line(v, line, ox, count, ky * s->kw * v->cg, to);
  }
}

static void gather(const struct conv *v, const uint8_t *x, size_t first, size_t count,
                   const void **rows) {
  char *to = (char *)(rows + qir_round_up(v->rows, 8));
  const size_t size = v->kernel->widened ? 2 : 1, bytes = v->block.depth * size;
  const size_t used = v->taps * v->cg * size; /* what is behind is multiplied by zero */
  for (size_t i = 0; i < count; ++i) {
    rows[i] = to + i * bytes;
    for (size_t j = used; j < bytes; ++j) to[i * bytes + j] = 0;
  }
  for (size_t i = 0; i < count;) {
    const size_t left = v->s.ow - (first + i) % v->s.ow;
    const size_t run = left < count - i ? left : count - i;
    gather_run(v, x, first + i, run, to + i * bytes);
    i += run;
  }
}

static void run_group(const struct conv *v, const uint8_t *x, char *y, size_t g, size_t first,
                      size_t count, size_t begin, size_t end, void *scratch) {
  const void **rows = scratch;
  struct qir_gemm_block block = v->block;
  if (v->gather)
    gather(v, x + g * v->cg, first, count, rows);
  else
    point_rows(v, x + g * v->cg, first, count, rows);
  block.rows = rows;
  block.row_stride = block.count = count;
  for (size_t j = begin; j < end; j += v->kernel->nr * v->kernel->nv) {
    qir_gemm_point(v->kernel, &v->groups[g], j, &block);
    block.y = y + (first * block.y_stride + g * v->og + j) * (block.to_float ? 4 : 1);
    v->kernel->run(&block);
  }
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const size_t block = (size_t)task / v->panel_blocks, part = (size_t)task % v->panel_blocks;
  const size_t first = block * v->rows;
  const size_t count = v->pixels - first < v->rows ? v->pixels - first : v->rows;
  const size_t step = v->kernel->nr * v->kernel->nv, panels = (v->og + step - 1) / step;
  const size_t begin = panels * part / v->panel_blocks * step;
  const size_t stop = panels * (part + 1) / v->panel_blocks * step;
  const size_t end = stop < v->og ? stop : v->og;
  for (size_t g = 0; g < v->s.groups; ++g)
    run_group(v, buffers[v->x], buffers[v->y], g, first, count, begin, end, scratch);
}

/*
 * A block of rows fits the nearest caches; there are some eight tasks if that leaves each enough
 * to do. Where rows are few, as in the last layers of a network, columns are split too.
 */
static void divide(struct conv *v) {
  enum { CACHE = 96 * 1024, TASKS = 8, WORK = 512 * 1024, STEP = 12 };
  const size_t k = v->taps * v->cg, bytes = k * (v->kernel->widened ? 2 : 1);
  const size_t panels =
      (v->og + v->kernel->nr * v->kernel->nv - 1) / (v->kernel->nr * v->kernel->nv);
  const size_t work = v->pixels * k * v->s.oc / WORK + 1, tasks = work < TASKS ? work : TASKS;
  size_t most = CACHE / (bytes ? bytes : 1);
  most = most > 384 ? 384 : most < STEP ? STEP : most;
  size_t blocks = (v->pixels + most - 1) / most;
  const size_t possible = (v->pixels + STEP - 1) / STEP;
  const size_t useful = possible / 4 ? possible / 4 : 1; /* few rows use a panel badly */
  if (blocks < tasks) blocks = tasks < useful ? tasks : blocks > useful ? blocks : useful;
  v->rows = v->pixels ? qir_round_up((v->pixels + blocks - 1) / blocks, STEP) : STEP;
  v->row_blocks = (v->pixels + v->rows - 1) / v->rows;
  v->panel_blocks = v->row_blocks ? (tasks + v->row_blocks - 1) / v->row_blocks : 1;
  if (v->panel_blocks > panels) v->panel_blocks = panels;
}

static void pack(struct conv *v, const struct qir_conv_operands *o) {
  for (size_t g = 0; g < v->s.groups; ++g) {
    const struct qir_gemm_weights weights = {
        .data = o->weight + g * v->og * v->cg * v->taps,
        .n = v->og,
        .taps = v->taps,
        .depth = v->cg,
        .column = v->cg * v->taps,
        .tap = 1,
        .value = v->taps,
    };
    const size_t many = o->multiplier_count == 1 ? 0 : g * v->og;
    qir_gemm_pack(v->kernel, &weights, o->bias ? o->bias + g * v->og : NULL, o->x_zero + o->x_flip,
                  o->multiplier + many, o->multiplier_count == 1 ? 1 : v->og, o->to_float,
                  v->packed + g * v->group_bytes, &v->groups[g]);
  }
}

int qir_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                  const struct qir_conv_operands *o, struct qir_step *step) {
  const struct qir_gemm_kernel *kernel = QIR_SELECT(qir_gemm_kernels, isa);
  const size_t taps = shape->kh * shape->kw, cg = shape->c / shape->groups;
  const size_t og = shape->oc / shape->groups;
  const size_t group_bytes = qir_gemm_packed_size(kernel, og, taps * cg);
  const size_t head =
      qir_round_up(sizeof(struct conv) + shape->groups * sizeof(struct qir_gemm_packed), 64);
  const size_t pad = qir_round_up(cg, 64);
  struct conv *v = qir_step_alloc(head + pad + shape->groups * group_bytes);
  if (!v) return 0;
  v->kernel = kernel;
  v->s = *shape;
  v->x = o->x;
  v->y = o->y;
  v->taps = taps;
  v->cg = cg;
  v->og = og;
  v->group_bytes = group_bytes;
  v->pixels = shape->n * shape->oh * shape->ow;
  v->pad = memset((char *)v + head, (uint8_t)o->x_zero, pad);
  v->packed = (char *)v + head + pad;
  v->dense = taps == 1 && shape->sh == 1 && shape->sw == 1 && shape->pt == 0 && shape->pl == 0 &&
             shape->oh == shape->h && shape->ow == shape->w;
  v->lines = shape->groups == 1 && shape->dw == 1;
  v->gather = kernel->widened || cg % kernel->kr != 0;
  v->block.taps = v->gather ? 1 : taps;
  v->block.depth = v->gather ? qir_round_up(taps * cg, kernel->kr) : cg;
  v->block.x_flip = o->x_flip;
  v->block.code = o->code;
  v->block.to_float = o->to_float;
  v->block.y_stride = shape->oc;
  divide(v);
  pack(v, o);
  step->run = run;
  step->params = v;
  step->tasks = (long)(v->row_blocks * v->panel_blocks);
  step->scratch = qir_round_up((v->gather ? 1 : taps) * v->rows, 8) * sizeof(void *);
  if (v->gather)
    step->scratch += qir_round_up(v->rows * v->block.depth * (kernel->widened ? 2 : 1), 64);
  return 1;
}
