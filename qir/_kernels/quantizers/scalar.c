#define QIR_QUANTIZER_NAME qir_quantizer_scalar
#define QIR_RANGE_NAME qir_quantizer_range_scalar
#include "body.h"
