/*
 * The tiles of a product, for the file that includes this: it defines NR, MAX_ROWS and
 *
 *   accumulate(b, i, m, v, acc)    adds the products of rows i to i + m - 1 to sums
 *
 * Sums of m rows and v vectors stay in registers.
 */

/* Sums before the first product. */
QIR_INLINE void open_sums(const struct qir_gemm_block *b, size_t i, int m, int v,
                          int32x4_t acc[MAX_ROWS][4]) {
  UNROLL for (int j = 0; j < v; ++j) {
    const int32x4_t bias = vld1q_s32(b->bias + j * NR);
    UNROLL for (int r = 0; r < m; ++r) acc[r][j] = bias;
  }
  if (b->shift) {
    UNROLL for (int r = 0; r < m; ++r) {
      const int32x4_t shift = vdupq_n_s32(b->shift[i + (size_t)r]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] =
          vaddq_s32(acc[r][j], b->gain ? vmulq_s32(shift, vld1q_s32(b->gain + j * NR)) : shift);
    }
  }
}

/* Where the results of a tile go: a copy, as a store of bytes may change any field of a block. */
struct target {
  char *y;
  size_t stride, columns; /* in values */
  const float *multiplier, *plus;
};

QIR_INLINE float32x4_t scaled(int32x4_t sum, const struct target *to, int j) {
  return vmulq_f32(vcvtq_f32_s32(sum), vld1q_f32(to->multiplier + j * NR));
}

QIR_INLINE void finish_floats(const struct target *to, int m, int v, int32x4_t acc[MAX_ROWS][4]) {
  UNROLL for (int r = 0; r < m; ++r) {
    float *y = (float *)to->y + (size_t)r * to->stride, row[4 * NR];
    float *at = to->columns == (size_t)(v * NR) ? y : row;
    UNROLL for (int j = 0; j < v; ++j) {
      const float32x4_t real = scaled(acc[r][j], to, j);
      vst1q_f32(at + j * NR, to->plus ? vaddq_f32(real, vld1q_f32(to->plus + j * NR)) : real);
    }
    if (at == row) memcpy(y, row, to->columns * sizeof *y);
  }
}

/* Sixteen bytes are of one row, or of as many as fit. */
QIR_INLINE void finish_codes(const struct target *to, const struct qir_arm_code *code, int m, int v,
                             int32x4_t acc[MAX_ROWS][4]) {
  const int some = v > 2 ? 1 : 4 / v;
  UNROLL for (int r = 0; r < m; r += some) {
    float32x4_t real[4];
    UNROLL for (int i = 0; i < 4; ++i) {
      const int row = r + i / v, column = i % v;
      real[i] = i < some * v && row < m ? scaled(acc[row][column], to, column) : vdupq_n_f32(0);
    }
    const uint8x16_t bytes = qir_arm_encode(real, code);
    uint8_t *y = (uint8_t *)to->y + (size_t)r * to->stride, rows[16];
    if (v == 4) {
      qir_arm_store(y, bytes, to->columns);
      continue;
    }
    vst1q_u8(rows, bytes);
    UNROLL for (int i = 0; i < some; ++i) if (r + i < m) {
      if (to->columns == (size_t)(v * NR))
        memcpy(y + (size_t)i * to->stride, rows + i * v * NR, (size_t)(v * NR));
      else
        memcpy(y + (size_t)i * to->stride, rows + i * v * NR, to->columns);
    }
  }
}

QIR_INLINE void tile(const struct qir_gemm_block *b, size_t i, int m, int v) {
  int32x4_t acc[MAX_ROWS][4];
  open_sums(b, i, m, v, acc);
  accumulate(b, i, m, v, acc);
  const size_t size = b->to_float ? sizeof(float) : 1;
  const struct target to = {(char *)b->y + i * b->y_stride * size, b->y_stride, b->columns,
                            b->multiplier, b->plus};
  if (b->to_float) {
    finish_floats(&to, m, v, acc);
  } else {
    const struct qir_arm_code code = qir_arm_load_code(&b->code);
    finish_codes(&to, &code, m, v, acc);
  }
}

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v)                                                                                 \
  static __attribute__((noinline)) void tile_##m##x##v(const struct qir_gemm_block *b, size_t i) { \
    tile(b, i, m, v);                                                                              \
  }
#define TILES(v, m0, m1)                                       \
  TILE(m0, v)                                                  \
  TILE(m1, v)                                                  \
  TILE(1, v)                                                   \
  static void panel_##v(const struct qir_gemm_block *b) {      \
    size_t i = 0;                                              \
    for (; i + m0 <= b->count; i += m0) tile_##m0##x##v(b, i); \
    for (; i + m1 <= b->count; i += m1) tile_##m1##x##v(b, i); \
    for (; i < b->count; ++i) tile_1x##v(b, i);                \
  }
#define PANELS                                         \
  TILES(1, 8, 4)                                       \
  TILES(2, 8, 4)                                       \
  TILES(3, 6, 2)                                       \
  TILES(4, 4, 2)                                       \
  static void panels(const struct qir_gemm_block *b) { \
    switch (b->width / NR) {                           \
      case 1: panel_1(b); break;                       \
      case 2: panel_2(b); break;                       \
      case 3: panel_3(b); break;                       \
      default: panel_4(b); break;                      \
    }                                                  \
  }
