#include "wide.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_NAME(op) qir_wide_##op##_avx2
#define QIR_PART 8
#define QIR_TILE_ROWS 4
#define QIR_PLUS(a, b, sum) fma(a, b, sum)
#include "body.h"

QIR_TARGET_END
#endif
