#include "codes.h"

static const struct {
  uint32_t isa;
  qir_encode_function encode[2];
  qir_decode_function decode[2];
} table[] = {
#if defined(QIR_X86)
    {QIR_ISA_AVX512,
     {qir_codes_encode_f32_avx512, qir_codes_encode_f64_avx512},
     {qir_codes_decode_f32_avx512, qir_codes_decode_f64_avx512}},
    {QIR_ISA_AVX2,
     {qir_codes_encode_f32_avx2, qir_codes_encode_f64_avx2},
     {qir_codes_decode_f32_avx2, qir_codes_decode_f64_avx2}},
#endif
    {QIR_ISA_SCALAR,
     {qir_codes_encode_f32_scalar, qir_codes_encode_f64_scalar},
     {qir_codes_decode_f32_scalar, qir_codes_decode_f64_scalar}},
};

/* Calls a step for each chunk of each run: its place, its length and its first parameter. */
static void each(const struct qir_rows *rows,
                 void (*step)(void *job, size_t at, size_t n, size_t parameter, int many),
                 void *job) {
  const int many = rows->run == 1;
  const size_t stride = many ? rows->inner : rows->run;
  for (size_t row = 0; row < rows->rows; ++row) {
    const size_t start = row * rows->inner, first = (size_t)rows->first[row];
    for (size_t run = 0; run < rows->inner; run += stride) {
      const size_t rest = rows->inner - run, end = run + (rest < stride ? rest : stride);
      for (size_t i = run; i < end; i += QIR_CHUNK) {
        const size_t n = end - i < QIR_CHUNK ? end - i : QIR_CHUNK;
        step(job, start + i, n, first + i / rows->run, many);
      }
    }
  }
}

struct encoding {
  const struct qir_encode *how;
  qir_encode_function encode;
  const char *x;
  char *codes;
  size_t size;
  int found;
};

static void encode_chunk(void *job, size_t at, size_t n, size_t parameter, int many) {
  struct encoding *e = job;
  char *codes = e->codes + at * (size_t)e->how->itemsize;
  e->found |= e->encode(e->how, e->x + at * e->size, codes, n, parameter, many);
}

int qir_codes_encode(const struct qir_encode *how, const struct qir_rows *rows, const void *x,
                     void *codes, int wide, uint32_t isa) {
  const qir_encode_function encode = QIR_SELECT(table, isa)->encode[wide != 0];
  struct encoding job = {how, encode, x, codes, how->sums || !wide ? 4 : 8, 0};
  each(rows, encode_chunk, &job);
  return job.found;
}

/* gemmlowp's rounding, doubling high half of a product; C divides towards zero. */
static int64_t high_half(int32_t a, int32_t b) {
  const int64_t product = (int64_t)a * b;
  const int64_t high = (product + (product >= 0 ? 1 << 30 : 1 - (1 << 30))) / ((int64_t)1 << 31);
  return high < INT32_MAX ? high : INT32_MAX;
}

/* A sum times multiplier * 2^(left - right - 31): halves up, then away from zero; or once, up. */
static int64_t fixed(int32_t sum, int32_t multiplier, int left, int right, int twice) {
  if (!twice) {
    const int shift = 31 - left + right;
    return ((int64_t)sum * multiplier + ((int64_t)1 << (shift - 1))) >> shift;
  }
  const int32_t shifted = (int32_t)(uint32_t)((uint64_t)(int64_t)sum << left);
  const int64_t x = high_half(shifted, multiplier), mask = ((int64_t)1 << right) - 1;
  return (x >> right) + ((x & mask) > (mask >> 1) + (x < 0));
}

struct fixing {
  const struct qir_fixed *how;
  const int32_t *acc;
  char *codes;
};

static void fix_chunk(void *job, size_t at, size_t n, size_t parameter, int many) {
  const struct fixing *f = job;
  const struct qir_fixed *how = f->how;
  for (size_t i = 0; i < n; ++i) {
    const size_t p = parameter + (many ? i : 0);
    const int64_t whole =
        fixed(f->acc[at + i], how->multiplier[p], how->left[p], how->right[p], how->twice) +
        how->zero[p];
    const int64_t above = whole > how->low ? whole : how->low;
    const int64_t code = above < how->high ? above : how->high;
    if (how->itemsize == 1)
      ((uint8_t *)f->codes)[at + i] = (uint8_t)code;
    else if (how->itemsize == 2)
      ((uint16_t *)f->codes)[at + i] = (uint16_t)code;
    else
      ((uint32_t *)f->codes)[at + i] = (uint32_t)code;
  }
}

void qir_codes_fixed(const struct qir_fixed *how, const struct qir_rows *rows, const int32_t *acc,
                     void *codes) {
  struct fixing job = {how, acc, codes};
  each(rows, fix_chunk, &job);
}

struct decoding {
  const struct qir_decode *how;
  qir_decode_function decode;
  const char *codes;
  char *y;
  size_t itemsize, size;
};

static void decode_chunk(void *job, size_t at, size_t n, size_t parameter, int many) {
  const struct decoding *d = job;
  d->decode(d->how, d->codes + at * d->itemsize, d->y + at * d->size, n, parameter, many);
}

void qir_codes_decode(const struct qir_decode *how, const struct qir_rows *rows, const void *codes,
                      void *y, int wide, uint32_t isa) {
  const qir_decode_function decode = QIR_SELECT(table, isa)->decode[wide != 0];
  const size_t itemsize = (size_t)1 << ((int)how->carrier / 2); /* in the order of qir_carrier */
  struct decoding job = {how, decode, codes, y, itemsize, wide ? 8 : 4};
  each(rows, decode_chunk, &job);
}

#define QIR_LOOKUP(code_type, entry_type)               \
  do {                                                  \
    const code_type *restrict from = codes;             \
    const entry_type *restrict of = table_;             \
    entry_type *restrict to = y;                        \
    for (size_t i = 0; i < n; ++i) to[i] = of[from[i]]; \
  } while (0)

void qir_codes_lookup(const void *codes, int itemsize, const void *table_, int entry, void *y,
                      size_t n) {
  if (itemsize == 1) {
    if (entry == 1) QIR_LOOKUP(uint8_t, uint8_t);
    if (entry == 2) QIR_LOOKUP(uint8_t, uint16_t);
    if (entry == 4) QIR_LOOKUP(uint8_t, uint32_t);
    if (entry == 8) QIR_LOOKUP(uint8_t, uint64_t);
  } else {
    if (entry == 1) QIR_LOOKUP(uint16_t, uint8_t);
    if (entry == 2) QIR_LOOKUP(uint16_t, uint16_t);
    if (entry == 4) QIR_LOOKUP(uint16_t, uint32_t);
    if (entry == 8) QIR_LOOKUP(uint16_t, uint64_t);
  }
}
