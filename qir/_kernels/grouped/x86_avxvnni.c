#include "grouped.h"

#if defined(QIR_X86)
#include "x86_avxvnni.h"

QIR_TARGET_BEGIN(QIR_AVXVNNI_TARGET)

#define DOT QIR_DPBUSD_VEX
#define QIR_NAME qir_grouped_avxvnni
#define QIR_COPY qir_grouped_avxvnni_copy
#include "x86_256_bytes.h"

QIR_TARGET_END
#endif
