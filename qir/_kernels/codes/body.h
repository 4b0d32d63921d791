/*
 * The loops of codes.h for one type and one set of instructions, as steps over a chunk that stays
 * in the nearest cache; QIR_REAL is the type, QIR_MATH(rint) its function, QIR_NAME(encode) a name.
 */

#include <math.h>

#include "codes.h"

#if defined(QIR_FAULT_TAIL_CODES) /* never in a build to use, as in gemm.c */
#define QIR_TAIL(n) ((n) % 16 ? (n) - 1 : (n))
#else
#define QIR_TAIL(n) (n)
#endif

static inline void QIR_NAME(scaled)(const struct qir_encode *how, const QIR_REAL *restrict x,
                                    QIR_REAL *restrict t, size_t n, size_t at, int many) {
  const QIR_REAL *factor = (const QIR_REAL *)how->factor + at;
  const QIR_REAL one = *factor;
  if (how->divide) {
    if (many)
      for (size_t i = 0; i < n; ++i) t[i] = x[i] / factor[i];
    else
      for (size_t i = 0; i < n; ++i) t[i] = x[i] / one;
  } else {
    if (many)
      for (size_t i = 0; i < n; ++i) t[i] = x[i] * factor[i];
    else
      for (size_t i = 0; i < n; ++i) t[i] = x[i] * one;
  }
  if (!how->before) return;
  const QIR_REAL *before = (const QIR_REAL *)how->before + at;
  for (size_t i = 0; i < n; ++i) t[i] += before[many ? i : 0];
}

/* Cutting towards zero leaves a rest that is exact. */
static inline void QIR_NAME(rounded)(enum qir_round round, QIR_REAL *t, size_t n) {
  const QIR_REAL half = (QIR_REAL)0.5;
  switch (round) {
    case QIR_ROUND_EVEN:
      for (size_t i = 0; i < n; ++i) t[i] = QIR_MATH(rint)(t[i]);
      break;
    case QIR_ROUND_AWAY:
      for (size_t i = 0; i < n; ++i) {
        const QIR_REAL whole = QIR_MATH(trunc)(t[i]), rest = t[i] - whole;
        t[i] = whole + (rest >= half ? 1 : 0) - (rest <= -half ? 1 : 0);
      }
      break;
    case QIR_ROUND_HALF_UP:
      for (size_t i = 0; i < n; ++i) {
        const QIR_REAL whole = QIR_MATH(trunc)(t[i]), rest = t[i] - whole;
        t[i] = whole + (rest >= half ? 1 : 0) - (rest < -half ? 1 : 0);
      }
      break;
    case QIR_ROUND_HALF_DOWN:
      for (size_t i = 0; i < n; ++i) {
        const QIR_REAL whole = QIR_MATH(trunc)(t[i]), rest = t[i] - whole;
        t[i] = whole + (rest > half ? 1 : 0) - (rest <= -half ? 1 : 0);
      }
      break;
    case QIR_ROUND_UP:
      for (size_t i = 0; i < n; ++i) {
        const QIR_REAL below = QIR_MATH(floor)(t[i]), above = QIR_MATH(ceil)(t[i]);
        t[i] = t[i] < 0 ? below : above;
      }
      break;
    case QIR_ROUND_ZERO:
      for (size_t i = 0; i < n; ++i) t[i] = QIR_MATH(trunc)(t[i]);
      break;
    case QIR_ROUND_FLOOR:
      for (size_t i = 0; i < n; ++i) t[i] = QIR_MATH(floor)(t[i]);
      break;
    case QIR_ROUND_CEIL:
      for (size_t i = 0; i < n; ++i) t[i] = QIR_MATH(ceil)(t[i]);
      break;
  }
}

/* Bounds and zero points are below 2^17: whole numbers of either type. A NaN becomes the low end.
 */
static inline void QIR_NAME(narrow)(const struct qir_encode *how, const QIR_REAL *restrict t,
                                    int32_t *restrict q, size_t n, size_t at, int many) {
  const int32_t *after = how->after + at;
  const int32_t low = (int32_t)how->low, high = (int32_t)how->high;
  if (many) {
    for (size_t i = 0; i < n; ++i) {
      const QIR_REAL least = (QIR_REAL)(low - after[i]), most = (QIR_REAL)(high - after[i]);
      const QIR_REAL above = t[i] > least ? t[i] : least;
      q[i] = (int32_t)(above < most ? above : most) + after[i];
    }
    return;
  }
  const int32_t zero = *after;
  const QIR_REAL least = (QIR_REAL)(low - zero), most = (QIR_REAL)(high - zero);
  for (size_t i = 0; i < n; ++i) {
    const QIR_REAL above = t[i] > least ? t[i] : least;
    q[i] = (int32_t)(above < most ? above : most) + zero;
  }
}

static inline void QIR_NAME(full)(const struct qir_encode *how, const QIR_REAL *restrict t,
                                  int32_t *restrict q, size_t n, size_t at, int many) {
  const int32_t *after = how->after + at;
  const double least = (double)how->low, most = (double)how->high;
  for (size_t i = 0; i < n; ++i) {
    const double whole = (double)t[i] + after[many ? i : 0];
    const double above = whole > least ? whole : least;
    q[i] = (int32_t)(above < most ? above : most);
  }
}

static inline void QIR_NAME(nearest)(const struct qir_encode *how, const QIR_REAL *restrict t,
                                     int32_t *restrict q, size_t n) {
  const QIR_REAL *steps = how->steps;
  for (size_t i = 0; i < n; ++i) q[i] = 0;
  for (size_t k = 0; k < how->count; ++k) {
    const QIR_REAL step = steps[k];
    for (size_t i = 0; i < n; ++i) q[i] += t[i] >= step;
  }
  for (size_t i = 0; i < n; ++i) q[i] = how->codes[q[i]];
}

static inline int QIR_NAME(nans)(const struct qir_encode *how, const QIR_REAL *restrict t,
                                 int32_t *restrict q, size_t n, size_t at, int many) {
  int found = 0;
  for (size_t i = 0; i < n; ++i) found |= t[i] != t[i];
  if (found) {
    for (size_t i = 0; i < n; ++i) {
      if (t[i] != t[i]) q[i] = how->nan[at + (many ? i : 0)];
    }
  }
  return found;
}

static inline void QIR_NAME(put)(const int32_t *restrict q, void *restrict codes, size_t n,
                                 int itemsize) {
  n = QIR_TAIL(n);
  if (itemsize == 1) {
    uint8_t *restrict y = codes;
    for (size_t i = 0; i < n; ++i) y[i] = (uint8_t)q[i];
  } else if (itemsize == 2) {
    uint16_t *restrict y = codes;
    for (size_t i = 0; i < n; ++i) y[i] = (uint16_t)q[i];
  } else {
    int32_t *restrict y = codes;
    for (size_t i = 0; i < n; ++i) y[i] = q[i];
  }
}

int QIR_NAME(encode)(const struct qir_encode *how, const void *x, void *codes, size_t n, size_t at,
                     int many) {
  QIR_REAL first[QIR_CHUNK], t[QIR_CHUNK];
  int32_t q[QIR_CHUNK];
  const QIR_REAL *from = x;
  if (how->sums) {
    const int32_t *sums = x;
    for (size_t i = 0; i < n; ++i) first[i] = (QIR_REAL)sums[i];
    from = first;
  } else if (how->minus) {
    const QIR_REAL *minus = (const QIR_REAL *)how->minus + at;
    for (size_t i = 0; i < n; ++i) first[i] = from[i] - minus[many ? i : 0];
    from = first;
  }
  QIR_NAME(scaled)(how, from, t, n, at, many);
  if (!how->steps) QIR_NAME(rounded)(how->round, t, n);
  if (how->steps)
    QIR_NAME(nearest)(how, t, q, n);
  else if (how->itemsize == 4)
    QIR_NAME(full)(how, t, q, n, at, many);
  else
    QIR_NAME(narrow)(how, t, q, n, at, many);
  const int found = QIR_NAME(nans)(how, t, q, n, at, many);
  QIR_NAME(put)(q, codes, n, how->itemsize);
  return found;
}

static inline void QIR_NAME(take)(enum qir_carrier carrier, const void *restrict codes,
                                  QIR_REAL *restrict t, size_t n) {
  switch (carrier) {
    case QIR_U8:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const uint8_t *)codes)[i];
      break;
    case QIR_I8:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const int8_t *)codes)[i];
      break;
    case QIR_U16:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const uint16_t *)codes)[i];
      break;
    case QIR_I16:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const int16_t *)codes)[i];
      break;
    case QIR_U32:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const uint32_t *)codes)[i];
      break;
    case QIR_I32:
      for (size_t i = 0; i < n; ++i) t[i] = (QIR_REAL)((const int32_t *)codes)[i];
      break;
  }
}

void QIR_NAME(decode)(const struct qir_decode *how, const void *codes, void *out, size_t n,
                      size_t at, int many) {
  QIR_REAL t[QIR_CHUNK];
  QIR_REAL *restrict y = out;
  n = QIR_TAIL(n);
  if (how->table) {
    const QIR_REAL *table = how->table;
    for (size_t i = 0; i < n; ++i) t[i] = table[((const uint8_t *)codes)[i]];
  } else {
    QIR_NAME(take)(how->carrier, codes, t, n);
  }
  if (how->zero) {
    const QIR_REAL *zero = (const QIR_REAL *)how->zero + at;
    for (size_t i = 0; i < n; ++i) t[i] -= zero[many ? i : 0];
  }
  const QIR_REAL *scale = (const QIR_REAL *)how->scale + at;
  if (many)
    for (size_t i = 0; i < n; ++i) y[i] = t[i] * scale[i];
  else
    for (size_t i = 0; i < n; ++i) y[i] = t[i] * *scale;
  if (how->minus) {
    const QIR_REAL *minus = (const QIR_REAL *)how->minus + at;
    for (size_t i = 0; i < n; ++i) y[i] -= minus[many ? i : 0];
  }
  if (how->plus) {
    const QIR_REAL *plus = (const QIR_REAL *)how->plus + at;
    for (size_t i = 0; i < n; ++i) y[i] += plus[many ? i : 0];
  }
}

#undef QIR_TAIL
#undef QIR_NAME
#undef QIR_REAL
#undef QIR_MATH
