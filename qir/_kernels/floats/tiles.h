/*
 * The tiles of a product, for the vectors of the file that includes this: it defines VEC, NR, VECS
 * (of a panel), LOAD, LOAD_FIRST, STORE, STORE_FIRST, ZERO, SET1, FMA, ADD, MAX, MIN, and
 *
 *   MASK, LANES(low, high)            those lanes l of which low <= l < high
 *   LOAD_LANES(from, mask)            the others are zero and not read
 *   LOAD_EVEN(from, mask, mask)       lanes from[0], from[2] ...; masks of both halves of `from`
 *
 * Sums of m rows and v vectors stay in registers; v loads and m broadcasts feed m * v products.
 */

#include <stdint.h>
#include <string.h>

enum { LINE = 16 /* floats */ };

#define UNROLL _Pragma("GCC unroll 16")

/* What follows the sums of a tile. */
static inline __attribute__((always_inline)) void store_any(const struct qir_sgemm_block *b,
                                                            size_t i, int m, int v,
                                                            VEC (*acc)[VECS]) {
  const VEC low = SET1(b->bounds.low), high = SET1(b->bounds.high);
  UNROLL for (int r = 0; r < m; ++r) {
    float *y = b->y + (i + (size_t)r) * b->y_row;
    UNROLL for (int j = 0; j < v; ++j) {
      if (b->columns <= (size_t)j * NR) break;
      const size_t left = b->columns - (size_t)j * NR;
      VEC sum = acc[r][j];
      if (!b->first) sum = ADD(LOAD_FIRST(y + j * NR, left), sum);
      if (b->last) {
        if (b->row_bias) sum = ADD(sum, SET1(b->row_bias[i + (size_t)r]));
        if (b->column_bias) sum = ADD(sum, LOAD_FIRST(b->column_bias + j * NR, left));
        if (b->added) sum = ADD(sum, LOAD_FIRST(b->added + (y - b->y) + j * NR, left));
        if (b->bounds.bounded) sum = MIN(high, MAX(low, sum)); /* of NaN, the second operand */
      }
      STORE_FIRST(y + j * NR, left, sum);
    }
  }
}

/* The same for sums that are complete, of a panel that is full: short sums are soon done. */
static inline __attribute__((always_inline)) void store_whole(const struct qir_sgemm_block *b,
                                                              size_t i, int m, int v,
                                                              VEC (*acc)[VECS]) {
  const VEC low = SET1(b->bounds.low), high = SET1(b->bounds.high);
  const float *added = b->added;
  VEC bias[VECS];
  UNROLL for (int j = 0; j < v; ++j) bias[j] =
      b->column_bias ? LOAD(b->column_bias + j * NR) : SET1(-0.0f); /* which changes no sum */
  UNROLL for (int r = 0; r < m; ++r) {
    const size_t at = (i + (size_t)r) * b->y_row;
    UNROLL for (int j = 0; j < v; ++j) {
      VEC sum = ADD(acc[r][j], bias[j]);
      if (added) sum = ADD(sum, LOAD(added + at + j * NR));
      if (b->bounds.bounded) sum = MIN(high, MAX(low, sum)); /* of NaN, the second operand */
      STORE(b->y + at + j * NR, sum);
    }
  }
}

static inline __attribute__((always_inline)) void tile(const struct qir_sgemm_block *b, size_t i,
                                                       int m, int v, int listed) {
  VEC acc[8][VECS];
  UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) acc[r][j] = ZERO();
  const float *w = b->panel, *rows[8];
  UNROLL for (int r = 0; r < m; ++r) rows[r] =
      listed ? b->rows[i + (size_t)r] : b->a + (i + (size_t)r) * b->a_row;
  const size_t step = b->a_value, runs = step == 1 ? LINE - 1 : ~(size_t)0;
  for (size_t p = 0, at = 0; p < b->depth; ++p, at += step, w += NR * v) {
    VEC right[VECS];
    if (!listed && (p & runs) == 0) /* of the next tile: its rows are short runs far apart */
      UNROLL for (int r = 0; r < m; ++r) __builtin_prefetch(rows[r] + (size_t)m * b->a_row + p);
    const size_t from = listed ? b->offsets[p] : at;
    UNROLL for (int j = 0; j < v; ++j) right[j] = LOAD(w + j * NR);
    UNROLL for (int r = 0; r < m; ++r) {
      const VEC left = SET1(rows[r][from]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = FMA(left, right[j], acc[r][j]);
    }
  }
  if (b->first && b->last && !b->row_bias && b->columns == (size_t)(NR * v))
    store_whole(b, i, m, v, acc);
  else
    store_any(b, i, m, v, acc);
}

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v, how, listed)                                                          \
  static __attribute__((noinline)) void how##_##m##x##v(const struct qir_sgemm_block *b, \
                                                        size_t i) {                      \
    tile(b, i, m, v, listed);                                                            \
  }
#define ROWS_OF(v, m0, m1, m2, how, listed)                     \
  TILE(m0, v, how, listed)                                      \
  TILE(m1, v, how, listed)                                      \
  TILE(m2, v, how, listed)                                      \
  TILE(1, v, how, listed)                                       \
  static void how##_##v(const struct qir_sgemm_block *b) {      \
    size_t i = 0;                                               \
    for (; i + m0 <= b->count; i += m0) how##_##m0##x##v(b, i); \
    for (; i + m1 <= b->count; i += m1) how##_##m1##x##v(b, i); \
    for (; i + m2 <= b->count; i += m2) how##_##m2##x##v(b, i); \
    for (; i < b->count; ++i) how##_1x##v(b, i);                \
  }
#define TILES(v, m0, m1, m2)                               \
  ROWS_OF(v, m0, m1, m2, plain, 0)                         \
  ROWS_OF(v, m0, m1, m2, listed, 1)                        \
  static void panel_##v(const struct qir_sgemm_block *b) { \
    if (b->rows)                                           \
      listed_##v(b);                                       \
    else                                                   \
      plain_##v(b);                                        \
  }

#define BODY static inline __attribute__((always_inline))

/* The lanes l of which 0 <= start + l < size. */
BODY MASK within(ptrdiff_t start, ptrdiff_t size) {
  const ptrdiff_t low = start < 0 ? -start : 0, high = size - start;
  return LANES(low > NR ? NR : low, high < 0 ? 0 : high > NR ? NR : high);
}

/* Which elements of a line of `size` are read for lanes start, start + stride ... */
struct reach {
  MASK low, high; /* of the first vector of elements, and of the second if stride is 2 */
};

BODY struct reach reach_of(ptrdiff_t start, ptrdiff_t size, size_t stride) {
  struct reach r = {within(start, size), within(start, size)};
  if (stride == 2) r.high = within(start + NR, size);
  return r;
}

/* The elements start + l * stride of a line, zeros outside of it; stride 0 stands for any other. */
BODY VEC seen(const float *line, ptrdiff_t start, ptrdiff_t size, size_t stride, size_t any,
              struct reach reach) {
  if (stride == 1) return LOAD_LANES(line + start, reach.low);
  if (stride == 2) return LOAD_EVEN(line + start, reach.low, reach.high);
  float lanes[NR];
  for (int l = 0; l < NR; ++l, start += (ptrdiff_t)any)
    lanes[l] = start < 0 || start >= size ? 0 : line[start];
  return LOAD(lanes);
}

BODY void unfold(const struct qir_unfold *how, float *panel, size_t stride) {
  const struct qir_conv_shape *s = how->s;
  const size_t taps = s->kh * s->kw, first = how->j / s->ow;
  const ptrdiff_t size = (ptrdiff_t)s->w;
  const float *plane = how->x + how->p / taps * s->h * s->w;
  size_t ky = how->p % taps / s->kw, kx = how->p % s->kw;
  for (size_t p = 0; p < how->depth; ++p, panel += how->width) {
    size_t ox = how->j % s->ow, y = first * s->sh + ky * s->dh;
    for (size_t done = 0; done < how->columns; ox = 0, y += s->sh) {
      const size_t left = how->columns - done, count = s->ow - ox < left ? s->ow - ox : left;
      if (y < s->pt || y - s->pt >= s->h) {
        for (size_t i = 0; i < count; i += NR) STORE(panel + done + i, ZERO());
      } else {
        const float *line = plane + (y - s->pt) * s->w;
        ptrdiff_t start = (ptrdiff_t)(ox * s->sw + kx * s->dw) - (ptrdiff_t)s->pl;
        for (size_t i = 0; i < count; i += NR, start += (ptrdiff_t)(NR * s->sw))
          STORE(panel + done + i,
                seen(line, start, size, stride, s->sw, reach_of(start, size, stride)));
      }
      done += count;
    }
    if (++kx < s->kw) continue;
    kx = 0;
    if (++ky < s->kh) continue;
    ky = 0;
    plane += s->h * s->w;
  }
}

/* Windows of one element next to each other: rows of a matrix. */
BODY void copy_rows(const struct qir_unfold *how, float *panel) {
  enum { AHEAD = 8 };
  const size_t step = how->s->h * how->s->w, whole = how->columns / NR * NR;
  const float *row = how->x + how->p * step + how->j;
  for (size_t p = 0; p < how->depth; ++p, row += step, panel += how->width) {
    for (size_t i = 0; i < how->columns; i += LINE)
      __builtin_prefetch((const void *)((uintptr_t)row + (i + AHEAD * step) * sizeof(float)));
    for (size_t i = 0; i < whole; i += NR) STORE(panel + i, LOAD(row + i));
    if (whole < how->columns) STORE(panel + whole, LOAD_FIRST(row + whole, how->columns - whole));
  }
}

BODY void any_unfold(const struct qir_unfold *how, float *panel) {
  const struct qir_conv_shape *s = how->s;
  if (qir_conv_plain(s))
    copy_rows(how, panel);
  else if (s->sw == 1)
    unfold(how, panel, 1);
  else if (s->sw == 2)
    unfold(how, panel, 2);
  else
    unfold(how, panel, 0);
}

BODY void finish(const struct qir_plane *how, VEC sum, float *y, size_t count) {
  sum = ADD(sum, SET1(how->bias));
  if (how->bounds.bounded) /* of NaN, the second operand */
    sum = MIN(SET1(how->bounds.high), MAX(SET1(how->bounds.low), sum));
  STORE_FIRST(y, count, sum);
}

/* A vector of one line of the output, by windows of any shape. */
BODY void any_window(const struct qir_plane *how, float *y, size_t oy, size_t ox, size_t stride) {
  const struct qir_conv_shape *s = how->s;
  const ptrdiff_t size = (ptrdiff_t)s->w;
  const float *weight = how->weight;
  VEC sum = ZERO();
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t at = oy * s->sh + ky * s->dh;
    const int outside = at < s->pt || at - s->pt >= s->h;
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const ptrdiff_t start = (ptrdiff_t)(ox * s->sw + kx * s->dw) - (ptrdiff_t)s->pl;
      const VEC x = outside ? ZERO()
                            : seen(how->x + (at - s->pt) * s->w, start, size, stride, s->sw,
                                   reach_of(start, size, stride));
      sum = FMA(SET1(*weight++), x, sum);
    }
  }
  finish(how, sum, y + oy * s->ow + ox, s->ow - ox);
}

enum { ROWS = 4, LARGEST_WINDOW = 5 };

/* `v` vectors of all lines, ROWS of them at a time, by square windows of a size that is known. A
 * line of the input is read once for all that see it; each sum takes its taps in order. */
BODY void strip(const struct qir_plane *how, float *y, size_t ox, int v, int stride, int window) {
  const struct qir_conv_shape *s = how->s;
  const ptrdiff_t size = (ptrdiff_t)s->w, begin = (ptrdiff_t)(ox * s->sw) - (ptrdiff_t)s->pl;
  struct reach reach[2][LARGEST_WINDOW];
  UNROLL for (int j = 0; j < v; ++j) UNROLL for (int kx = 0; kx < window; ++kx) reach[j][kx] =
      reach_of(begin + j * NR * stride + kx, size, (size_t)stride);
  for (size_t oy = 0; oy < s->oh; oy += ROWS) {
    const size_t at = oy + ROWS > s->oh ? s->oh - ROWS : oy; /* the last may be done again */
    VEC acc[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < v; ++j) acc[r][j] = ZERO();
    UNROLL for (int i = 0; i < (ROWS - 1) * stride + window; ++i) {
      const size_t down = at * s->sh + (size_t)i;
      VEC x[2][LARGEST_WINDOW];
      if (down < s->pt || down - s->pt >= s->h) {
        UNROLL for (int j = 0; j < v; ++j) UNROLL for (int kx = 0; kx < window; ++kx) x[j][kx] =
            ZERO();
      } else {
        const float *line = how->x + (down - s->pt) * s->w;
        UNROLL for (int j = 0; j < v; ++j) UNROLL for (int kx = 0; kx < window; ++kx) x[j][kx] =
            seen(line, begin + j * NR * stride + kx, size, (size_t)stride, 0, reach[j][kx]);
      }
      UNROLL for (int r = 0; r < ROWS; ++r) {
        const int ky = i - r * stride;
        if (ky < 0 || ky >= window) continue;
        UNROLL for (int kx = 0; kx < window; ++kx) {
          const VEC by = SET1(how->weight[ky * window + kx]);
          UNROLL for (int j = 0; j < v; ++j) acc[r][j] = FMA(by, x[j][kx], acc[r][j]);
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < v; ++j) {
      const size_t across = ox + (size_t)(j * NR);
      if (across < s->ow)
        finish(how, acc[r][j], y + (at + (size_t)r) * s->ow + across, s->ow - across);
    }
  }
}

#define PLANE(name, one)                                                              \
  static void plane_##name(const struct qir_plane *how, float *y) {                   \
    for (size_t oy = 0; oy < how->s->oh; ++oy)                                        \
      for (size_t ox = 0; ox < how->s->ow; ox += NR) any_window(how, y, oy, ox, one); \
  }
#define STRIPS(stride, window)                                                       \
  static void strips_##stride##x##window(const struct qir_plane *how, float *y) {    \
    size_t ox = 0;                                                                   \
    for (; ox + NR < how->s->ow; ox += 2 * NR) strip(how, y, ox, 2, stride, window); \
    if (ox < how->s->ow) strip(how, y, ox, 1, stride, window);                       \
  }

#define PLANES                                                                         \
  PLANE(1, 1)                                                                          \
  PLANE(2, 2)                                                                          \
  PLANE(any, 0)                                                                        \
  STRIPS(1, 3)                                                                         \
  STRIPS(1, 5)                                                                         \
  STRIPS(2, 3)                                                                         \
  STRIPS(2, 5)                                                                         \
  static void any_plane(const struct qir_plane *how, float *y) {                       \
    const struct qir_conv_shape *s = how->s;                                           \
    const size_t stride = s->sw, window = s->kw;                                       \
    const int square = s->sh == stride && s->kh == window && s->dh == 1 && s->dw == 1; \
    if (square && s->oh >= ROWS && window == 3 && stride == 1)                         \
      strips_1x3(how, y);                                                              \
    else if (square && s->oh >= ROWS && window == 3 && stride == 2)                    \
      strips_2x3(how, y);                                                              \
    else if (square && s->oh >= ROWS && window == 5 && stride == 1)                    \
      strips_1x5(how, y);                                                              \
    else if (square && s->oh >= ROWS && window == 5 && stride == 2)                    \
      strips_2x5(how, y);                                                              \
    else if (stride == 1)                                                              \
      plane_1(how, y);                                                                 \
    else if (stride == 2)                                                              \
      plane_2(how, y);                                                                 \
    else                                                                               \
      plane_any(how, y);                                                               \
  }
