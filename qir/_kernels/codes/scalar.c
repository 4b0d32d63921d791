#define QIR_ISA_NAME(op) qir_codes_##op##_scalar
#include "both.h"
