/* The loops of body.h in float and in double; QIR_ISA_NAME(x) is x with a name's end. */

#define QIR_NAME(op) QIR_ISA_NAME(op##_f32)
#define QIR_REAL float
#define QIR_MATH(function) function##f
#include "body.h"

#define QIR_NAME(op) QIR_ISA_NAME(op##_f64)
#define QIR_REAL double
#define QIR_MATH(function) function
#include "body.h"
