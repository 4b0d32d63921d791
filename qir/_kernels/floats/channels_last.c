#include "channels_last.h"

#include <string.h>

enum { TASKS = 8, CHUNK = 1024 /* floats of an activation at a time */ };

static size_t parts_of(size_t all, size_t each) { return (all + each - 1) / each; }

/*
 * Blocks of lines come in fours, or in pairs if they are few: two and four threads then take the
 * same part of each image, and find in their own cache what they wrote a step before.
 */
static size_t shared_blocks(size_t blocks, size_t lines) {
  const size_t even = blocks < 2 ? blocks : qir_round_up(blocks, blocks < 4 ? 2 : 4);
  return even < lines ? even : lines;
}

/* ---- what follows a sum ---- */

struct after {
  const struct qir_unary_kernel *kernel;
  struct qir_after how;
};

/* What the kernel of a product does itself, and that of a depthwise convolution. */
static int adds_alone(const struct qir_after *how) { return how->op < 0; }
static int bounds_alone(const struct qir_after *how) { return how->op < 0 && how->added < 0; }

/* What is added to the results from number `at` on, or NULL. */
static const float *added_at(const struct qir_after *how, void *const *buffers, size_t at) {
  return how->added < 0 ? NULL : (const float *)buffers[how->added] + at;
}

static struct qir_bounds bounds_if(int own, const struct qir_after *how) {
  return own ? how->bounds : (struct qir_bounds){0, 0, 0};
}

/* n results; `added` lies as they do, or is NULL. */
static void finish(const struct after *v, const float *added, float *y, size_t n) {
  float made[CHUNK];
  for (size_t i = 0; i < n; i += CHUNK) {
    const size_t count = n - i < CHUNK ? n - i : CHUNK;
    float *to = y + i;
    if (v->how.op >= 0) {
      v->kernel->ops[v->how.op](&v->how.how, to, made, count);
      if (v->how.times)
        v->kernel->scale(made, to, count);
      else
        memcpy(to, made, count * sizeof(float));
    }
    if (added) v->kernel->plus(added + i, to, count);
    if (v->how.bounds.bounded) v->kernel->keep(v->how.bounds.low, v->how.bounds.high, to, count);
  }
}

/* ---- convolution ---- */

/* A task is a block of output lines by a group of panels, of one image. Where output pixels see one
 * input pixel each, all images are one, and a line is a pixel. */
struct conv {
  const struct qir_sgemm_kernel *kernel;
  struct qir_last_conv how;
  struct after after;
  struct qir_panels panels;
  size_t in, out, k;                 /* channels of a group, values of a sum */
  size_t images, lines, line;        /* lines of an image, pixels of a line */
  size_t block, blocks, span, spans; /* lines of the largest task, panels of a task */
  int plain, framed;
  size_t tall, width, pixel, pitch, plane; /* of what windows are read from, in floats */
  const float *bias;                       /* or NULL */
  const uint32_t *offsets;
  float numbers[]; /* panels of each group, then the bias and the offsets */
};

/* Copies the lines that output lines first .. first + count see, with padding around them. */
static void frame(const struct conv *v, const float *x, size_t first, size_t count, float *to) {
  const struct qir_conv_shape *s = &v->how.s;
  const size_t tall = (count - 1) * s->sh + (s->kh - 1) * s->dh + 1;
  const size_t planes = v->how.first ? s->c : 1, depth = v->how.first ? 1 : s->c;
  const size_t padded = s->pl * depth, row = s->w * depth;
  const size_t left = padded < v->pitch ? padded : v->pitch;
  const size_t seen = v->pitch - left < row ? v->pitch - left : row; /* floats of a line */
  for (size_t p = 0; p < planes; ++p)
    for (size_t i = 0; i < tall; ++i) {
      const size_t down = first * s->sh + i;
      float *line = to + p * v->plane + i * v->pitch;
      if (down < s->pt || down - s->pt >= s->h) {
        memset(line, 0, v->pitch * sizeof(float));
        continue;
      }
      memset(line, 0, left * sizeof(float));
      memcpy(line + left, x + (p * s->h + down - s->pt) * row, seen * sizeof(float));
      memset(line + left + seen, 0, (v->pitch - left - seen) * sizeof(float));
    }
}

/* The first line of a block. Where a line is a pixel, it is a whole number of tiles. */
static size_t edge(const struct conv *v, size_t block) {
  enum { TILE = 24 /* rows of both heights of tiles */ };
  const size_t at = v->lines * block / v->blocks;
  if (v->line > 1 || block == 0 || block == v->blocks || v->lines < TILE * v->blocks) return at;
  return (at + TILE / 2) / TILE * TILE;
}

/* Some lines of an image, and panels of them: y and `added` begin at the first of these lines, and
 * so does x where an output pixel sees one input pixel; else at the image. */
struct part {
  size_t first, lines, span, end;
  const float *x, *added; /* may be NULL */
  float *y;
};

/* Points to the windows of the part's pixels, whose first channel is at `from`. */
static void list_windows(const struct conv *v, const struct part *at, const float *from,
                         const float **rows) {
  const struct qir_conv_shape *s = &v->how.s;
  for (size_t i = 0; i < at->lines; ++i)
    for (size_t j = 0; j < v->line; ++j)
      rows[i * v->line + j] = from + i * s->sh * v->pitch + j * s->sw * v->pixel;
}

static void finish_part(const struct conv *v, const struct part *at, size_t count) {
  const size_t oc = v->how.s.oc;
  if (at->end - at->span == v->panels.count) {
    finish(&v->after, at->added, at->y, count * oc);
    return;
  }
  const struct qir_panel low = qir_panel_at(&v->panels, at->span);
  const struct qir_panel high = qir_panel_at(&v->panels, at->end - 1);
  for (size_t g = 0; g < v->how.s.groups; ++g)
    for (size_t i = 0; i < count; ++i) {
      const size_t from = i * oc + g * v->out + low.first;
      finish(&v->after, at->added ? at->added + from : NULL, at->y + from,
             high.first + high.columns - low.first);
    }
}

static void conv_part(const struct conv *v, const struct part *at, void *scratch) {
  const struct qir_conv_shape *s = &v->how.s;
  const size_t count = at->lines * v->line;
  const float **rows = scratch;
  const float *from = at->x + (v->plain ? 0 : at->first * s->sh * v->pitch);
  if (v->framed) {
    float *held = (float *)((char *)scratch + qir_round_up(v->block * v->line * sizeof *rows, 64));
    frame(v, at->x, at->first, at->lines, held);
    from = held;
  }
  struct qir_sgemm_block block = {
      .a_row = s->c,
      .a_value = 1,
      .count = count,
      .rows = v->plain ? NULL : rows,
      .y_row = s->oc,
      .bounds = bounds_if(adds_alone(&v->how.after), &v->how.after),
  };
  const float *added = adds_alone(&v->how.after) ? at->added : NULL;
  for (size_t g = 0; g < s->groups; ++g) {
    if (!v->plain) list_windows(v, at, from + g * v->in * (v->how.first ? v->plane : 1), rows);
    const float *weights = v->numbers + g * qir_packed_size(&v->panels, v->k);
    const float *bias = v->bias ? v->bias + g * v->panels.vectors * v->panels.nr : NULL;
    for (size_t i = at->span; i < at->end; ++i) {
      const struct qir_panel panel = qir_panel_at(&v->panels, i);
      const size_t corner = g * v->out + panel.first;
      block.width = panel.width;
      block.columns = panel.columns;
      block.column_bias = bias ? bias + panel.first : NULL;
      block.y = at->y + corner;
      block.added = added ? added + corner : NULL;
      for (size_t p = 0; p < v->k; p += block.depth) {
        qir_sgemm_depth(v->k, p, &block);
        block.a = at->x + g * v->in + p;
        block.offsets = v->offsets + p;
        block.panel = weights + panel.first * v->k + p * panel.width;
        v->kernel->run(&block);
      }
    }
  }
  if (!adds_alone(&v->how.after)) finish_part(v, at, count);
}

static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const size_t rest = (size_t)task / v->spans, span = (size_t)task % v->spans * v->span;
  const size_t image = rest / v->blocks, number = rest % v->blocks, first = edge(v, number);
  const struct qir_conv_shape *s = &v->how.s;
  const size_t at = (image * v->lines + first) * v->line * s->oc;
  const struct part part = {
      .first = first,
      .lines = edge(v, number + 1) - first,
      .span = span,
      .end = span + v->span < v->panels.count ? span + v->span : v->panels.count,
      .x = (const float *)buffers[v->how.x] + (v->plain ? first : image * s->h * s->w) * s->c,
      .added = added_at(&v->how.after, buffers, at),
      .y = (float *)buffers[v->how.y] + at,
  };
  conv_part(v, &part, scratch);
}

/* Blocks that stay in the second cache with what they read, of nearly the same size. */
static void split(struct conv *v) {
  enum { FLOATS = 48 * 1024, FEWEST = 96, MOST = 256 };
  const struct qir_conv_shape *s = &v->how.s;
  size_t pixels = FLOATS / (s->c + s->oc);
  pixels = pixels < FEWEST ? FEWEST : pixels > MOST ? MOST : pixels;
  v->blocks = shared_blocks(parts_of(v->lines, parts_of(pixels, v->line)), v->lines);
  for (size_t i = 0; i < v->blocks; ++i) {
    const size_t lines = edge(v, i + 1) - edge(v, i);
    v->block = lines < v->block ? v->block : lines;
  }
  const size_t tasks = v->images * v->blocks, wanted = v->framed ? TASKS / 2 : TASKS;
  const size_t spans = parts_of(wanted, tasks);
  v->span = parts_of(v->panels.count, spans < v->panels.count ? spans : v->panels.count);
  v->spans = parts_of(v->panels.count, v->span);
}

/* Where each value of a window is, from its first one on. */
static void place(const struct conv *v, uint32_t *offsets) {
  const struct qir_conv_shape *s = &v->how.s;
  const size_t channel = v->how.first ? v->plane : 1;
  for (size_t c = 0; c < v->in; ++c)
    for (size_t ky = 0; ky < s->kh; ++ky)
      for (size_t kx = 0; kx < s->kw; ++kx)
        *offsets++ = (uint32_t)(c * channel + ky * s->dh * v->pitch + kx * s->dw * v->pixel);
}

/* Floats of the parts of `numbers`. */
struct conv_size {
  struct qir_panels panels;
  size_t k, group, wide; /* values of a sum; weights and biases of a group */
};

static struct conv_size conv_size(uint32_t isa, const struct qir_conv_shape *s) {
  const size_t k = s->c / s->groups * s->kh * s->kw;
  const struct qir_panels panels =
      qir_panels_of(QIR_SELECT(qir_sgemm_kernels, isa), s->oc / s->groups);
  return (struct conv_size){panels, k, qir_packed_size(&panels, k), panels.vectors * panels.nr};
}

static size_t conv_bytes(uint32_t isa, const struct qir_conv_shape *s) {
  const struct conv_size size = conv_size(isa, s);
  return sizeof(struct conv) + (s->groups * (size.group + size.wide) + size.k) * sizeof(float);
}

/* Packs the weights, then the bias and the offsets of a window. */
static void fill_conv(struct conv *v, const struct conv_size *size) {
  const struct qir_last_conv *how = &v->how;
  const size_t groups = how->s.groups;
  float *bias = v->numbers + groups * size->group;
  for (size_t g = 0; g < groups; ++g) {
    qir_pack_weights(&v->panels, how->weight + g * v->out * v->k, v->k,
                     v->numbers + g * size->group);
    if (how->bias) memcpy(bias + g * size->wide, how->bias + g * v->out, v->out * sizeof(float));
  }
  if (how->bias) v->bias = bias;
  uint32_t *offsets = (uint32_t *)(bias + groups * size->wide);
  place(v, offsets);
  v->offsets = offsets;
  v->how.weight = v->how.bias = NULL; /* the caller's */
}

/* Fills conv_bytes of cleared memory; returns the bytes of scratch memory. */
static size_t conv_init(uint32_t isa, const struct qir_last_conv *how, struct conv *v) {
  const struct qir_conv_shape *s = &how->s;
  const struct conv_size size = conv_size(isa, s);
  *v = (struct conv){
      .kernel = QIR_SELECT(qir_sgemm_kernels, isa),
      .how = *how,
      .panels = size.panels,
      .in = s->c / s->groups,
      .out = s->oc / s->groups,
      .k = size.k,
      .after = {QIR_SELECT(qir_unary_kernels, isa), how->after},
      .plain = qir_conv_plain(s) && !how->first,
  };
  v->images = v->plain ? 1 : s->n;
  v->lines = v->plain ? s->n * s->h * s->w : s->oh;
  v->line = v->plain ? 1 : s->ow;
  const size_t tall = (s->oh - 1) * s->sh + (s->kh - 1) * s->dh + 1; /* with padding */
  const size_t across = (s->ow - 1) * s->sw + (s->kw - 1) * s->dw + 1;
  v->framed = s->pt || s->pl || tall > s->h || across > s->w;
  split(v);
  const size_t held = (v->block - 1) * s->sh + (s->kh - 1) * s->dh + 1; /* lines of a frame */
  v->pixel = how->first ? 1 : s->c;
  v->pitch = (v->framed ? across : s->w) * v->pixel;
  v->plane = (v->framed ? held : s->h) * v->pitch;
  fill_conv(v, &size);
  size_t scratch = v->plain ? 0 : qir_round_up(v->block * v->line * sizeof(float *), 64);
  if (v->framed) scratch += qir_round_up((how->first ? s->c : 1) * v->plane * sizeof(float), 64);
  return scratch;
}

int qir_last_conv_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step) {
  struct conv *v = qir_step_alloc(conv_bytes(isa, &how->s));
  if (!v) return 0;
  const size_t scratch = conv_init(isa, how, v);
  *step = (struct qir_step){run_conv, v, (long)(v->images * v->blocks * v->spans), scratch};
  return 1;
}

/* ---- depthwise ---- */

/* A task is a block of lines by a group of channels, of one image. */
struct depthwise {
  const struct qir_sgemm_kernel *kernel;
  struct qir_last_conv how;
  struct after after;
  size_t wide, blocks, span, spans; /* channels of a task */
  float numbers[];                  /* weights, a row of channels for each tap; the bias */
};

/* Some lines and channels of an image, of which x holds `ring` lines; y and `added` begin at the
 * first line. */
static void depthwise_part(const struct depthwise *v, struct qir_lines *lines, const float *added,
                           float *y) {
  const struct qir_conv_shape *s = &v->how.s;
  lines->s = s;
  lines->weight = v->numbers;
  lines->bias = v->numbers + s->kh * s->kw * v->wide;
  lines->wide = v->wide;
  lines->bounds = bounds_if(bounds_alone(&v->how.after), &v->how.after);
  v->kernel->lines(lines, y);
  if (bounds_alone(&v->how.after)) return;
  const size_t pixels = lines->count * s->ow, from = lines->from, count = lines->to - from;
  if (count == s->c)
    finish(&v->after, added, y, pixels * s->c);
  else
    for (size_t i = from; i < pixels * s->c; i += s->c)
      finish(&v->after, added ? added + i : NULL, y + i, count);
}

static void run_depthwise(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct depthwise *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t rest = (size_t)task / v->spans, from = (size_t)task % v->spans * v->span;
  const size_t image = rest / v->blocks, number = rest % v->blocks;
  const size_t first = s->oh * number / v->blocks;
  const size_t at = (image * s->oh + first) * s->ow * s->c;
  struct qir_lines lines = {
      .x = (const float *)buffers[v->how.x] + image * s->h * s->w * s->c,
      .ring = s->h,
      .first = first,
      .count = s->oh * (number + 1) / v->blocks - first,
      .from = from,
      .to = s->c - from < v->span ? s->c : from + v->span,
  };
  depthwise_part(v, &lines, added_at(&v->how.after, buffers, at), (float *)buffers[v->how.y] + at);
}

static size_t depthwise_bytes(uint32_t isa, const struct qir_conv_shape *s) {
  const size_t wide = qir_round_up(s->c, QIR_SELECT(qir_sgemm_kernels, isa)->nr);
  return sizeof(struct depthwise) + (s->kh * s->kw + 1) * wide * sizeof(float);
}

/* Fills depthwise_bytes of cleared memory. */
static void depthwise_init(uint32_t isa, const struct qir_last_conv *how, struct depthwise *v) {
  enum { FLOATS = 96 * 1024 /* of a block of lines: they stay in the second cache */ };
  enum { FEW = 64 /* pixels of an image whose channels are split */, CHANNELS = 128 };
  const struct qir_conv_shape *s = &how->s;
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const size_t wide = qir_round_up(s->c, kernel->nr), taps = s->kh * s->kw;
  *v = (struct depthwise){.kernel = kernel,
                          .how = *how,
                          .wide = wide,
                          .after = {QIR_SELECT(qir_unary_kernels, isa), how->after}};
  for (size_t t = 0; t < taps; ++t)
    for (size_t c = 0; c < s->c; ++c) v->numbers[t * wide + c] = how->weight[c * taps + t];
  float *bias = v->numbers + taps * wide;
  for (size_t c = 0; c < wide; ++c) bias[c] = how->bias && c < s->c ? how->bias[c] : -0.0f;
  v->how.weight = v->how.bias = NULL; /* the caller's */
  const int few = s->oh * s->ow <= FEW;
  v->span = few ? CHANNELS : qir_round_up(s->c, 16);
  v->spans = parts_of(s->c, v->span);
  const size_t fit = FLOATS / (s->w * s->c * s->sh), quarter = parts_of(s->oh, 4);
  const size_t most = few ? s->oh : fit < 2 ? 2 : fit < quarter ? fit : quarter;
  v->blocks = shared_blocks(parts_of(s->oh, most), s->oh);
}

int qir_last_depthwise_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step) {
  struct depthwise *v = qir_step_alloc(depthwise_bytes(isa, &how->s));
  if (!v) return 0;
  depthwise_init(isa, how, v);
  *step = (struct qir_step){run_depthwise, v, (long)(how->s.n * v->blocks * v->spans), 0};
  return 1;
}

/* ---- a depthwise convolution with its neighbours ---- */

/*
 * A task is a stripe of lines of an image. It goes down some lines at a time: the convolution
 * before writes the next lines that the depthwise one sees to a ring, this one writes its results
 * next to it, and the convolution after reads them there. So values that are large in between stay
 * in the second cache. Stripes compute the lines twice that both see.
 */
struct chain {
  const struct conv *before, *after; /* or NULL */
  const struct depthwise *middle;
  size_t stripes, step, ring; /* lines of the result at a time, lines of the ring */
  size_t ring_at, held_at;    /* bytes of scratch memory before the ring, and its results */
};

/* Lines first .. end of a result, to y; x begins at that line or at the image, as a part says. */
static void conv_lines(const struct conv *v, size_t image, size_t first, size_t end,
                       void *const *buffers, const float *x, float *y, void *scratch) {
  const struct qir_conv_shape *s = &v->how.s;
  const size_t most = v->plain ? end - first : v->block;
  for (size_t next; first < end; first = next) {
    next = end - first < most ? end : first + most;
    const size_t at = (image * s->oh + first) * s->ow * s->oc;
    const struct part part = {
        .first = first,
        .lines = (next - first) * (v->plain ? s->w : 1),
        .end = v->panels.count,
        .x = x,
        .added = added_at(&v->how.after, buffers, at),
        .y = y,
    };
    conv_part(v, &part, scratch);
    y += (next - first) * s->ow * s->oc;
  }
}

/* Brings the ring from line `made` of an image to line `end`. */
static void extend_ring(const struct chain *v, size_t image, size_t made, size_t end,
                        void *const *buffers, char *scratch) {
  const struct conv *before = v->before;
  const struct qir_conv_shape *s = &before->how.s;
  const float *x = (const float *)buffers[before->how.x] + image * s->h * s->w * s->c;
  for (size_t next; made < end; made = next) {
    const size_t place = made % v->ring, left = v->ring - place;
    next = end - made < left ? end : made + left;
    float *y = (float *)(scratch + v->ring_at) + place * s->ow * s->oc;
    conv_lines(before, image, made, next, buffers, before->plain ? x + made * s->w * s->c : x, y,
               scratch);
  }
}

static size_t less(size_t value, size_t by) { return value < by ? 0 : value - by; }

static void run_chain(const void *params, void *const *buffers, void *scratch, long task) {
  const struct chain *v = params;
  const struct qir_conv_shape *s = &v->middle->how.s;
  const size_t image = (size_t)task / v->stripes, stripe = (size_t)task % v->stripes;
  const size_t end = s->oh * (stripe + 1) / v->stripes;
  size_t made = 0;
  for (size_t first = s->oh * stripe / v->stripes, next; first < end; first = next) {
    next = end - first < v->step ? end : first + v->step;
    const size_t top = less(first * s->sh, s->pt); /* lines that are seen */
    const size_t bottom = less((next - 1) * s->sh + (s->kh - 1) * s->dh + 1, s->pt);
    const size_t at = (image * s->oh + first) * s->ow * s->c;
    struct qir_lines lines = {.first = first, .count = next - first, .to = s->c};
    if (v->before) {
      lines.x = (const float *)((char *)scratch + v->ring_at);
      lines.ring = v->ring;
      lines.base = top / v->ring * v->ring;
      const size_t seen = bottom < s->h ? bottom : s->h;
      extend_ring(v, image, made < top ? top : made, seen, buffers, scratch);
      made = seen;
    } else {
      lines.x = (const float *)buffers[v->middle->how.x] + image * s->h * s->w * s->c;
      lines.ring = s->h;
    }
    float *y = v->after ? (float *)((char *)scratch + v->held_at)
                        : (float *)buffers[v->middle->how.y] + at;
    depthwise_part(v->middle, &lines, added_at(&v->middle->how.after, buffers, at), y);
    if (v->after)
      conv_lines(v->after, image, first, next, buffers, y,
                 (float *)buffers[v->after->how.y] + at / s->c * v->after->how.s.oc, scratch);
  }
}

/* How many lines are taken at a time, and how many stripes there are. */
static void plan_chain(struct chain *v) {
  enum { FLOATS = 96 * 1024 /* of what is between, at a time: it stays in the second cache */ };
  enum { MOST = 8, TWICE = 20 /* one of so many lines may be computed twice */ };
  const struct qir_conv_shape *s = &v->middle->how.s;
  const size_t line = v->before ? s->w * s->c : 0, held = v->after ? s->ow * s->c : 0;
  const size_t reach = (s->kh - 1) * s->dh + 1;
  const size_t more = less(FLOATS, reach * line + held) / (s->sh * line + held);
  v->step = more + 1 < s->oh ? more + 1 : s->oh;
  v->ring = (v->step - 1) * s->sh + reach;
  const size_t shared = v->before ? less(reach, s->sh) : 0;
  const size_t stripes = shared ? s->h / (TWICE * shared) + 1 : MOST;
  const size_t wanted = s->n < MOST ? (MOST + s->n - 1) / s->n : 1;
  v->stripes = stripes < wanted ? stripes : wanted;
  v->stripes = s->n == 1 ? qir_round_up(v->stripes, 2) : v->stripes; /* for two threads */
  if (v->stripes > s->oh) v->stripes = s->oh;
}

int qir_last_chain_make(uint32_t isa, const struct qir_last_chain *how, struct qir_step *step) {
  const struct qir_last_conv *before = how->before, *middle = how->middle, *after = how->after;
  const size_t middle_at = qir_round_up(sizeof(struct chain), 64);
  const size_t before_at = middle_at + qir_round_up(depthwise_bytes(isa, &middle->s), 64);
  const size_t size = before ? qir_round_up(conv_bytes(isa, &before->s), 64) : 0;
  const size_t after_at = before_at + size;
  char *memory = qir_step_alloc(after_at + (after ? conv_bytes(isa, &after->s) : 0));
  if (!memory) return 0;
  struct chain *v = (struct chain *)memory;
  struct depthwise *lines = (struct depthwise *)(memory + middle_at);
  struct conv *first = (struct conv *)(memory + before_at);
  struct conv *last = (struct conv *)(memory + after_at);
  depthwise_init(isa, middle, lines);
  const size_t first_needs = before ? conv_init(isa, before, first) : 0;
  const size_t last_needs = after ? conv_init(isa, after, last) : 0;
  *v = (struct chain){
      .before = before ? first : NULL, .middle = lines, .after = after ? last : NULL};
  plan_chain(v);
  const struct qir_conv_shape *s = &middle->s;
  v->ring_at = first_needs > last_needs ? first_needs : last_needs;
  v->held_at = v->ring_at;
  if (before) v->held_at += qir_round_up(v->ring * s->w * s->c * sizeof(float), 64);
  const size_t held = after ? v->step * s->ow * s->c * sizeof(float) : 0;
  *step = (struct qir_step){run_chain, v, (long)(s->n * v->stripes),
                            v->held_at + qir_round_up(held, 64)};
  return 1;
}
