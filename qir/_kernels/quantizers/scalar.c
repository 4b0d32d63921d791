#define QIR_QUANTIZER_NAME qir_quantizer_scalar
#include "body.h"
