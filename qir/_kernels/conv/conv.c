#include "conv.h"

#include <string.h>

#include "gemm/gemm.h"
#include "rows.h"
#include "windows/windows.h"

struct conv {
  const struct qir_gemm_kernel *kernel;
  struct qir_conv_rows rows;
  struct qir_gemm_block block; /* what all blocks have in common */
  int x, y;
  size_t og;     /* output channels of a group */
  size_t pixels; /* of the output */
  size_t block_rows, row_blocks, panel_blocks;
  struct qir_dynamic dynamic;
  qir_epilogue_fn finish; /* or NULL */
  struct qir_epilogue epilogue;
  size_t tile;                     /* where in scratch memory the sums for `finish` are */
  const int32_t *sums;             /* of the weights of each column, where the zero is dynamic */
  const int32_t *gain;             /* of each column: offsets of weights, in the order of panels */
  int32_t by;                      /* or the same offset of all weights; 0 if there are none */
  size_t columns;                  /* of the panels of a group */
  size_t shift, pad;               /* where in scratch memory those of rows and of padding are */
  struct qir_gemm_packed groups[]; /* one a group */
};

enum {
  WIDEST = 64,    /* columns of a panel */
  TILE_ROWS = 84, /* of sums that an epilogue reads: whole tiles of every kernel */
};

/* The zero point of x, which a run finds, as a byte. */
static uint8_t zero_code(const struct conv *v, void *const *buffers) {
  return v->dynamic.zero < 0 ? 0 : *(const uint8_t *)buffers[v->dynamic.zero];
}

/* Points a block to what a run finds: biases and multipliers of the panel from channel j on. */
static void find(const struct conv *v, void *const *buffers, size_t j, int32_t *restrict bias,
                 float *restrict multiplier, struct qir_gemm_block *block) {
  const struct qir_dynamic *d = &v->dynamic;
  const uint8_t code = zero_code(v, buffers);
  const int32_t zero = v->block.x_flip ? (int8_t)code : code;
  const size_t n = block->columns;
  const float *scale = (const float *)buffers[d->scale] + (d->count == 1 ? 0 : j);
  const int32_t *given = block->bias, *sums = v->sums + j;
  /* Panels of float results hold their columns in order: see qir_gemm_place. */
  for (size_t i = 0; i < n; ++i)
    bias[i] = (int32_t)((uint32_t)given[i] - (uint32_t)zero * (uint32_t)sums[i]);
  if (d->count == 1)
    for (size_t i = 0; i < n; ++i) multiplier[i] = *scale;
  else
    memcpy(multiplier, scale, n * sizeof *scale);
  block->bias = bias;
  block->multiplier = multiplier;
  block->below_one = 0;
}

/* Computes a block by tiles of float sums, each of which the epilogue finishes. */
static void run_tiles(const struct conv *v, void *const *buffers, struct qir_gemm_block *block,
                      size_t pixel, size_t column, float *tile) {
  const size_t all = block->count, stride = v->block.y_stride;
  const void *const *rows = block->rows;
  const struct qir_epilogue *e = &v->epilogue;
  const uint8_t *summand = e->summand < 0 ? NULL : buffers[e->summand];
  const int32_t *shift = block->shift;
  block->y = tile;
  block->y_stride = WIDEST;
  for (size_t i = 0; i < all; i += TILE_ROWS) {
    const size_t at = (pixel + i) * stride + column;
    block->rows = rows + i;
    block->shift = shift ? shift + i : NULL;
    block->count = all - i < TILE_ROWS ? all - i : TILE_ROWS;
    v->kernel->run(block);
    const struct qir_epilogue_rows done = {
        .sums = tile,
        .stride = WIDEST,
        .rows = block->count,
        .columns = block->columns,
        .first = column,
        .summand = summand ? summand + at : NULL,
        .summand_stride = stride,
        .y = (char *)buffers[v->y] + at * (e->to_float ? 4 : 1),
        .y_stride = stride,
    };
    v->finish(e, &done);
  }
}

/* The sum of n bytes, eight at a time: their even and odd ones as 16-bit numbers in a word. */
static uint32_t sum_bytes(const uint8_t *x, size_t n, uint8_t flip) {
  enum { WORD = 8, MOST = 128 /* words whose sums 16 bits hold */ };
  const uint64_t even = 0x00ff00ff00ff00ffu, flips = flip * 0x0101010101010101u;
  uint32_t sum = 0;
  while (n >= WORD) {
    const size_t words = n / WORD < MOST ? n / WORD : MOST;
    uint64_t sums = 0;
    for (size_t i = 0; i < words; ++i) {
      uint64_t word;
      memcpy(&word, x + i * WORD, WORD);
      word ^= flips;
      sums += (word & even) + (word >> 8 & even);
    }
    for (; sums; sums >>= 16) sum += (uint32_t)(sums & 0xffff);
    x += words * WORD;
    n -= words * WORD;
  }
  for (size_t i = 0; i < n; ++i) sum += x[i] ^ flip;
  return sum;
}

/* Sums of what the windows of a block of rows hold, as the kernel sees it, times `by`. */
static void sum_rows(const struct conv *v, const void *const *rows, size_t count, int32_t *sums) {
  const size_t n = v->rows.joined * v->rows.cg;
  for (size_t i = 0; i < count; ++i) {
    uint32_t sum = 0;
    for (size_t t = 0; t < v->rows.pieces; ++t) {
      if (v->kernel->widened) {
        const int16_t *wide = rows[t * count + i];
        for (size_t p = 0; p < n; ++p) sum += (uint16_t)wide[p];
      } else {
        sum += sum_bytes(rows[t * count + i], n, v->block.x_flip);
      }
    }
    sums[i] = (int32_t)(sum * (uint32_t)v->by);
  }
}

static void run_group(const struct conv *v, void *const *buffers, size_t g, size_t first,
                      size_t begin, size_t end, void *scratch) {
  int32_t bias[WIDEST] = {0};
  float multiplier[WIDEST] = {0};
  const void **rows = scratch;
  const uint8_t *x = buffers[v->x];
  char *y = buffers[v->y];
  struct qir_gemm_block block = v->block;
  const size_t left = v->pixels - first, count = left < v->block_rows ? left : v->block_rows;
  struct qir_conv_rows way = v->rows;
  if (v->sums) /* padding is the zero point, which a run finds */
    way.pad = memset((char *)scratch + v->pad, zero_code(v, buffers), qir_conv_rows_pad(&way));
  qir_conv_rows_fill(&way, x + g * v->rows.cg, first, count, rows);
  block.rows = rows;
  block.row_stride = block.count = count;
  if (v->by) {
    block.shift = (int32_t *)((char *)scratch + v->shift);
    sum_rows(v, rows, count, (int32_t *)((char *)scratch + v->shift));
  }
  for (size_t j = begin; j < end; j += v->kernel->nr * v->kernel->nv) {
    qir_gemm_point(v->kernel, &v->groups[g], j, &block);
    if (v->sums) find(v, buffers, g * v->og + j, bias, multiplier, &block);
    block.plus = v->dynamic.plus ? v->dynamic.plus + g * v->og + j : NULL;
    block.gain = v->gain ? v->gain + g * v->columns + j : NULL;
    if (v->finish) {
      struct qir_gemm_block sums = block;
      run_tiles(v, buffers, &sums, first, g * v->og + j, (float *)((char *)scratch + v->tile));
      continue;
    }
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
    run_group(v, buffers, g, block * v->block_rows, begin, stop < v->og ? stop : v->og, scratch);
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

/* What the zero point of x makes of the offset of a channel's weights: a part of its bias. */
static int32_t bias_of(const struct conv *v, const struct qir_conv_operands *o, size_t channel) {
  const uint32_t bias = o->bias ? (uint32_t)o->bias[channel] : 0;
  if (!o->offset) return (int32_t)bias;
  const size_t terms = v->rows.s.kh * v->rows.s.kw * v->rows.cg;
  const uint32_t zero = (uint32_t)(o->x_zero + o->x_flip);
  return (int32_t)(bias - zero * (uint32_t)terms * (uint32_t)o->offset[channel]);
}

static void pack_gain(const struct conv *v, const int32_t *offset, int32_t *gain) {
  for (size_t first = 0; first < v->og; first += v->kernel->nr * v->kernel->nv) {
    const size_t width = qir_gemm_width(v->kernel, v->og, first), left = v->og - first;
    for (size_t j = 0; j < (left < width ? left : width); ++j)
      gain[first + qir_gemm_place(width, v->block.to_float, j)] = offset[first + j];
  }
}

static void pack(struct conv *v, const struct qir_conv_operands *o, char *memory, size_t bytes,
                 int32_t *bias, int32_t *gain) {
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
    for (size_t j = 0; j < v->og; ++j) bias[j] = bias_of(v, o, g * v->og + j);
    qir_gemm_pack(v->kernel, &weights, bias, o->x_zero + o->x_flip,
                  o->multiplier + (one ? 0 : g * v->og), one ? 1 : v->og, v->block.to_float,
                  memory + g * bytes, &v->groups[g]);
    if (o->offset) pack_gain(v, o->offset + g * v->og, gain + g * v->columns);
  }
}

/* Sums of the weights of each channel. */
static void sum_weights(const struct qir_conv_shape *s, const struct qir_conv_operands *o,
                        int32_t *sums) {
  const size_t terms = s->c / s->groups * s->kh * s->kw;
  for (size_t j = 0; j < s->oc; ++j) {
    uint32_t sum = o->offset ? (uint32_t)terms * (uint32_t)o->offset[j] : 0;
    for (size_t p = 0; p < terms; ++p) sum += (uint32_t)(int32_t)o->weight[j * terms + p];
    sums[j] = (int32_t)sum;
  }
}

/* Bytes of arrays of one number a channel, and of what a panel reads past them. */
static size_t channel_bytes(size_t channels) {
  return qir_round_up((channels + WIDEST) * sizeof(int32_t), 64);
}

static int make(uint32_t isa, const struct qir_conv_shape *shape, const struct qir_conv_operands *o,
                const struct qir_dynamic *dynamic, struct qir_step *step) {
  const struct qir_gemm_kernel *kernel = QIR_SELECT(qir_gemm_kernels, isa);
  const struct qir_conv_rows rows = qir_conv_rows_make(shape, kernel->kr, kernel->widened);
  const size_t og = shape->oc / shape->groups;
  const size_t bytes = qir_gemm_packed_size(kernel, og, rows.pieces * rows.depth);
  const size_t head =
      qir_round_up(sizeof(struct conv) + shape->groups * sizeof(struct qir_gemm_packed), 64);
  const size_t pad = qir_round_up(qir_conv_rows_pad(&rows), 64);
  const size_t columns = qir_round_up(og, kernel->nr);
  /* Biases of a group, gains of all, and where numbers of x are found by a run, sums and floats. */
  const size_t bias_at = head + pad + qir_round_up(shape->groups * bytes, 64);
  const size_t gain_at = bias_at + channel_bytes(og);
  const size_t sums_at = gain_at + (o->offset ? channel_bytes(shape->groups * columns) : 0);
  const size_t plus_at = sums_at + (dynamic ? channel_bytes(shape->oc) : 0);
  const size_t epilogue_at = plus_at + (dynamic ? channel_bytes(shape->oc) : 0);
  char *memory = qir_step_alloc(epilogue_at + (o->epilogue ? qir_epilogue_size(shape->oc) : 0));
  if (!memory) return 0;
  struct conv *v = (struct conv *)memory;
  v->kernel = kernel;
  v->rows = rows;
  v->rows.flip = o->x_flip;
  v->rows.pad = memset(memory + head, (uint8_t)o->x_zero, pad);
  v->x = o->x;
  v->y = o->y;
  v->og = og;
  v->columns = columns;
  v->pixels = shape->n * shape->oh * shape->ow;
  v->block = (struct qir_gemm_block){
      .taps = rows.pieces,
      .depth = rows.depth,
      .x_flip = o->x_flip,
      .code = o->code,
      .to_float = o->to_float || o->epilogue,
      .y_stride = shape->oc,
  };
  if (o->epilogue) {
    v->finish = qir_epilogue_select(isa);
    v->epilogue = qir_epilogue_copy(o->epilogue, shape->oc, memory + epilogue_at);
  }
  if (o->offset) {
    int same = 1;
    for (size_t j = 0; j < shape->oc; ++j) same &= o->offset[j] == o->offset[0];
    v->by = same ? o->offset[0] : 1;
    if (!same) v->gain = (int32_t *)(memory + gain_at);
  }
  if (dynamic) {
    v->dynamic = *dynamic;
    sum_weights(shape, o, (int32_t *)(memory + sums_at));
    v->sums = (int32_t *)(memory + sums_at);
    if (dynamic->plus)
      v->dynamic.plus = memcpy(memory + plus_at, dynamic->plus, shape->oc * sizeof(float));
  }
  divide(v);
  pack(v, o, memory + head + pad, bytes, (int32_t *)(memory + bias_at),
       (int32_t *)(memory + gain_at));
  step->run = run;
  step->params = v;
  step->tasks = (long)(v->row_blocks * v->panel_blocks);
  v->tile = qir_round_up(qir_conv_rows_scratch(&v->rows, v->block_rows), 64);
  v->shift = v->tile + (v->finish ? TILE_ROWS * WIDEST * sizeof(float) : 0);
  v->pad = v->shift + (v->by ? qir_round_up(v->block_rows * sizeof(int32_t), 64) : 0);
  step->scratch = v->pad + (dynamic ? pad : 0);
  return 1;
}

int qir_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                  const struct qir_conv_operands *o, struct qir_step *step) {
  if (qir_windows_fits(isa, shape, o)) return qir_windows_make(isa, shape, o, step);
  return make(isa, shape, o, NULL, step);
}

int qir_dynamic_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                          const struct qir_conv_operands *o, const struct qir_dynamic *dynamic,
                          struct qir_step *step) {
  return make(isa, shape, o, dynamic, step);
}
