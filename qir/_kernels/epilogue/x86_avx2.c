#include "epilogue.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_EPILOGUE_NAME qir_epilogue_avx2
#include "body.h"

QIR_TARGET_END
#endif
