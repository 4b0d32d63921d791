# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=True
"""Compiled quantize and dequantize; see `codes/codes.h`. Arrays are bytes, without the GIL."""

import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef extern from "isa.h":
    struct qir_isa_name:
        const char *name
        uint32_t bit

    const qir_isa_name *qir_isa_names
    const size_t qir_isa_name_count
    uint32_t qir_isa_detect() nogil


cdef extern from "codes/codes.h":
    struct qir_rows:
        size_t rows, inner, run
        const int64_t *first

    enum qir_round:
        pass

    enum qir_carrier:
        pass

    struct qir_encode:
        const void *minus
        const void *factor
        const void *before
        const int32_t *after
        const int32_t *nan
        int64_t low, high
        qir_round round
        const void *steps
        const int32_t *codes
        size_t count
        int divide, sums, itemsize

    struct qir_fixed:
        const int32_t *multiplier
        const int32_t *left
        const int32_t *right
        const int32_t *zero
        int64_t low, high
        int twice, itemsize

    struct qir_decode:
        const void *table
        const void *zero
        const void *scale
        const void *minus
        const void *plus
        qir_carrier carrier

    struct qir_bits:
        int bits, itemsize, is_signed, high

    int qir_codes_encode(const qir_encode *how, const qir_rows *rows, const void *x, void *codes,
                         int wide, uint32_t isa) nogil
    void qir_codes_fixed(const qir_fixed *how, const qir_rows *rows, const int32_t *acc,
                         void *codes) nogil
    void qir_codes_decode(const qir_decode *how, const qir_rows *rows, const void *codes, void *y,
                          int wide, uint32_t isa) nogil
    void qir_codes_lookup(const void *codes, int itemsize, const void *table, int entry, void *y,
                          size_t n) nogil
    int qir_codes_pack(const qir_bits *how, const void *codes, uint8_t *to, size_t rows,
                       size_t n, size_t width) nogil
    void qir_codes_unpack(const qir_bits *how, const uint8_t *data, void *codes, size_t rows,
                          size_t n, size_t width) nogil
    int qir_codes_recode(const qir_bits *how, const void *codes, void *y, size_t n,
                         int to_signed) nogil


ROUNDS = ("even", "away", "half_up", "half_down", "up", "zero", "floor", "ceil")
CARRIERS = ("u1", "i1", "u2", "i2", "u4", "i4")

cdef uint32_t DETECTED = qir_isa_detect()
cdef dict BITS = {qir_isa_names[i].name.decode(): qir_isa_names[i].bit
                  for i in range(qir_isa_name_count)}
ISAS = tuple(name for name, bit in BITS.items() if bit & DETECTED == bit)


cdef uint32_t allowed(object isa) except? 0xffffffff:
    """The instruction sets from a name on; the environment's where none is given."""
    if isa is None:
        return DEFAULT
    if isa not in BITS:
        raise ValueError(f"isa is {isa!r}; known are {', '.join(ISAS)}")
    cdef uint32_t kept = 0
    cdef list names = list(BITS)
    for other in names[names.index(isa):]:
        kept |= <uint32_t>BITS[other]
    return kept & DETECTED


# QIR_ISA caps what is used; a name that is not in the table caps nothing here.
cdef uint32_t DEFAULT = DETECTED
if os.environ.get("QIR_ISA") in BITS:
    DEFAULT = allowed(os.environ["QIR_ISA"])


cdef const void *start(const uint8_t[::1] view, Py_ssize_t size, str what) except? NULL:
    """The first of `size` bytes; NULL for none at all."""
    if view is None:
        return NULL
    if view.shape[0] != size:
        raise ValueError(f"{what} has {view.shape[0]} bytes, {size} are needed")
    return &view[0] if size else NULL


cdef int place_of(tuple known, str what, value) except -1:
    if value not in known:
        raise ValueError(f"{what} is {value!r}; known are {', '.join(known)}")
    return known.index(value)


# Above any size in memory, and so low that sizes times bytes or bits stay below 2^63.
cdef Py_ssize_t LARGEST = <Py_ssize_t>1 << 56


cdef class Rows:
    """How an array of so many elements is cut into runs that share parameters."""

    cdef qir_rows state
    cdef int64_t *first  # a copy: the array that was checked may change
    cdef readonly Py_ssize_t size, count

    def __cinit__(self, const int64_t[::1] first not None, Py_ssize_t inner, Py_ssize_t run,
                  Py_ssize_t count):
        cdef Py_ssize_t i, blocks, rows = first.shape[0]
        if inner < 1 or run < 1 or not 1 <= count <= LARGEST or rows > LARGEST // inner:
            raise ValueError(f"{rows} rows of {inner} in runs of {run} with {count} parameters")
        self.first = <int64_t *>malloc(<size_t>(rows + 1) * sizeof(int64_t))
        if self.first == NULL:
            raise MemoryError(f"no memory for {rows} rows")
        if rows:
            memcpy(self.first, &first[0], <size_t>rows * sizeof(int64_t))
        blocks = (inner - 1) // run + 1
        for i in range(rows):
            if self.first[i] < 0 or self.first[i] > count - blocks:
                raise ValueError(f"row {i} begins at parameter {self.first[i]} of {count}")
        self.count, self.size = count, rows * inner
        self.state.rows, self.state.inner = <size_t>rows, <size_t>inner
        self.state.run, self.state.first = <size_t>run, self.first

    def __dealloc__(self):
        free(self.first)


def encode(const uint8_t[::1] x not None, uint8_t[::1] codes not None, Rows rows not None, *,
           bint wide, int itemsize, str round, int64_t low, int64_t high,
           const uint8_t[::1] factor, const int32_t[::1] after not None,
           const int32_t[::1] nan not None, const uint8_t[::1] minus=None,
           const uint8_t[::1] before=None, const uint8_t[::1] steps=None,
           const int32_t[::1] table=None, bint divide=False, bint sums=False, isa=None):
    cdef qir_encode how
    cdef uint32_t bits = allowed(isa)
    cdef Py_ssize_t real = 8 if wide else 4, i
    cdef int64_t reach = (<int64_t>1 << 31) if itemsize == 4 else 1 << 17
    cdef int found
    if itemsize not in (1, 2, 4):
        raise ValueError(f"quantized values of {itemsize} bytes; 1, 2 or 4 are supported")
    if not -reach <= low <= high < reach:
        raise ValueError(f"bounds {low} to {high} are not those of {itemsize} bytes")
    if after.shape[0] != rows.count or nan.shape[0] != rows.count:
        raise ValueError(
            f"{after.shape[0]} zeros and {nan.shape[0]} values of NaN for {rows.count} parameters"
        )
    for i in range(rows.count if itemsize < 4 else 0):
        if not -reach <= after[i] < reach:
            raise ValueError(f"zero point {after[i]} is out of reach")
    how.factor = start(factor, rows.count * real, "factor")
    how.minus = start(minus, rows.count * real, "minus")
    how.before = start(before, rows.count * real, "before")
    how.after, how.nan = &after[0], &nan[0]
    how.low, how.high = low, high
    how.steps, how.codes, how.count = NULL, NULL, 0
    if table is not None:
        if not table.shape[0]:
            raise ValueError("an empty lookup table")
        how.count = <size_t>(table.shape[0] - 1)
        how.steps = start(steps, <Py_ssize_t>how.count * real, "steps") if how.count else how.factor
        how.codes = &table[0]
        if steps is None:
            raise ValueError("a table has steps")
    how.round = <qir_round>place_of(ROUNDS, "round", round)
    how.divide, how.sums, how.itemsize = divide, sums, itemsize
    cdef const void *source = start(x, rows.size * (4 if sums else real), "x")
    cdef void *target = <void *>start(codes, rows.size * itemsize, "codes")
    if factor is None:
        raise ValueError("a factor is needed")
    if not rows.size:
        return False
    with nogil:
        found = qir_codes_encode(&how, &rows.state, source, target, wide, bits)
    return found != 0


def fixed(const int32_t[::1] acc not None, uint8_t[::1] codes not None, Rows rows not None, *,
          const int32_t[::1] multiplier not None, const int32_t[::1] left not None,
          const int32_t[::1] right not None, const int32_t[::1] zero not None,
          int itemsize, int64_t low, int64_t high, bint twice):
    cdef qir_fixed how
    cdef Py_ssize_t i, count = rows.count
    if itemsize not in (1, 2, 4):
        raise ValueError(f"quantized values of {itemsize} bytes; 1, 2 or 4 are supported")
    if not (multiplier.shape[0] == left.shape[0] == right.shape[0] == zero.shape[0] == count):
        raise ValueError(f"{multiplier.shape[0]} multipliers for {count} parameters")
    for i in range(count):
        if multiplier[i] < 0 or not (0 <= left[i] < 31 and 0 <= right[i] < 31):
            raise ValueError(f"multiplier {multiplier[i]} shifted by {left[i]} and {right[i]}")
    how.multiplier, how.left, how.right = &multiplier[0], &left[0], &right[0]
    how.zero, how.low, how.high = &zero[0], low, high
    how.twice, how.itemsize = twice, itemsize
    cdef void *target = <void *>start(codes, rows.size * itemsize, "codes")
    if acc.shape[0] != rows.size:
        raise ValueError(f"{acc.shape[0]} sums for {rows.size} quantized values")
    if not rows.size:
        return
    with nogil:
        qir_codes_fixed(&how, &rows.state, &acc[0], target)


def decode(const uint8_t[::1] codes not None, uint8_t[::1] y not None, Rows rows not None, *,
           bint wide, str carrier, const uint8_t[::1] scale,
           const uint8_t[::1] zero=None,
           const uint8_t[::1] minus=None, const uint8_t[::1] plus=None,
           const uint8_t[::1] table=None, isa=None):
    cdef qir_decode how
    cdef uint32_t bits = allowed(isa)
    cdef Py_ssize_t real = 8 if wide else 4
    how.carrier = <qir_carrier>place_of(CARRIERS, "carrier", carrier)
    how.table = start(table, 256 * real, "table")
    how.scale = start(scale, rows.count * real, "scale")
    how.zero = start(zero, rows.count * real, "zero")
    how.minus = start(minus, rows.count * real, "minus")
    how.plus = start(plus, rows.count * real, "plus")
    cdef const void *source = start(codes, rows.size * int(carrier[1]), "codes")
    cdef void *target = <void *>start(y, rows.size * real, "y")
    if scale is None or (table is not None and carrier != "u1"):
        raise ValueError("a scale is needed, and a table is looked up by bytes")
    if not rows.size:
        return
    with nogil:
        qir_codes_decode(&how, &rows.state, source, target, wide, bits)


def lookup(const uint8_t[::1] codes not None, const uint8_t[::1] table not None,
           uint8_t[::1] y not None, *, int itemsize, int entry):
    cdef Py_ssize_t n
    if itemsize not in (1, 2) or entry not in (1, 2, 4, 8):
        raise ValueError(f"no table from {itemsize} to {entry} bytes")
    n = codes.shape[0] // itemsize
    cdef const void *source = start(codes, n * itemsize, "codes")
    cdef const void *of = start(table, (<Py_ssize_t>1 << 8 * itemsize) * entry, "table")
    cdef void *target = <void *>start(y, n * entry, "y")
    if not n:
        return
    with nogil:
        qir_codes_lookup(source, itemsize, of, entry, target, <size_t>n)


cdef qir_bits bits_of(int bits, int itemsize, bint is_signed, bint high) except *:
    cdef qir_bits how
    if itemsize not in (1, 2, 4, 8) or not 1 <= bits <= 8 * itemsize:
        raise ValueError(f"{bits} bits in {itemsize} bytes")
    if bits < 8 and itemsize > 1:
        raise ValueError(f"values of {bits} bits are stored one a byte, not in {itemsize}")
    how.bits, how.itemsize, how.is_signed, how.high = bits, itemsize, is_signed, high
    return how


cdef Py_ssize_t least_width(Py_ssize_t n, int bits) except -1:
    if not 0 <= n <= LARGEST:
        raise ValueError(f"rows of {n} values")
    return (n * bits + 7) // 8


def pack(const uint8_t[::1] codes not None, uint8_t[:, ::1] to not None, Py_ssize_t n, *,
         int bits, int itemsize, bint is_signed, bint high=False):
    cdef qir_bits how = bits_of(bits, itemsize, is_signed, high)
    cdef int fits
    if to.shape[1] < least_width(n, bits):
        raise ValueError(f"rows of {to.shape[1]} bytes, {n} values take {least_width(n, bits)}")
    cdef const void *source = start(codes, to.shape[0] * n * itemsize, "codes")
    if not (to.shape[0] and n):
        to[:] = 0
        return True
    with nogil:
        fits = qir_codes_pack(&how, source, &to[0, 0], <size_t>to.shape[0], <size_t>n,
                              <size_t>to.shape[1])
    return fits != 0


def unpack(const uint8_t[:, ::1] data not None, uint8_t[::1] codes not None, Py_ssize_t n, *,
           int bits, int itemsize, bint is_signed, bint high=False):
    cdef qir_bits how = bits_of(bits, itemsize, is_signed, high)
    if data.shape[1] < least_width(n, bits):
        raise ValueError(f"rows of {data.shape[1]} bytes, {n} values take {least_width(n, bits)}")
    cdef void *target = <void *>start(codes, data.shape[0] * n * itemsize, "codes")
    if not (data.shape[0] and n):
        return
    with nogil:
        qir_codes_unpack(&how, &data[0, 0], target, <size_t>data.shape[0], <size_t>n,
                         <size_t>data.shape[1])


def recode(const uint8_t[::1] codes not None, uint8_t[::1] y not None, *, int bits,
           int itemsize, bint from_signed, bint to_signed):
    cdef qir_bits how = bits_of(bits, itemsize, from_signed, False)
    cdef Py_ssize_t n = codes.shape[0] // itemsize
    cdef const void *source = start(codes, n * itemsize, "codes")
    cdef void *target = <void *>start(y, n * itemsize, "y")
    cdef int fits
    if not n:
        return True
    with nogil:
        fits = qir_codes_recode(&how, source, target, <size_t>n, to_signed)
    return fits != 0
