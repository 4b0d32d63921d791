#include "resize.h"

#if defined(QIR_X86)
#include <math.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET ",prefer-vector-width=512")

#define QIR_RESIZE_NAME qir_resize_avx512
#include "body.h"

QIR_TARGET_END
#endif
