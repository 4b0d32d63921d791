#include "conv.h"

#include <string.h>

#include "gemm/gemm.h"
#include "rows.h"

struct conv {
  const struct qir_gemm_kernel *kernel;
  struct qir_conv_rows rows;
  struct qir_gemm_block block; /* what all blocks have in common */
  int x, y;
  size_t og;     /* output channels of a group */
  size_t pixels; /* of the output */
  size_t block_rows, row_blocks, panel_blocks;
  struct qir_gemm_packed groups[]; /* one a group */
};

static void run_group(const struct conv *v, const uint8_t *x, char *y, size_t g, size_t first,
                      size_t begin, size_t end, const void **rows) {
  struct qir_gemm_block block = v->block;
  const size_t left = v->pixels - first, count = left < v->block_rows ? left : v->block_rows;
  qir_conv_rows_fill(&v->rows, x + g * v->rows.cg, first, count, rows);
  block.rows = rows;
  block.row_stride = block.count = count;
  for (size_t j = begin; j < end; j += v->kernel->nr * v->kernel->nv) {
    qir_gemm_point(v->kernel, &v->groups[g], j, &block);
    block.y = y + (first * block.y_stride + g * v->og + j) * (block.to_float ? 4 : 1);
    v->kernel->run(&block);
  }
}

/* A task is a block of rows by a part of the panels. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const size_t block = (size_t)task / v->panel_blocks, part = (size_t)task % v->panel_blocks;
  const size_t panel = v->kernel->nr * v->kernel->nv, panels = (v->og + panel - 1) / panel;
  const size_t begin = panels * part / v->panel_blocks * panel;
  const size_t stop = panels * (part + 1) / v->panel_blocks * panel;
  for (size_t g = 0; g < v->rows.s.groups; ++g)
    run_group(v, buffers[v->x], buffers[v->y], g, block * v->block_rows, begin,
              stop < v->og ? stop : v->og, scratch);
}

/*
 * A block of rows fits the nearest caches; there are some eight tasks if that leaves each enough
 * to do. Where rows are few, as in the last layers of a network, columns are split too.
 */
static void divide(struct conv *v) {
  enum { CACHE = 96 * 1024, TASKS = 8, WORK = 512 * 1024, STEP = 12, MOST = 384 };
  const size_t k = v->rows.pieces * v->rows.depth, bytes = k * v->rows.size;
  const size_t panel = v->kernel->nr * v->kernel->nv, panels = (v->og + panel - 1) / panel;
  const size_t work = v->pixels * k * v->rows.s.oc / WORK + 1;
  const size_t tasks = work < TASKS ? work : TASKS;
  const size_t fit = CACHE / bytes, most = fit > MOST ? MOST : fit < STEP ? STEP : fit;
  const size_t useful = v->pixels / (4 * STEP) + 1; /* few rows use a panel badly */
  const size_t wanted = tasks < useful ? tasks : useful;
  size_t blocks = (v->pixels + most - 1) / most;
  if (blocks < wanted) blocks = wanted;
  v->block_rows = v->pixels ? qir_round_up((v->pixels + blocks - 1) / blocks, STEP) : STEP;
  v->row_blocks = (v->pixels + v->block_rows - 1) / v->block_rows;
  v->panel_blocks = v->row_blocks ? (tasks + v->row_blocks - 1) / v->row_blocks : 1;
  if (v->panel_blocks > panels) v->panel_blocks = panels;
}

static void pack(struct conv *v, const struct qir_conv_operands *o, char *memory, size_t bytes) {
  const size_t taps = v->rows.s.kh * v->rows.s.kw, cg = v->rows.cg;
  for (size_t g = 0; g < v->rows.s.groups; ++g) {
    const struct qir_gemm_weights weights = {
        .data = o->weight + g * v->og * cg * taps,
        .n = v->og,
        .taps = taps,
        .joined = v->rows.joined,
        .depth = cg,
        .column = cg * taps,
        .tap = 1,
        .value = taps,
    };
    const int one = o->multiplier_count == 1;
    qir_gemm_pack(v->kernel, &weights, o->bias ? o->bias + g * v->og : NULL, o->x_zero + o->x_flip,
                  o->multiplier + (one ? 0 : g * v->og), one ? 1 : v->og, o->to_float,
                  memory + g * bytes, &v->groups[g]);
  }
}

int qir_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                  const struct qir_conv_operands *o, struct qir_step *step) {
  const struct qir_gemm_kernel *kernel = QIR_SELECT(qir_gemm_kernels, isa);
  const struct qir_conv_rows rows = qir_conv_rows_make(shape, kernel->kr, kernel->widened);
  const size_t og = shape->oc / shape->groups;
  const size_t bytes = qir_gemm_packed_size(kernel, og, rows.pieces * rows.depth);
  const size_t head =
      qir_round_up(sizeof(struct conv) + shape->groups * sizeof(struct qir_gemm_packed), 64);
  const size_t pad = qir_round_up(qir_conv_rows_pad(&rows), 64);
  struct conv *v = qir_step_alloc(head + pad + shape->groups * bytes);
  if (!v) return 0;
  v->kernel = kernel;
  v->rows = rows;
  v->rows.flip = o->x_flip;
  v->rows.pad = memset((char *)v + head, (uint8_t)o->x_zero, pad);
  v->x = o->x;
  v->y = o->y;
  v->og = og;
  v->pixels = shape->n * shape->oh * shape->ow;
  v->block = (struct qir_gemm_block){
      .taps = rows.pieces,
      .depth = rows.depth,
      .x_flip = o->x_flip,
      .code = o->code,
      .to_float = o->to_float,
      .y_stride = shape->oc,
  };
  divide(v);
  pack(v, o, (char *)v + head + pad, bytes);
  step->run = run;
  step->params = v;
  step->tasks = (long)(v->row_blocks * v->panel_blocks);
  step->scratch = qir_round_up(qir_conv_rows_scratch(&v->rows, v->block_rows), 64);
  return 1;
}
