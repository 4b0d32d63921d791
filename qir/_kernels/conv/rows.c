#include "rows.h"

#include <string.h>

struct qir_conv_rows qir_conv_rows_make(const struct qir_conv_shape *s, size_t kr, int widened) {
  struct qir_conv_rows r = {.s = *s, .cg = s->c / s->groups, .size = widened ? 2 : 1};
  const size_t taps = s->kh * s->kw;
  const int whole = r.cg % kr == 0; /* what is read in place is a multiple of kr */
  if (!widened && whole && taps == 1 && s->sh == 1 && s->sw == 1 && s->pt == 0 && s->pl == 0 &&
      s->oh == s->h && s->ow == s->w) {
    r.way = QIR_PIXELS;
    r.joined = 1;
  } else if (!widened && whole) {
    r.way = QIR_TAPS;
    r.joined = 1;
  } else if (!widened && s->groups == 1 && s->dw == 1) {
    r.way = QIR_LINES;
    r.joined = s->kw;
  } else {
    r.way = QIR_COPIES;
    r.joined = taps;
  }
  r.pieces = taps / r.joined;
  r.depth = qir_round_up(r.joined * r.cg, kr);
  return r;
}

size_t qir_conv_rows_pad(const struct qir_conv_rows *r) {
  return r->way == QIR_LINES ? r->depth : r->cg;
}

static size_t pointers(const struct qir_conv_rows *r, size_t count) {
  return qir_round_up(r->pieces * count * sizeof(void *), 64);
}

size_t qir_conv_rows_scratch(const struct qir_conv_rows *r, size_t count) {
  const int copied = r->way == QIR_LINES || r->way == QIR_COPIES;
  return pointers(r, count) + (copied ? r->pieces * count * r->depth * r->size : 0);
}

/* Neighbouring pixels of one row of the output, and one line of their windows. */
struct line {
  const uint8_t *x; /* the line of the input, NULL where it is padding */
  size_t left;      /* of the first window; wraps below zero: then it is not below w */
  size_t count;
};

/* ---- pointers ---- */

/* Points rows to places that lie so many bytes apart. */
static void point(const uint8_t *at, size_t step, size_t count, const void **rows) {
  size_t i = 0;
  for (; i + 4 < count; i += 4, at += 4 * step) {
    rows[i] = at;
    rows[i + 1] = at + step;
    rows[i + 2] = at + 2 * step;
    rows[i + 3] = at + 3 * step;
  }
  for (size_t k = 0; i + k < count; ++k) rows[i + k] = at + k * step;
}

/* How many of at most `most` windows begin below `end`, the first of which does at `left`. */
static size_t below(size_t left, size_t step, size_t end, size_t most) {
  const size_t some = left < end ? (end - left - 1) / step + 1 : 0;
  return some < most ? some : most;
}

static void point_taps(const struct qir_conv_rows *r, const struct line *line, size_t stride,
                       const void **rows) {
  const size_t c = r->s.c, sw = r->s.sw, count = line->count;
  for (size_t kx = 0; kx < r->s.kw; ++kx, rows += stride) {
    size_t i = 0, ix = line->left + kx * r->s.dw;
    if (line->x) {
      for (; i < count && ix >= r->s.w; ++i, ix += sw) rows[i] = r->pad;
      const size_t inside = below(ix, sw, r->s.w, count - i);
      if (inside) point(line->x + ix * c, sw * c, inside, rows + i);
      i += inside;
    }
    point(r->pad, 0, count - i, rows + i);
  }
}

/* The taps of a line of one window that is partly outside. */
static const void *patch(const struct qir_conv_rows *r, const uint8_t *x, size_t left,
                         uint8_t *to) {
  for (size_t kx = 0; kx < r->s.kw; ++kx) {
    const size_t ix = left + kx;
    memcpy(to + kx * r->s.c, ix < r->s.w ? x + ix * r->s.c : r->pad, r->s.c);
  }
  memset(to + r->s.kw * r->s.c, 0, r->depth - r->s.kw * r->s.c);
  return to;
}

static void point_lines(const struct qir_conv_rows *r, const struct line *line, const uint8_t *end,
                        uint8_t *spare, const void **rows) {
  if (!line->x) {
    point(r->pad, 0, line->count, rows);
    return;
  }
  /* Windows that begin at 0 .. last can be read in place. */
  const size_t readable = (size_t)(end - line->x), c = r->s.c, sw = r->s.sw;
  size_t starts = r->s.w >= r->s.kw ? r->s.w - r->s.kw + 1 : 0, i = 0, left = line->left;
  while (starts > 0 && (starts - 1) * c + r->depth > readable) --starts;
  for (; i < line->count && left >= starts; ++i, left += sw) /* those before 0 are far above w */
    rows[i] = patch(r, line->x, left, spare + i * r->depth);
  const size_t inside = below(left, sw, starts, line->count - i);
  if (inside) point(line->x + left * c, sw * c, inside, rows + i);
  i += inside;
  left += inside * sw;
  for (; i < line->count; ++i, left += sw) rows[i] = patch(r, line->x, left, spare + i * r->depth);
}

/* ---- copies ---- */

static void copy(const struct qir_conv_rows *r, const uint8_t *from, size_t n, char *to) {
  if (r->size == 1) {
    memcpy(to, from, n);
    return;
  }
  int16_t *wide = (int16_t *)to;
  for (size_t i = 0; i < n; ++i) wide[i] = (uint8_t)(from[i] ^ r->flip);
}

static void copy_lines(const struct qir_conv_rows *r, const struct line *line, char *to) {
  const size_t tap = r->cg * r->size, bytes = r->depth * r->size;
  const int joined = line->x && r->s.groups == 1 && r->s.dw == 1;
  size_t left = line->left;
  for (size_t i = 0; i < line->count; ++i, left += r->s.sw, to += bytes) {
    if (joined && left < r->s.w && left + r->s.kw <= r->s.w) {
      copy(r, line->x + left * r->s.c, r->s.kw * r->cg, to);
      continue;
    }
    for (size_t kx = 0; kx < r->s.kw; ++kx) {
      const size_t ix = left + kx * r->s.dw;
      const uint8_t *from = line->x && ix < r->s.w ? line->x + ix * r->s.c : r->pad;
      copy(r, from, r->cg, to + kx * tap);
    }
  }
}

/* Points rows to their copies, and clears what is behind: it is multiplied by zero. */
static void place_copies(const struct qir_conv_rows *r, size_t count, char *to, const void **rows) {
  const size_t used = r->joined * r->cg * r->size, bytes = r->depth * r->size;
  for (size_t i = 0; i < count; ++i, to += bytes) {
    rows[i] = to;
    for (size_t j = used; j < bytes; ++j) to[j] = 0;
  }
}

/* ---- all ---- */

/* Fills rows + i and on for pixels that lie in one row of the output. */
static void fill_run(const struct qir_conv_rows *r, const uint8_t *x, size_t first, size_t run,
                     size_t i, size_t count, const void **rows) {
  const struct qir_conv_shape *s = &r->s;
  const size_t ox = first % s->ow, oy = first / s->ow % s->oh, n = first / s->ow / s->oh;
  char *copies = (char *)rows + pointers(r, count);
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t iy = oy * s->sh + ky * s->dh - s->pt; /* wraps below zero: then not below h */
    const struct line line = {
        .x = iy < s->h ? x + (n * s->h + iy) * s->w * s->c : NULL,
        .left = ox * s->sw - s->pl,
        .count = run,
    };
    if (r->way == QIR_TAPS) {
      point_taps(r, &line, count, rows + ky * s->kw * count + i);
    } else if (r->way == QIR_LINES) {
      const uint8_t *end = x + s->n * s->h * s->w * s->c;
      point_lines(r, &line, end, (uint8_t *)copies + (ky * count + i) * r->depth,
                  rows + ky * count + i);
    } else {
      copy_lines(r, &line, copies + (i * r->depth + ky * s->kw * r->cg) * r->size);
    }
  }
}

void qir_conv_rows_fill(const struct qir_conv_rows *r, const uint8_t *x, size_t first, size_t count,
                        const void **rows) {
  if (r->way == QIR_PIXELS) {
    point(x + first * r->s.c, r->s.c, count, rows);
    return;
  }
  if (r->way == QIR_COPIES) place_copies(r, count, (char *)rows + pointers(r, count), rows);
  for (size_t i = 0; i < count;) {
    const size_t left = r->s.ow - (first + i) % r->s.ow;
    const size_t run = left < count - i ? left : count - i;
    fill_run(r, x, first + i, run, i, count, rows);
    i += run;
  }
}
