#include <string.h>

#include "codes.h"

#define QIR_INLINE static inline __attribute__((always_inline))

/* Carries bits between codes and bytes: `held` of them in the low end of `word`. */
struct stream {
  uint64_t word;
  int held;
};

static uint64_t mask_of(int bits) { return bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1; }

static uint64_t load(const void *codes, size_t i, int itemsize) {
  switch (itemsize) {
    case 1: return ((const uint8_t *)codes)[i];
    case 2: return ((const uint16_t *)codes)[i];
    case 4: return ((const uint32_t *)codes)[i];
    default: return ((const uint64_t *)codes)[i];
  }
}

static void store(void *codes, size_t i, int itemsize, uint64_t value) {
  switch (itemsize) {
    case 1: ((uint8_t *)codes)[i] = (uint8_t)value; break;
    case 2: ((uint16_t *)codes)[i] = (uint16_t)value; break;
    case 4: ((uint32_t *)codes)[i] = (uint32_t)value; break;
    default: ((uint64_t *)codes)[i] = value;
  }
}

/* The number that the low bits of v are, widened to 64. */
static uint64_t extended(uint64_t v, const struct qir_bits *how) {
  const uint64_t sign = how->is_signed ? (uint64_t)1 << (how->bits - 1) : 0;
  return (v ^ sign) - sign;
}

/* -- any width, code by code ------------------------------------------------------------------- */

/* At most 32 bits, after at most 7. */
static uint8_t *put(struct stream *s, uint8_t *to, uint64_t v, int bits, int high) {
  s->word = high ? s->word << bits | v : s->word | v << s->held;
  s->held += bits;
  while (s->held >= 8) {
    s->held -= 8;
    *to++ = (uint8_t)(high ? s->word >> s->held : s->word);
    if (!high) s->word >>= 8;
  }
  return to;
}

static void pack_any(const struct qir_bits *how, const void *codes, size_t start, size_t n,
                     uint8_t *to) {
  struct stream s = {0, 0};
  for (size_t i = start; i < start + n; ++i) {
    const uint64_t v = load(codes, i, how->itemsize) & mask_of(how->bits);
    if (how->bits <= 32) {
      to = put(&s, to, v, how->bits, how->high);
      continue;
    }
    const int upper = how->bits - 32;
    to = put(&s, to, how->high ? v >> 32 : v & 0xffffffff, how->high ? upper : 32, how->high);
    to = put(&s, to, how->high ? v & 0xffffffff : v >> 32, how->high ? 32 : upper, how->high);
  }
  if (s.held) *to = (uint8_t)(how->high ? s.word << (8 - s.held) : s.word);
}

/* At most 32 bits, with at most 7 held. */
static uint64_t get(struct stream *s, const uint8_t **from, int bits, int high) {
  while (s->held < bits) {
    const uint64_t byte = *(*from)++;
    s->word = high ? s->word << 8 | byte : s->word | byte << s->held;
    s->held += 8;
  }
  s->held -= bits;
  const uint64_t v = (high ? s->word >> s->held : s->word) & mask_of(bits);
  if (!high) s->word >>= bits;
  return v;
}

static void unpack_any(const struct qir_bits *how, const uint8_t *from, void *codes, size_t start,
                       size_t n) {
  struct stream s = {0, 0};
  for (size_t i = start; i < start + n; ++i) {
    uint64_t v;
    if (how->bits <= 32) {
      v = get(&s, &from, how->bits, how->high);
    } else if (how->high) {
      v = get(&s, &from, how->bits - 32, 1) << 32;
      v |= get(&s, &from, 32, 1);
    } else {
      v = get(&s, &from, 32, 0);
      v |= get(&s, &from, how->bits - 32, 0) << 32;
    }
    store(codes, i, how->itemsize, extended(v, how));
  }
}

/* -- up to eight bits, eight codes at once ----------------------------------------------------- */

QIR_INLINE void pack_eights(const uint8_t *restrict codes, size_t groups, uint8_t *restrict to,
                            int bits, int high) {
  const uint64_t mask = (1u << bits) - 1;
  for (size_t g = 0; g < groups; ++g) {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i)
      word |= (codes[g * 8 + (size_t)i] & mask) << (bits * (high ? 7 - i : i));
    for (int b = 0; b < bits; ++b)
      to[g * (size_t)bits + (size_t)b] = (uint8_t)(word >> 8 * (high ? bits - 1 - b : b));
  }
}

QIR_INLINE void unpack_eights(const uint8_t *restrict from, size_t groups, uint8_t *restrict codes,
                              int bits, int high, uint8_t sign) {
  const uint64_t mask = (1u << bits) - 1;
  for (size_t g = 0; g < groups; ++g) {
    uint64_t word = 0;
    for (int b = 0; b < bits; ++b)
      word |= (uint64_t)from[g * (size_t)bits + (size_t)b] << 8 * (high ? bits - 1 - b : b);
    for (int i = 0; i < 8; ++i) {
      const uint64_t v = word >> (bits * (high ? 7 - i : i)) & mask;
      codes[g * 8 + (size_t)i] = (uint8_t)((v ^ sign) - sign);
    }
  }
}

/* Two codes to a byte: what compilers make vectors of. */
QIR_INLINE void pack_nibbles(const uint8_t *restrict codes, size_t bytes, uint8_t *restrict to,
                             int high) {
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t one = codes[2 * i] & 15, other = codes[2 * i + 1] & 15;
    to[i] = (uint8_t)(high ? one << 4 | other : other << 4 | one);
  }
}

QIR_INLINE void unpack_nibbles(const uint8_t *restrict from, size_t bytes, uint8_t *restrict codes,
                               int high, uint8_t sign) {
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t low = from[i] & 15, up = from[i] >> 4;
    codes[2 * i] = (uint8_t)(((high ? up : low) ^ sign) - sign);
    codes[2 * i + 1] = (uint8_t)(((high ? low : up) ^ sign) - sign);
  }
}

/* One body for each width, so that shifts are constants. */
#define QIR_FOR_WIDTH(bits, call)       \
  switch (bits) {                       \
    case 1: call(1); break;             \
    case 2: call(2); break;             \
    case 3: call(3); break;             \
    case 5: call(5); break;             \
    case 6: call(6); break;             \
    case 7: call(7); break;             \
    default: break; /* 4 has its own */ \
  }

static void pack_row(const struct qir_bits *how, const void *codes, size_t start, size_t n,
                     uint8_t *to) {
  size_t done = 0;
  if (how->bits < 8) {
    const uint8_t *from = (const uint8_t *)codes + start;
    const size_t groups = n / 8;
    done = groups * 8;
#define QIR_PACK(bits) \
  how->high ? pack_eights(from, groups, to, bits, 1) : pack_eights(from, groups, to, bits, 0)
    QIR_FOR_WIDTH(how->bits, QIR_PACK)
    if (how->bits == 4) {
      how->high ? pack_nibbles(from, groups * 4, to, 1) : pack_nibbles(from, groups * 4, to, 0);
    }
  } else if (how->bits == 8 * how->itemsize && (how->bits == 8 || !how->high)) {
    const size_t size = (size_t)how->itemsize;
    memcpy(to, (const char *)codes + start * size, n * size);
    return;
  }
  pack_any(how, codes, start + done, n - done, to + done / 8 * (size_t)how->bits);
}

static void unpack_row(const struct qir_bits *how, const uint8_t *from, void *codes, size_t start,
                       size_t n) {
  size_t done = 0;
  if (how->bits < 8) {
    uint8_t *to = (uint8_t *)codes + start;
    const size_t groups = n / 8;
    const uint8_t sign = how->is_signed ? (uint8_t)(1 << (how->bits - 1)) : 0;
    done = groups * 8;
#define QIR_UNPACK(bits)                                     \
  how->high ? unpack_eights(from, groups, to, bits, 1, sign) \
            : unpack_eights(from, groups, to, bits, 0, sign)
    QIR_FOR_WIDTH(how->bits, QIR_UNPACK)
    if (how->bits == 4) {
      how->high ? unpack_nibbles(from, groups * 4, to, 1, sign)
                : unpack_nibbles(from, groups * 4, to, 0, sign);
    }
  } else if (how->bits == 8 * how->itemsize && (how->bits == 8 || !how->high)) {
    const size_t size = (size_t)how->itemsize;
    memcpy((char *)codes + start * size, from, n * size);
    return;
  }
  unpack_any(how, from + done / 8 * (size_t)how->bits, codes, start + done, n - done);
}

/* -- whole arrays ------------------------------------------------------------------------------ */

/* A code lies in its type where nothing is left above its bits, counted from the least code. */
#define QIR_FITS(type)                                                             \
  do {                                                                             \
    const type *v = codes;                                                         \
    const type half = (type)(how->is_signed ? (uint64_t)1 << (how->bits - 1) : 0); \
    const type above = (type)~mask_of(how->bits);                                  \
    type found = 0;                                                                \
    for (size_t i = 0; i < n; ++i) found |= (type)(v[i] + half) & above;           \
    return found == 0;                                                             \
  } while (0)

static int fits(const struct qir_bits *how, const void *codes, size_t n) {
  if (how->bits == 8 * how->itemsize) return 1;
  if (how->itemsize == 1) QIR_FITS(uint8_t);
  if (how->itemsize == 2) QIR_FITS(uint16_t);
  if (how->itemsize == 4) QIR_FITS(uint32_t);
  QIR_FITS(uint64_t);
}

int qir_codes_pack(const struct qir_bits *how, const void *codes, uint8_t *bytes, size_t rows,
                   size_t n, size_t width) {
  const size_t used = (n * (size_t)how->bits + 7) / 8;
  if (!fits(how, codes, rows * n)) return 0;
  for (size_t row = 0; row < rows; ++row) {
    uint8_t *to = bytes + row * width;
    pack_row(how, codes, row * n, n, to);
    memset(to + used, 0, width - used);
  }
  return 1;
}

void qir_codes_unpack(const struct qir_bits *how, const uint8_t *bytes, void *codes, size_t rows,
                      size_t n, size_t width) {
  for (size_t row = 0; row < rows; ++row) unpack_row(how, bytes + row * width, codes, row * n, n);
}

#define QIR_RECODE(type)                                                          \
  do {                                                                            \
    const type *restrict v = codes;                                               \
    type *restrict to = y;                                                        \
    const type sign = (type)(to_signed ? (uint64_t)1 << (how->bits - 1) : 0);     \
    const type mask = (type)mask_of(how->bits);                                   \
    for (size_t i = 0; i < n; ++i) to[i] = (type)(((v[i] & mask) ^ sign) - sign); \
  } while (0)

int qir_codes_recode(const struct qir_bits *how, const void *codes, void *y, size_t n,
                     int to_signed) {
  if (!fits(how, codes, n)) return 0;
  if (how->itemsize == 1) QIR_RECODE(uint8_t);
  if (how->itemsize == 2) QIR_RECODE(uint16_t);
  if (how->itemsize == 4) QIR_RECODE(uint32_t);
  if (how->itemsize == 8) QIR_RECODE(uint64_t);
  return 1;
}
