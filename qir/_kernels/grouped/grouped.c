#include "grouped.h"

#include <string.h>

#define QIR_GROUPED_KERNEL(name, isa, words, lanes, widened, widest) \
  {#name, isa, name, name##_copy, words, lanes, widened, widest},
const struct qir_grouped_kernel qir_grouped_kernels[] = {
#include "kernels.inc"
};
#undef QIR_GROUPED_KERNEL
const size_t qir_grouped_kernel_count = sizeof qir_grouped_kernels / sizeof *qir_grouped_kernels;

struct grouped {
  const struct qir_grouped_kernel *kernel;
  struct qir_conv_shape s;
  struct qir_grouped_run run; /* what all runs have in common */
  int x, y;
  uint8_t flip;
  size_t group, words;    /* of a group: channels, and words of its own, at least one */
  size_t channels, all;   /* of a block: those of whole groups, and what fits its vector */
  size_t blocks, weights; /* how many, and bytes of weights of each */
  /* A task is a part of the rows, columns and blocks of an image's output. */
  size_t rows, columns, row_parts, column_parts, block_parts;
  size_t lines, pixels;   /* of the copy of the input that a task reads */
  const uint8_t *pad;     /* a pixel of a block, all of the zero point */
  qir_epilogue_fn finish; /* or NULL */
  struct qir_epilogue epilogue;
  size_t sums; /* where in scratch memory the sums for `finish` are */
};

/* ---- running ---- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Copies the channels from c on of a line of the input, or of padding, from column ix on. */
static void copy_line(const struct grouped *v, const uint8_t *line, size_t ix, size_t c, char *to) {
  const struct qir_conv_shape *s = &v->s;
  const size_t bytes = v->all * (v->kernel->widened ? 2 : 1);
  const size_t channels = least(qir_grouped_left(s->c, c), v->channels);
  /* Columns below zero wrap: then they are not below w. */
  const size_t before = line == NULL ? v->pixels : ix < s->w ? 0 : least(0 - ix, v->pixels);
  const size_t inside =
      least(line == NULL || before == v->pixels ? 0 : s->w - (ix + before), v->pixels - before);
  struct qir_grouped_copy copy = {
      .x = v->pad, .count = before, .channels = channels, .flip = v->flip, .to = to};
  v->kernel->copy(&copy);
  copy.to = to + before * bytes;
  if (inside) {
    copy.x = line + (ix + before) * s->c + c;
    copy.stride = s->c;
    copy.count = inside;
    v->kernel->copy(&copy);
  }
  copy.to = to + (before + inside) * bytes;
  copy.x = v->pad;
  copy.stride = 0;
  copy.count = v->pixels - before - inside;
  v->kernel->copy(&copy);
}

/* Finishes float sums of `count` pixels, the first of which is pixel `at` of the output. */
static void finish(const struct grouped *v, void *const *buffers, size_t at, size_t c,
                   const struct qir_grouped_run *run) {
  const struct qir_epilogue *e = &v->epilogue;
  const size_t first = at * v->s.oc + c;
  const struct qir_epilogue_rows rows = {
      .sums = run->y,
      .stride = run->y_stride,
      .rows = run->width,
      .columns = run->columns,
      .first = c,
      .summand = e->summand < 0 ? NULL : (const uint8_t *)buffers[e->summand] + first,
      .summand_stride = v->s.oc,
      .y = (char *)buffers[v->y] + first * (e->to_float ? 4 : 1),
      .y_stride = v->s.oc,
  };
  v->finish(e, &rows);
}

/* A block of the pixels that begin at row oy and column ox of image n. */
static void run_block(const struct grouped *v, void *const *buffers, size_t block, size_t n,
                      size_t oy, size_t ox, char *scratch) {
  const struct qir_conv_shape *s = &v->s;
  const size_t c = block * v->channels, line = v->pixels * v->all * (v->kernel->widened ? 2 : 1);
  const size_t rows = least(v->rows, s->oh - oy);
  const size_t lines = (rows - 1) * s->sh + (s->kh - 1) * s->dh + 1;
  const uint8_t *x = (const uint8_t *)buffers[v->x] + n * s->h * s->w * s->c;
  for (size_t i = 0; i < lines; ++i) {
    const size_t iy = oy * s->sh + i - s->pt; /* wraps below zero: then not below h */
    copy_line(v, iy < s->h ? x + iy * s->w * s->c : NULL, ox * s->sw - s->pl, c,
              scratch + i * line);
  }
  struct qir_grouped_run run = v->run;
  run.width = least(v->columns, s->ow - ox);
  run.columns = least(qir_grouped_left(s->oc, c), v->channels);
  run.weights = (const char *)run.weights + block * v->weights;
  run.bias += block * v->all;
  run.multiplier += block * v->all;
  for (size_t i = 0; i < rows; ++i) {
    const size_t at = (n * s->oh + oy + i) * s->ow + ox;
    run.x = scratch + i * s->sh * line;
    run.y = v->finish ? (void *)(scratch + v->sums)
                      : (char *)buffers[v->y] + (at * s->oc + c) * (run.to_float ? 4 : 1);
    v->kernel->run(&run);
    if (v->finish) finish(v, buffers, at, c, &run);
  }
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct grouped *v = params;
  size_t left = (size_t)task;
  const size_t part = left % v->block_parts;
  left /= v->block_parts;
  const size_t ox = left % v->column_parts * v->columns;
  left /= v->column_parts;
  const size_t oy = left % v->row_parts * v->rows, n = left / v->row_parts;
  const size_t end = v->blocks * (part + 1) / v->block_parts;
  for (size_t i = v->blocks * part / v->block_parts; i < end; ++i)
    run_block(v, buffers, i, n, oy, ox, scratch);
}

/* ---- making ---- */

enum {
  FEW = 4,         /* rows of a task, at least */
  WIDE = 512,      /* columns of one, at most */
  MOST = 64 * 1024 /* pixels of the copy that a task of few rows makes */
};

/*
 * The copy of a block fits the nearest cache, but for what few rows need. There are some eight
 * tasks if that leaves each enough to do.
 */
static void divide(struct grouped *v) {
  enum { CACHE = 24 * 1024, TASKS = 8, WORK = 512 * 1024 };
  const struct qir_conv_shape *s = &v->s;
  const size_t taps = s->kh * s->kw, reach = (s->kh - 1) * s->dh + 1;
  const size_t work = s->n * s->oh * s->ow * s->c * taps * v->group / WORK + 1;
  const size_t wanted = least(work, TASKS);
  v->columns = least(s->ow, WIDE);
  v->column_parts = v->columns ? (s->ow + v->columns - 1) / v->columns : 0;
  v->pixels = (v->columns ? v->columns - 1 : 0) * s->sw + (s->kw - 1) * s->dw + 1;
  const size_t fit = CACHE / (v->pixels * v->all * (v->kernel->widened ? 2 : 1));
  size_t rows = fit > reach ? (fit - reach) / s->sh + 1 : 1;
  if (rows < FEW) rows = FEW;
  const size_t images = s->n * v->column_parts, parts = images ? (wanted + images - 1) / images : 1;
  rows = least(rows, (s->oh + parts - 1) / parts);
  if (rows < FEW) rows = least(FEW, s->oh);
  v->rows = rows;
  v->row_parts = rows ? (s->oh + rows - 1) / rows : 0;
  const size_t tasks = images * v->row_parts;
  v->block_parts = tasks ? least((wanted + tasks - 1) / tasks, v->blocks) : 1;
  v->lines = (rows ? rows - 1 : 0) * s->sh + reach;
}

/* Packs the weights of output channel c, which is channel `in` of its block. */
static void pack_channel(const struct grouped *v, const int8_t *weight, size_t c, size_t in,
                         char *to, uint32_t *sum, uint64_t *most) {
  const size_t lanes = v->kernel->lanes, words = v->kernel->words, steps = v->run.steps;
  const size_t taps = v->s.kh * v->s.kw, word = in / lanes, t = in % lanes;
  const size_t first = in / v->group * v->group; /* channel of the group, in the block */
  for (size_t k = 0; k < taps; ++k)
    for (size_t s = 0; s < steps; ++s)
      for (size_t j = 0; j < lanes; ++j) {
        const size_t from = (size_t)v->run.index[s * words + word] * lanes + j;
        if (from < first || from >= first + v->group) continue; /* of another group */
        const int8_t value = weight[(c * v->group + from - first) * taps + k];
        const size_t at = (((k * steps + s) * lanes + t) * words + word) * lanes + j;
        if (v->kernel->widened)
          ((int16_t *)to)[at] = value;
        else
          ((int8_t *)to)[at] = value;
        *sum += (uint32_t)(int32_t)value;
        *most += (uint64_t)abs(value) * UINT8_MAX;
      }
}

static void pack(struct grouped *v, const struct qir_conv_operands *o, char *weights, int32_t *bias,
                 float *multiplier) {
  const size_t lanes = v->kernel->lanes, words = v->kernel->words;
  const uint32_t zero = (uint32_t)(o->x_zero + o->x_flip - qir_isa_centre(v->kernel->isa));
  for (size_t c = 0; c < v->s.oc; ++c) {
    const size_t block = c / v->channels, in = c % v->channels;
    uint32_t sum = 0;
    uint64_t most = (uint64_t)llabs(o->bias ? o->bias[c] : 0);
    pack_channel(v, o->weight, c, in, weights + block * v->weights, &sum, &most);
    const size_t at = block * v->all + in % lanes * words + in / lanes;
    bias[at] = (int32_t)((o->bias ? (uint32_t)o->bias[c] : 0) - zero * sum);
    multiplier[at] = o->multiplier[o->multiplier_count == 1 ? 0 : c];
    if (!qir_converts(most, multiplier[at])) v->run.converts = 0;
  }
}

/* In step s a word takes in the s-th word after it, in turn around its group. */
static void fill_index(const struct grouped *v, int32_t *index) {
  const size_t words = v->kernel->words, used = v->channels / v->kernel->lanes;
  for (size_t s = 0; s < v->run.steps; ++s)
    for (size_t i = 0; i < words; ++i) {
      const size_t first = i / v->words * v->words;
      index[s * words + i] = (int32_t)(i < used ? first + (i - first + s) % v->words : i);
    }
}

int qir_grouped_fits(uint32_t isa, const struct qir_conv_shape *shape) {
  const struct qir_grouped_kernel *k = QIR_SELECT(qir_grouped_kernels, isa);
  if (shape->groups == 1 || shape->c != shape->oc) return 0;
  const size_t lines = (FEW - 1) * shape->sh + (shape->kh - 1) * shape->dh + 1;
  const size_t pixels = least(shape->ow, WIDE) * shape->sw + (shape->kw - 1) * shape->dw + 1;
  if (lines > MOST || pixels > MOST || lines * pixels > MOST) return 0;
  const size_t group = shape->c / shape->groups;
  return group < k->lanes ? k->lanes % group == 0 : group % k->lanes == 0 && group <= k->widest;
}

int qir_grouped_make(uint32_t isa, const struct qir_conv_shape *shape,
                     const struct qir_conv_operands *o, struct qir_step *step) {
  const struct qir_grouped_kernel *k = QIR_SELECT(qir_grouped_kernels, isa);
  const size_t group = shape->c / shape->groups, bytes = k->widened ? 2 : 1,
               all = k->words * k->lanes;
  const size_t words = group < k->lanes ? 1 : group / k->lanes;
  const size_t channels = k->words / words * words * k->lanes;
  const size_t blocks = (shape->oc + channels - 1) / channels;
  const size_t weights = shape->kh * shape->kw * words * k->lanes * all * bytes;
  const size_t head = qir_round_up(sizeof(struct grouped), 64);
  const size_t index = qir_round_up(words * k->words * sizeof(int32_t), 64);
  const size_t vector = blocks * all * 4, pad = qir_round_up(all, 64);
  const size_t whole = head + index + pad + 2 * vector + blocks * weights;
  struct grouped *v = qir_step_alloc(whole + (o->epilogue ? qir_epilogue_size(shape->oc) : 0));
  if (!v) return 0;
  char *memory = (char *)v + head;
  char *const parameters = memory + index + pad;
  v->kernel = k;
  v->s = *shape;
  v->x = o->x;
  v->y = o->y;
  v->flip = o->x_flip;
  v->group = group;
  v->words = words;
  v->channels = channels;
  v->all = all;
  v->blocks = blocks;
  v->weights = weights;
  v->pad = memset(memory + index, (uint8_t)o->x_zero, pad);
  divide(v);
  v->run = (struct qir_grouped_run){
      .pixel = shape->sw * all * bytes,
      .line = shape->dh * v->pixels * all * bytes,
      .tap = shape->dw * all * bytes,
      .kh = shape->kh,
      .kw = shape->kw,
      .steps = words,
      .index = (const int32_t *)memory,
      .bias = (const int32_t *)parameters,
      .multiplier = (const float *)(parameters + vector),
      .weights = parameters + 2 * vector,
      .y_stride = o->epilogue ? all : shape->oc,
      .code = o->code,
      .to_float = o->to_float || o->epilogue,
      .converts = 1,
  };
  if (o->epilogue) {
    v->finish = qir_epilogue_select(isa);
    v->epilogue = qir_epilogue_copy(o->epilogue, shape->oc, (char *)v + whole);
  }
  fill_index(v, (int32_t *)memory);
  pack(v, o, parameters + 2 * vector, (int32_t *)parameters, (float *)(parameters + vector));
  step->run = run;
  step->params = v;
  step->tasks = (long)(shape->n * v->row_parts * v->column_parts * v->block_parts);
  v->sums = qir_round_up(v->lines * v->pixels * all * bytes, 64);
  step->scratch = v->sums + (v->finish ? v->columns * all * sizeof(float) : 0);
  return 1;
}
