#include "elementwise.h"

#if defined(QIR_ARM64)
#include <math.h>

#include "arm_vectors.h"

#define QIR_NAME(op) qir_elementwise_##op##_neon
#define QIR_OWN_LOOKUP
#include "body.h"

/* The table is four groups of four registers, each of which TBX reads where the index is in it. */
QIR_INLINE uint8x16_t looked_up(const uint8x16x4_t table[4], uint8x16_t at) {
  const uint8x16_t group = vdupq_n_u8(64);
  uint8x16_t y = vqtbl4q_u8(table[0], at);
  UNROLL for (int i = 1; i < 4; ++i) {
    at = vsubq_u8(at, group);
    y = vqtbx4q_u8(y, table[i], at);
  }
  return y;
}

void qir_elementwise_lookup_neon(const uint8_t *table, const uint8_t *x, uint8_t *y, size_t n) {
  uint8x16x4_t groups[4];
  UNROLL for (int i = 0; i < 4; ++i) groups[i] = vld1q_u8_x4(table + 64 * i);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) vst1q_u8(y + i, looked_up(groups, vld1q_u8(x + i)));
  for (; i < n; ++i) y[i] = table[x[i]];
}
#endif
