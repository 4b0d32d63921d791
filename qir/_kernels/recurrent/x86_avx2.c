#include "recurrent.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_NAME(op) qir_recurrent_##op##_avx2
#include "body.h"

QIR_TARGET_END
#endif
