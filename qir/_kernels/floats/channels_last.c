#include "channels_last.h"

#include <math.h>
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

static struct qir_bounds bounds_if(int own, const struct qir_after *how) {
  return own ? how->bounds : (struct qir_bounds){0, 0, 0};
}

/* n results from number `at` of the buffers on. */
static void finish(const struct after *v, void *const *buffers, float *y, size_t at, size_t n) {
  float made[CHUNK];
  for (size_t i = 0; i < n; i += CHUNK) {
    const size_t count = n - i < CHUNK ? n - i : CHUNK;
    float *to = y + at + i;
    if (v->how.op >= 0) {
      v->kernel->ops[v->how.op](&v->how.how, to, made, count);
      if (v->how.times)
        v->kernel->scale(made, to, count);
      else
        memcpy(to, made, count * sizeof(float));
    }
    if (v->how.added >= 0)
      v->kernel->plus((const float *)buffers[v->how.added] + at + i, to, count);
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

static void run_conv(const void *params, void *const *buffers, void *scratch, long task) {
  const struct conv *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t rest = (size_t)task / v->spans, span = (size_t)task % v->spans * v->span;
  const size_t image = rest / v->blocks, number = rest % v->blocks;
  const size_t first = edge(v, number), lines = edge(v, number + 1) - first;
  const size_t count = lines * v->line, at = (image * v->lines + first) * v->line;
  const float *x = (const float *)buffers[v->how.x] + (v->plain ? 0 : image * s->h * s->w * s->c);
  float *y = (float *)buffers[v->how.y];
  const float **rows = scratch;
  const float *from = x + first * s->sh * v->pitch;
  if (v->framed) {
    float *held = (float *)((char *)scratch + qir_round_up(v->block * v->line * sizeof *rows, 64));
    frame(v, x, first, lines, held);
    from = held;
  }
  struct qir_sgemm_block block = {
      .a_row = s->c,
      .a_value = 1,
      .count = count,
      .y_row = s->oc,
      .bounds = bounds_if(adds_alone(&v->how.after), &v->how.after),
  };
  const float *added = adds_alone(&v->how.after) && v->how.after.added >= 0
                           ? (const float *)buffers[v->how.after.added]
                           : NULL;
  const size_t end = span + v->span < v->panels.count ? span + v->span : v->panels.count;
  for (size_t g = 0; g < s->groups; ++g) {
    const float *group = from + g * v->in * (v->how.first ? v->plane : 1);
    if (!v->plain) {
      block.rows = rows;
      for (size_t i = 0; i < lines; ++i)
        for (size_t j = 0; j < v->line; ++j)
          rows[i * v->line + j] = group + i * s->sh * v->pitch + j * s->sw * v->pixel;
    }
    const float *weights = v->numbers + g * qir_packed_size(&v->panels, v->k);
    const float *bias = v->bias ? v->bias + g * v->panels.vectors * v->panels.nr : NULL;
    for (size_t i = span; i < end; ++i) {
      const struct qir_panel panel = qir_panel_at(&v->panels, i);
      block.width = panel.width;
      block.columns = panel.columns;
      block.column_bias = bias ? bias + panel.first : NULL;
      const size_t corner = at * s->oc + g * v->out + panel.first;
      block.y = y + corner;
      block.added = added ? added + corner : NULL;
      for (size_t p = 0; p < v->k; p += block.depth) {
        qir_sgemm_depth(v->k, p, &block);
        block.a = x + at * s->c + g * v->in + p;
        block.offsets = v->offsets + p;
        block.panel = weights + panel.first * v->k + p * panel.width;
        v->kernel->run(&block);
      }
    }
  }
  if (adds_alone(&v->how.after)) return;
  if (v->spans == 1) {
    finish(&v->after, buffers, y, at * s->oc, count * s->oc);
    return;
  }
  const struct qir_panel low = qir_panel_at(&v->panels, span);
  const struct qir_panel high = qir_panel_at(&v->panels, end - 1);
  for (size_t g = 0; g < s->groups; ++g)
    for (size_t i = 0; i < count; ++i)
      finish(&v->after, buffers, y, (at + i) * s->oc + g * v->out + low.first,
             high.first + high.columns - low.first);
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

int qir_last_conv_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step) {
  const struct qir_conv_shape *s = &how->s;
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const size_t in = s->c / s->groups, out = s->oc / s->groups, k = in * s->kh * s->kw;
  const struct qir_panels panels = qir_panels_of(kernel, out);
  const size_t group = qir_packed_size(&panels, k), wide = panels.vectors * panels.nr;
  struct conv *v = qir_step_alloc(sizeof *v + (s->groups * (group + wide) + k) * sizeof(float));
  if (!v) return 0;
  *v = (struct conv){
      .kernel = kernel,
      .how = *how,
      .panels = panels,
      .in = in,
      .out = out,
      .k = k,
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
  float *bias = v->numbers + s->groups * group;
  for (size_t g = 0; g < s->groups; ++g) {
    qir_pack_weights(&panels, how->weight + g * out * k, k, v->numbers + g * group);
    if (how->bias) memcpy(bias + g * wide, how->bias + g * out, out * sizeof(float));
  }
  if (how->bias) v->bias = bias;
  uint32_t *offsets = (uint32_t *)(bias + s->groups * wide);
  place(v, offsets);
  v->offsets = offsets;
  v->how.weight = v->how.bias = NULL; /* the caller's */
  size_t scratch = v->plain ? 0 : qir_round_up(v->block * v->line * sizeof(float *), 64);
  if (v->framed) scratch += qir_round_up((how->first ? s->c : 1) * v->plane * sizeof(float), 64);
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

static void run_depthwise(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct depthwise *v = params;
  const struct qir_conv_shape *s = &v->how.s;
  const size_t rest = (size_t)task / v->spans, from = (size_t)task % v->spans * v->span;
  const size_t image = rest / v->blocks, number = rest % v->blocks;
  const size_t first = s->oh * number / v->blocks;
  const struct qir_lines lines = {
      .s = s,
      .x = (const float *)buffers[v->how.x] + image * s->h * s->w * s->c,
      .weight = v->numbers,
      .bias = v->numbers + s->kh * s->kw * v->wide,
      .wide = v->wide,
      .first = first,
      .count = s->oh * (number + 1) / v->blocks - first,
      .from = from,
      .to = s->c - from < v->span ? s->c : from + v->span,
      .bounds = bounds_if(bounds_alone(&v->how.after), &v->how.after),
  };
  float *y = (float *)buffers[v->how.y];
  const size_t whole = image * s->oh * s->ow * s->c;
  v->kernel->lines(&lines, y + whole);
  if (bounds_alone(&v->how.after)) return;
  const size_t at = whole + first * s->ow * s->c, pixels = lines.count * s->ow;
  if (v->spans == 1)
    finish(&v->after, buffers, y, at, pixels * s->c);
  else
    for (size_t i = 0; i < pixels; ++i)
      finish(&v->after, buffers, y, at + i * s->c + from, lines.to - from);
}

int qir_last_depthwise_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step) {
  enum { FLOATS = 96 * 1024 /* of a block of lines: they stay in the second cache */ };
  enum { FEW = 64 /* pixels of an image whose channels are split */, CHANNELS = 128 };
  const struct qir_conv_shape *s = &how->s;
  const struct qir_sgemm_kernel *kernel = QIR_SELECT(qir_sgemm_kernels, isa);
  const size_t wide = qir_round_up(s->c, kernel->nr), taps = s->kh * s->kw;
  struct depthwise *v = qir_step_alloc(sizeof *v + (taps + 1) * wide * sizeof(float));
  if (!v) return 0;
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
  *step = (struct qir_step){run_depthwise, v, (long)(s->n * v->blocks * v->spans), 0};
  return 1;
}

/* ---- means ---- */

struct means {
  const struct qir_unary_kernel *kernel;
  size_t pixels, c, groups;
  int x, y;
};

static void run_means(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct means *v = params;
  const size_t image = (size_t)task / v->groups;
  const size_t first = (size_t)task % v->groups * QIR_MEANS, left = v->c - first;
  v->kernel->means((const float *)buffers[v->x] + image * v->pixels * v->c + first, v->pixels, v->c,
                   left < QIR_MEANS ? left : QIR_MEANS,
                   (float *)buffers[v->y] + image * v->c + first);
}

int qir_last_mean_make(uint32_t isa, size_t n, size_t pixels, size_t c, int x, int y,
                       struct qir_step *step) {
  struct means *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  const size_t groups = parts_of(c, QIR_MEANS);
  *v = (struct means){QIR_SELECT(qir_unary_kernels, isa), pixels, c, groups, x, y};
  *step = (struct qir_step){run_means, v, (long)(n * groups), 0};
  return 1;
}

/* ---- windows ---- */

struct pool {
  const struct qir_unary_kernel *kernel;
  struct qir_last_pool how;
};

/* Elements from low to high that a window along one axis has a share of. */
static double share(size_t at, size_t stride, size_t kernel, size_t low, size_t high) {
  const size_t start = at * stride, end = start + kernel;
  const size_t first = start > low ? start : low, last = end < high ? end : high;
  return last > first ? (double)(last - first) : 0;
}

/* What the taps of one output pixel see, in order. */
static void take(const struct pool *v, const float *x, size_t oy, size_t ox, float *most,
                 double *sums) {
  const struct qir_float_window *s = &v->how.s;
  const size_t c = v->how.channels;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t line = oy * s->sh + ky * s->dh;
    if (line < s->pt || line - s->pt >= s->h) continue;
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const size_t column = ox * s->sw + kx * s->dw;
      if (column < s->pl || column - s->pl >= s->w) continue;
      const float *seen = x + ((line - s->pt) * s->w + column - s->pl) * c;
      if (v->how.average)
        v->kernel->collect(seen, sums, c);
      else
        v->kernel->most(seen, most, c);
    }
  }
}

/* A task is a line of the output. */
static void run_pool(const void *params, void *const *buffers, void *scratch, long task) {
  const struct pool *v = params;
  const struct qir_float_window *s = &v->how.s;
  const size_t c = v->how.channels, image = (size_t)task / s->oh, oy = (size_t)task % s->oh;
  const float *x = (const float *)buffers[v->how.x] + image * s->h * s->w * c;
  float *y = (float *)buffers[v->how.y] + (size_t)task * s->ow * c;
  double *sums = scratch;
  const int pad = v->how.count_pad;
  const size_t bottom = s->pt + s->h + (pad ? v->how.pb : 0);
  const size_t right = s->pl + s->w + (pad ? v->how.pr : 0);
  const double rows = share(oy, s->sh, s->kh, pad ? 0 : s->pt, bottom);
  for (size_t ox = 0; ox < s->ow; ++ox, y += c) {
    if (!v->how.average) {
      for (size_t i = 0; i < c; ++i) y[i] = -INFINITY;
      take(v, x, oy, ox, y, NULL);
      continue;
    }
    for (size_t i = 0; i < c; ++i) sums[i] = 0;
    take(v, x, oy, ox, NULL, sums);
    const double count = rows * share(ox, s->sw, s->kw, pad ? 0 : s->pl, right);
    for (size_t i = 0; i < c; ++i) {
      const float mean = (float)(sums[i] / count);
      y[i] = mean != mean ? NAN : mean;
    }
  }
}

int qir_last_pool_make(uint32_t isa, const struct qir_last_pool *how, struct qir_step *step) {
  struct pool *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct pool){QIR_SELECT(qir_unary_kernels, isa), *how};
  const size_t tasks = how->s.ow ? how->s.planes * how->s.oh : 0;
  *step = (struct qir_step){run_pool, v, (long)tasks,
                            how->average ? qir_round_up(how->channels * sizeof(double), 64) : 0};
  return 1;
}
