#include "quantizers.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_QUANTIZER_NAME qir_quantizer_avx2
#define QIR_RANGE_NAME qir_quantizer_range_avx2
#include "body.h"

QIR_TARGET_END
#endif
