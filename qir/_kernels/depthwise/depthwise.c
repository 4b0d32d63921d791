#include "depthwise.h"

#include <string.h>

#define QIR_DEPTHWISE_KERNEL(name, isa, block, vectors, lanes, widened, slides) \
  {#name, isa, name, block, vectors, lanes, widened, slides},
const struct qir_depthwise_kernel qir_depthwise_kernels[] = {
#include "kernels.inc"
};
#undef QIR_DEPTHWISE_KERNEL
const size_t qir_depthwise_kernel_count =
    sizeof qir_depthwise_kernels / sizeof *qir_depthwise_kernels;

struct depthwise {
  const struct qir_depthwise_kernel *kernel;
  struct qir_conv_shape s;
  struct qir_depthwise_run run; /* what all runs have in common */
  int x, y;
  size_t column;          /* places of a column of the window, 0 if groups run on */
  size_t repeats;         /* how often the taps follow each other: see weight_of */
  size_t rows;            /* rows of the output in a task */
  size_t inside, outside; /* first pixel of a row whose window has no padding beside, and end */
  const uint8_t *pad;     /* a line of x, w * c bytes, all of the zero point */
  qir_epilogue_fn finish; /* or NULL */
  struct qir_epilogue epilogue;
  size_t sums; /* where in scratch memory the sums for `finish` are */
  struct qir_dynamic dynamic;
  const int32_t *totals;  /* of the weights, in packed order, where the zero is dynamic, or NULL */
  const uint32_t *places; /* of the channel in each place of packed order */
  size_t found, count;    /* where in scratch memory what a run finds is, and places of it */
};

/*
 * Bytes are interleaved in 128-bit lanes, so sums come out in an order of their own: with v
 * vectors, vector i has in its lane l the channels 4 v l + 4 i onwards.
 */
static size_t place(const struct qir_depthwise_kernel *kernel, size_t c) {
  const size_t v = kernel->vectors;
  return c / 4 % v * (kernel->block / v) + c / (4 * v) * 4 + c % 4;
}

/* The place of tap (ky, kx) in the list of taps. */
static size_t tap_at(const struct depthwise *v, size_t ky, size_t kx) {
  return v->column ? kx * v->column + ky : ky * v->s.kw + kx;
}

/*
 * The weight of a tap in its `repeat`th place. Offsets of weights are added where weights have 16
 * bits; else all taps are taken once or twice more, by what 8 bits hold of the offset.
 */
static int32_t weight_of(const struct depthwise *v, const struct qir_conv_operands *o, size_t c,
                         size_t tap, size_t repeat) {
  const int32_t weight = o->weight[c * v->s.kh * v->s.kw + tap];
  const int32_t offset = o->offset ? o->offset[c] : 0;
  if (v->kernel->widened) return weight + offset;
  const int32_t most = offset < INT8_MIN ? INT8_MIN : offset > INT8_MAX ? INT8_MAX : offset;
  return repeat == 0 ? weight : repeat == 1 ? most : offset - most;
}

/* How often the taps are taken in all. */
static size_t repeats(const struct qir_depthwise_kernel *k, const struct qir_conv_operands *o,
                      size_t channels) {
  size_t most = 1;
  for (size_t c = 0; o->offset && !k->widened && c < channels; ++c) {
    const size_t own = o->offset[c] < INT8_MIN || o->offset[c] > INT8_MAX ? 3 : 2;
    if (own > most) most = own;
  }
  return most;
}

/* Packs channel c in place `to` of its block. */
static void pack_channel(struct depthwise *v, const struct qir_conv_operands *o, size_t c,
                         size_t to, char *weights, int32_t *bias, float *multiplier) {
  const struct qir_depthwise_kernel *k = v->kernel;
  const size_t taps = v->s.kh * v->s.kw, block = c / k->block;
  uint32_t sum = 0;
  uint64_t most = (uint64_t)llabs(o->bias ? o->bias[c] : 0);
  for (size_t i = 0; i < v->repeats * taps; ++i) {
    const size_t repeat = i / taps, ky = i % taps / v->s.kw, kx = i % taps % v->s.kw;
    const int32_t value = weight_of(v, o, c, i % taps, repeat);
    const size_t tap = repeat * taps + tap_at(v, ky, kx);
    const size_t group = block * v->run.groups + tap / k->lanes;
    const size_t at = (group * k->block + to) * k->lanes + tap % k->lanes;
    if (k->widened)
      ((int16_t *)weights)[at] = (int16_t)value;
    else
      ((int8_t *)weights)[at] = (int8_t)value;
    sum += (uint32_t)value;
    most += (uint64_t)abs(value) * UINT8_MAX;
  }
  const int32_t centre = o->pairs ? 0 : qir_isa_centre(k->isa); /* pairs saturate as unsigned */
  const uint32_t zero = (uint32_t)(o->x_zero + o->x_flip - centre);
  bias[block * k->block + to] = (int32_t)((o->bias ? (uint32_t)o->bias[c] : 0) - zero * sum);
  multiplier[block * k->block + to] = o->multiplier[o->multiplier_count == 1 ? 0 : c];
  if (!qir_converts(most, multiplier[block * k->block + to])) v->run.converts = 0;
}

/* A last block that is at most half full is packed twice: two pixels may share a vector. */
static void pack(struct depthwise *v, const struct qir_conv_operands *o, char *weights,
                 int32_t *bias, float *multiplier) {
  const size_t block = v->kernel->block, half = block / 2;
  for (size_t c = 0; c < v->s.c; ++c) {
    const size_t in = c % block, last = v->s.c - (c - in);
    pack_channel(v, o, c, place(v->kernel, in), weights, bias, multiplier);
    if (last <= half) pack_channel(v, o, c, place(v->kernel, in + half), weights, bias, multiplier);
  }
}

/* Points to the taps of the window of pixel ox, of lines that may be padding. */
static void point(const struct depthwise *v, const uint8_t *const *lines, size_t ox,
                  const uint8_t **taps) {
  const struct qir_conv_shape *s = &v->s;
  for (size_t ky = 0; ky < s->kh; ++ky)
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const size_t ix = ox * s->sw + kx * s->dw - s->pl; /* wraps below zero: then not below w */
      taps[tap_at(v, ky, kx)] = ix < s->w ? lines[ky] + ix * s->c : v->pad;
    }
  const size_t count = s->kh * s->kw;
  for (size_t i = count; i < v->repeats * count; ++i) taps[i] = taps[i - count];
}

/* Pixels of one output row from first to end, which one pointer a tap can follow. */
static void run_pixels(const struct depthwise *v, const uint8_t *const *lines, size_t first,
                       size_t end, void *y, const uint8_t **taps) {
  if (first >= end) return;
  struct qir_depthwise_run run = v->run;
  point(v, lines, first, taps);
  run.taps = taps;
  run.width = end - first;
  run.y = (char *)y + first * v->s.c * (run.to_float ? 4 : 1);
  v->kernel->run(&run);
}

/* Finishes the sums of a row of the output, whose first result is the `at`th. */
static void finish(const struct depthwise *v, void *const *buffers, size_t at, float *sums) {
  const struct qir_epilogue *e = &v->epilogue;
  const struct qir_epilogue_rows rows = {
      .sums = sums,
      .stride = v->s.c,
      .rows = v->s.ow,
      .columns = v->s.c,
      .summand = e->summand < 0 ? NULL : (const uint8_t *)buffers[e->summand] + at,
      .summand_stride = v->s.c,
      .y = (char *)buffers[v->y] + at * (e->to_float ? 4 : 1),
      .y_stride = v->s.c,
  };
  v->finish(e, &rows);
}

/* All pixels of a row, by a kernel that knows the padding beside it. */
static void run_line(const struct depthwise *v, const uint8_t *const *lines, void *y) {
  struct qir_depthwise_run run = v->run;
  run.taps = lines;
  run.width = v->s.ow;
  run.y = y;
  v->kernel->run(&run);
}

/* Points a step to what a run finds: biases, multipliers and padding. */
static void find(struct depthwise *v, void *const *buffers, char *memory) {
  const struct qir_dynamic *d = &v->dynamic;
  const uint8_t code = d->zero < 0 ? 0 : *(const uint8_t *)buffers[d->zero];
  const uint32_t zero = (uint32_t)(v->run.x_flip ? (int8_t)code : code);
  const float *scale = buffers[d->scale];
  int32_t *bias = (int32_t *)memory;
  float *multiplier = (float *)(memory + v->count * sizeof(int32_t));
  for (size_t i = 0; i < v->count; ++i) {
    bias[i] = (int32_t)((uint32_t)v->run.bias[i] - zero * (uint32_t)v->totals[i]);
    multiplier[i] = scale[d->count == 1 ? 0 : v->places[i]];
  }
  v->run.bias = bias;
  v->run.multiplier = multiplier;
  v->run.pad = code;
  const size_t pad = (v->s.w ? v->s.w : 1) * v->s.c;
  v->pad = memset(memory + 2 * v->count * sizeof(int32_t), code, qir_round_up(pad, 64));
  v->run.blank = v->pad;
}

static void run_rows(const struct depthwise *v, void *const *buffers, void *scratch, long task);

static void run_dynamic(const void *params, void *const *buffers, void *scratch, long task) {
  struct depthwise own = *(const struct depthwise *)params;
  find(&own, buffers, (char *)scratch + own.found);
  run_rows(&own, buffers, scratch, task);
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  run_rows(params, buffers, scratch, task);
}

static void run_rows(const struct depthwise *v, void *const *buffers, void *scratch, long task) {
  const struct qir_conv_shape *s = &v->s;
  const size_t begin = (size_t)task * v->rows, all = s->n * s->oh;
  const size_t end = begin + v->rows < all ? begin + v->rows : all;
  const size_t count = v->run.groups * v->kernel->lanes;
  const uint8_t *x = buffers[v->x], **taps = scratch, **lines = taps + count;
  for (size_t i = 0; i < count; ++i) taps[i] = v->pad; /* also those of weight zero */
  for (size_t i = begin; i < end; ++i) {
    const size_t n = i / s->oh, oy = i % s->oh;
    for (size_t ky = 0; ky < s->kh; ++ky) {
      const size_t iy = oy * s->sh + ky * s->dh - s->pt;
      lines[ky] = iy < s->h ? x + (n * s->h + iy) * s->w * s->c : v->pad;
    }
    const size_t at = i * s->ow * s->c;
    float *sums = (float *)((char *)scratch + v->sums);
    void *y = v->finish ? (void *)sums : (char *)buffers[v->y] + at * (v->run.to_float ? 4 : 1);
    if (v->run.slides) {
      run_line(v, lines, y);
    } else {
      for (size_t ox = 0; ox < v->inside; ++ox) run_pixels(v, lines, ox, ox + 1, y, taps);
      run_pixels(v, lines, v->inside, v->outside, y, taps);
      for (size_t ox = v->outside; ox < s->ow; ++ox) run_pixels(v, lines, ox, ox + 1, y, taps);
    }
    if (v->finish) finish(v, buffers, at, sums);
  }
}

/* Finds the pixels of a row whose windows have no padding beside. */
static void find_inside(struct depthwise *v) {
  const struct qir_conv_shape *s = &v->s;
  const size_t reach = (s->kw - 1) * s->dw + 1;
  v->inside = (s->pl + s->sw - 1) / s->sw;
  v->outside = s->w + s->pl >= reach ? (s->w + s->pl - reach) / s->sw + 1 : 0;
  if (v->outside > s->ow) v->outside = s->ow;
  if (v->inside > v->outside) v->inside = v->outside;
}

/* Finds whether the kernel takes whole rows of the output, and what padding is beside them. */
static void find_padding(struct depthwise *v) {
  const struct qir_conv_shape *s = &v->s;
  const size_t size = v->run.size, most = size / 2;
  if (!size || s->dw != 1 || s->sw > 2 || s->pl > most || !s->ow) return;
  const size_t columns = (s->ow - 1) * s->sw + size; /* that windows lie on, padding too */
  if (columns > s->pl + s->w + most) return;
  v->run.slides = s->sw;
  v->run.before = s->pl;
  v->run.line = s->w;
}

/* The sum of the weights of a channel. */
static int32_t total_of(const struct depthwise *v, const struct qir_conv_operands *o, size_t c) {
  const size_t taps = v->s.kh * v->s.kw;
  uint32_t sum = o->offset ? (uint32_t)taps * (uint32_t)o->offset[c] : 0;
  for (size_t i = 0; i < taps; ++i) sum += (uint32_t)(int32_t)o->weight[c * taps + i];
  return (int32_t)sum;
}

/* Sums of weights, and which channel is where, for numbers that a run finds: as pack places them.
 */
static void total(const struct depthwise *v, const struct qir_conv_operands *o, int32_t *totals,
                  uint32_t *places) {
  const size_t block = v->kernel->block, half = block / 2;
  for (size_t c = 0; c < v->s.c; ++c) {
    const size_t in = c % block, first = c - in, copies = v->s.c - first <= half ? 2 : 1;
    for (size_t i = 0; i < copies; ++i) {
      const size_t at = first + place(v->kernel, in + i * half);
      totals[at] = total_of(v, o, c);
      places[at] = (uint32_t)c;
    }
  }
}

static int make(uint32_t isa, const struct qir_conv_shape *shape, const struct qir_conv_operands *o,
                const struct qir_dynamic *dynamic, struct qir_step *step) {
  enum { WORK = 128 * 1024 };
  const struct qir_depthwise_kernel *k = QIR_SELECT(qir_depthwise_kernels, isa);
  const size_t channels = qir_round_up(shape->c, k->block), taps = shape->kh * shape->kw;
  const size_t times = repeats(k, o, shape->c);
  const int square = shape->kh == shape->kw && (shape->kh == 3 || shape->kh == 5) && times == 1;
  const int slides = square && shape->kh <= k->slides && !o->pairs;
  const size_t column = slides ? qir_round_up(shape->kh, k->lanes) : 0;
  const size_t groups =
      column ? shape->kw * column / k->lanes : (times * taps + k->lanes - 1) / k->lanes;
  const size_t head = qir_round_up(sizeof(struct depthwise), 64);
  const size_t weights = qir_round_up(channels * groups * k->lanes * (k->widened ? 2 : 1), 64);
  const size_t vector = qir_round_up(channels * 4, 64),
               pad = qir_round_up((shape->w ? shape->w : 1) * shape->c, 64);
  const size_t found_at = head + weights + 2 * vector + pad;
  const size_t whole = found_at + (dynamic ? 2 * vector : 0);
  struct depthwise *v = qir_step_alloc(whole + (o->epilogue ? qir_epilogue_size(shape->c) : 0));
  if (!v) return 0;
  char *memory = (char *)v + head;
  v->kernel = k;
  v->s = *shape;
  v->x = o->x;
  v->y = o->y;
  v->column = column;
  v->repeats = times;
  v->pad = memset(memory + weights + 2 * vector, (uint8_t)o->x_zero, pad);
  v->run = (struct qir_depthwise_run){
      .step = shape->sw * shape->c,
      .channels = shape->c,
      .groups = groups,
      .size = column ? shape->kh : 0,
      .pad = (uint8_t)o->x_zero,
      .blank = v->pad,
      .converts = 1,
      .weights = memory,
      .bias = (int32_t *)(memory + weights),
      .multiplier = (float *)(memory + weights + vector),
      .x_flip = o->x_flip,
      .code = o->code,
      .to_float = o->to_float || o->epilogue,
      .pairs = o->pairs,
  };
  if (o->epilogue) {
    v->finish = qir_epilogue_select(isa);
    v->epilogue = qir_epilogue_copy(o->epilogue, shape->c, (char *)v + whole);
  }
  const size_t work = shape->ow * taps * shape->c;
  v->rows = work < WORK ? WORK / (work ? work : 1) : 1;
  find_inside(v);
  find_padding(v);
  pack(v, o, memory, (int32_t *)(memory + weights), (float *)(memory + weights + vector));
  step->run = dynamic ? run_dynamic : run;
  step->params = v;
  step->tasks = (long)((shape->n * shape->oh + v->rows - 1) / v->rows);
  v->sums = qir_round_up((groups * k->lanes + shape->kh) * sizeof(void *), 64);
  v->found = v->sums + (v->finish ? qir_round_up(shape->ow * shape->c * sizeof(float), 64) : 0);
  step->scratch = v->found + (dynamic ? 2 * vector + pad : 0);
  if (dynamic) {
    v->dynamic = *dynamic;
    v->count = vector / sizeof(int32_t);
    v->totals = (int32_t *)((char *)v + found_at);
    v->places = (uint32_t *)((char *)v + found_at + vector);
    total(v, o, (int32_t *)((char *)v + found_at), (uint32_t *)((char *)v + found_at + vector));
  }
  return 1;
}

int qir_depthwise_make(uint32_t isa, const struct qir_conv_shape *shape,
                       const struct qir_conv_operands *o, struct qir_step *step) {
  return make(isa, shape, o, NULL, step);
}

int qir_dynamic_depthwise_make(uint32_t isa, const struct qir_conv_shape *shape,
                               const struct qir_conv_operands *o, const struct qir_dynamic *dynamic,
                               struct qir_step *step) {
  return make(isa, shape, o, dynamic, step);
}
