#include "gemm.h"

#if defined(QIR_X86)
#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

/* Operands are 16-bit: VPMADDUBSW on bytes would saturate the sum of two products. */
enum { KR = 2 };
#define DOT(sum, left, right) (sum = _mm256_add_epi32(sum, _mm256_madd_epi16(left, right)))
#define QIR_NAME qir_gemm_avx2
#include "x86_256.h"

QIR_TARGET_END
#endif
