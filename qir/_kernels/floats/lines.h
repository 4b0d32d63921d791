/*
 * Lines of depthwise convolutions of images channels last, with the vectors of tiles.h, which the
 * file that includes this has included before.
 */

static const float nothing[NR];

/* Results of `n` pixels next to each other, from one pixel on. */
BODY void store_pixels(const struct qir_lines *how, float *y, size_t at, size_t oy, size_t ox,
                       int n, const VEC *acc) {
  const struct qir_conv_shape *s = how->s;
  const size_t lanes = how->to - at;
  const VEC low = SET1(how->bounds.low), high = SET1(how->bounds.high);
  const VEC bias = LOAD(how->bias + at);
  float *to = y + ((oy - how->first) * s->ow + ox) * s->c + at;
  UNROLL for (int r = 0; r < n; ++r) {
    VEC sum = ADD(acc[r], bias);
    if (how->bounds.bounded) sum = MIN(high, MAX(low, sum)); /* of NaN, the second operand */
    STORE_FIRST(to + (size_t)r * s->c, lanes, sum);
  }
}

/* `n` pixels of a line from ox on, of the channels from `at` on, by windows of any shape. */
BODY void run_of(const struct qir_lines *how, float *y, size_t at, size_t oy, size_t ox, int n) {
  const struct qir_conv_shape *s = how->s;
  const size_t c = s->c, lanes = how->to - at;
  const ptrdiff_t left = (ptrdiff_t)(ox * s->sw) - (ptrdiff_t)s->pl;
  const MASK mask = LANES(0, lanes < NR ? lanes : NR);
  const float *weight = how->weight + at;
  VEC acc[8];
  UNROLL for (int r = 0; r < n; ++r) acc[r] = ZERO();
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t down = oy * s->sh + ky * s->dh;
    const int outside = down < s->pt || down - s->pt >= s->h;
    const float *line = how->x + (outside ? 0 : qir_line_place(how, down - s->pt) * s->w * c) + at;
    for (size_t kx = 0; kx < s->kw; ++kx, weight += how->wide) {
      const VEC by = LOAD(weight);
      UNROLL for (int r = 0; r < n; ++r) {
        const size_t x = (size_t)(left + (ptrdiff_t)(kx * s->dw + (size_t)r * s->sw));
        acc[r] = FMA(by, LOAD_LANES(outside || x >= s->w ? nothing : line + x * c, mask), acc[r]);
      }
    }
  }
  store_pixels(how, y, at, oy, ox, n, acc);
}

enum { PAIR = 2, WIDE = NR == 16 ? 8 : 4 /* pixels whose sums and inputs are in registers */ };

/*
 * `n` pixels of two lines by square windows of a size that is known; `inner` if all columns that
 * they see are inside. A vector of the input is loaded once for all pixels of a line that see it;
 * each sum takes its taps in order.
 */
BODY void square_of(const struct qir_lines *how, float *y, size_t at, size_t oy, size_t ox, int n,
                    int inner, int stride, int window) {
  const struct qir_conv_shape *s = how->s;
  const size_t c = s->c, lanes = how->to - at;
  const ptrdiff_t left = (ptrdiff_t)(ox * (size_t)stride) - (ptrdiff_t)s->pl;
  const MASK mask = LANES(0, lanes < NR ? lanes : NR);
  const float *weight = how->weight + at;
  VEC acc[PAIR][WIDE];
  UNROLL for (int r = 0; r < PAIR; ++r) UNROLL for (int p = 0; p < n; ++p) acc[r][p] = ZERO();
  UNROLL for (int i = 0; i < (PAIR - 1) * stride + window; ++i) {
    const size_t down = oy * (size_t)stride + (size_t)i;
    const int outside = down < s->pt || down - s->pt >= s->h;
    const float *line = how->x + (outside ? 0 : qir_line_place(how, down - s->pt) * s->w * c) + at;
    const float *from = outside ? nothing : line + left * (ptrdiff_t)c;
    const size_t step = outside ? 0 : c;
    VEC x[(WIDE - 1) * 2 + LARGEST_WINDOW];
    UNROLL for (int k = 0; k < (n - 1) * stride + window; ++k) {
      const int seen = inner || (size_t)(left + k) < s->w;
      x[k] = LOAD_LANES(seen ? from + (size_t)k * step : nothing, mask);
    }
    UNROLL for (int r = 0; r < PAIR; ++r) {
      const int ky = i - r * stride;
      if (ky < 0 || ky >= window) continue;
      UNROLL for (int kx = 0; kx < window; ++kx) {
        const VEC by = LOAD(weight + (size_t)(ky * window + kx) * how->wide);
        UNROLL for (int p = 0; p < n; ++p) acc[r][p] = FMA(by, x[p * stride + kx], acc[r][p]);
      }
    }
  }
  UNROLL for (int r = 0; r < PAIR; ++r) store_pixels(how, y, at, oy + (size_t)r, ox, n, acc[r]);
}

/* Asks for what the next lines see, and none before, of `n` pixels from ox on. */
BODY void fetch_next(const struct qir_lines *how, size_t oy, size_t ox, size_t n) {
  const struct qir_conv_shape *s = how->s;
  const size_t column = ox * s->sw, width = n * s->sw;
  if (column + width > s->w || how->ring < s->h) return; /* a ring is near */
  for (size_t i = 1; i <= PAIR * s->sh; ++i) {
    const size_t down = oy * s->sh + (s->kh - 1) * s->dh + i - s->pt;
    if (down >= s->h) continue; /* of what is above the image, too */
    const char *line = (const char *)(how->x + (down * s->w + column) * s->c);
    for (size_t at = 0; at < width * s->c * sizeof(float); at += 64) __builtin_prefetch(line + at);
  }
}

/* Some pixels of two lines, of the channels from `at` on. */
typedef void (*pixels_fn)(const struct qir_lines *how, float *y, size_t at, size_t oy, size_t ox);

/* A window of a size that is known: of `wide` pixels, and of 4. */
struct square {
  size_t wide;
  pixels_fn inner, outer, inner4, outer4;
};

#define PIXELS(name, n, inner, stride, window)                                                 \
  static __attribute__((noinline)) void name(const struct qir_lines *how, float *y, size_t at, \
                                             size_t oy, size_t ox) {                           \
    square_of(how, y, at, oy, ox, n, inner, stride, window);                                   \
  }
#define SQUARE(wide, stride, window)                         \
  PIXELS(inner_##stride##x##window, wide, 1, stride, window) \
  PIXELS(outer_##stride##x##window, wide, 0, stride, window)

static void some_pixels(const struct qir_lines *how, float *y, const struct square *by, size_t at,
                        size_t oy, size_t ox, size_t n) {
  const struct qir_conv_shape *s = how->s;
  const int inner = ox * s->sw >= s->pl && (ox + n - 1) * s->sw + s->kw - 1 < s->w + s->pl;
  if (n == by->wide)
    (inner ? by->inner : by->outer)(how, y, at, oy, ox);
  else
    (inner ? by->inner4 : by->outer4)(how, y, at, oy, ox);
}

/* A run of `size` in steps of `wide`, then of 4, whose last may overlap the one before. */
struct stretch {
  size_t at, count;
};
BODY struct stretch stretch_at(size_t size, size_t from, size_t wide, size_t least) {
  const size_t count = size - from < wide ? least : wide;
  return (struct stretch){size - from < count ? size - count : from, count};
}

enum { NEAR = 256 /* pixels of an image in a near cache, for all channels that networks have */ };

/*
 * Images that no near cache holds are taken by columns of some pixels, of which lines follow each
 * other, so that those that two see are still near. Others are taken by channels.
 */
static void square_lines(const struct qir_lines *how, float *y, const struct square *by) {
  const size_t ow = how->s->ow, last = how->first + how->count;
  if (how->s->h * how->s->w <= NEAR) {
    for (size_t at = how->from; at < how->to; at += NR)
      for (size_t i = 0; i < how->count; i += PAIR)
        for (size_t ox = 0; ox < ow;) {
          const struct stretch line = stretch_at(how->count, i, PAIR, PAIR);
          const struct stretch run = stretch_at(ow, ox, by->wide, 4);
          some_pixels(how, y, by, at, how->first + line.at, run.at, run.count);
          ox = run.at + run.count;
        }
    return;
  }
  for (size_t ox = 0; ox < ow;) {
    const struct stretch run = stretch_at(ow, ox, by->wide, 4);
    for (size_t i = 0; i < how->count; i += PAIR) {
      const size_t oy = how->first + stretch_at(how->count, i, PAIR, PAIR).at;
      if (oy + PAIR < last) fetch_next(how, oy, run.at, run.count);
      for (size_t at = how->from; at < how->to; at += NR)
        some_pixels(how, y, by, at, oy, run.at, run.count);
    }
    ox = run.at + run.count;
  }
}

static void plain_lines(const struct qir_lines *how, float *y) {
  const size_t ow = how->s->ow;
  for (size_t oy = how->first; oy < how->first + how->count; ++oy)
    for (size_t ox = 0; ox < ow; ox += ow - ox < 4 ? 1 : 4)
      for (size_t at = how->from; at < how->to; at += NR)
        if (ow - ox < 4)
          run_of(how, y, at, oy, ox, 1);
        else
          run_of(how, y, at, oy, ox, 4);
}

/* Vectors of the input and of sums fill the registers: fewer pixels if the stride is 2. */
#define LINES                                                                                  \
  SQUARE(WIDE, 1, 3)                                                                           \
  SQUARE(WIDE, 1, 5)                                                                           \
  SQUARE(4, 2, 3)                                                                              \
  SQUARE(4, 2, 5)                                                                              \
  PIXELS(inner4_1x3, 4, 1, 1, 3)                                                               \
  PIXELS(outer4_1x3, 4, 0, 1, 3)                                                               \
  PIXELS(inner4_1x5, 4, 1, 1, 5)                                                               \
  PIXELS(outer4_1x5, 4, 0, 1, 5)                                                               \
  static const struct square squares[2][2] = {                                                 \
      {{WIDE, inner_1x3, outer_1x3, inner4_1x3, outer4_1x3},                                   \
       {WIDE, inner_1x5, outer_1x5, inner4_1x5, outer4_1x5}},                                  \
      {{4, inner_2x3, outer_2x3, inner_2x3, outer_2x3},                                        \
       {4, inner_2x5, outer_2x5, inner_2x5, outer_2x5}},                                       \
  };                                                                                           \
  static void any_lines(const struct qir_lines *how, float *y) {                               \
    const struct qir_conv_shape *s = how->s;                                                   \
    const int close = s->kh == s->kw && s->sh == s->sw && s->dh == 1 && s->dw == 1;            \
    if (close && (s->kw == 3 || s->kw == 5) && s->sw <= 2 && s->ow >= 4 && how->count >= PAIR) \
      square_lines(how, y, &squares[s->sw - 1][s->kw == 5]);                                   \
    else                                                                                       \
      plain_lines(how, y);                                                                     \
  }
