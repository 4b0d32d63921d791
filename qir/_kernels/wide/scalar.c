#define QIR_NAME(op) qir_wide_##op##_scalar
#define QIR_PART 4
#define QIR_TILE_ROWS 4
#define QIR_PLUS(a, b, sum) ((a) * (b) + (sum))
#include "body.h"
