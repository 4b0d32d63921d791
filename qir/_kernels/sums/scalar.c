#include "sums.h"

#define QIR_SUMS_NAME qir_sums_scalar
#include "body.h"
