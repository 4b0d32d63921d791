# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=True
"""The compiled door of calibration statistics; see `statistics/tally.h`."""

import os
import threading

import numpy as np

from libc.float cimport FLT_MAX
from libc.math cimport frexp
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "statistics/tally.h":
    enum: QIR_TALLY_BINS

    struct qir_tally:
        uint64_t finite, nan, above, below, zeros
        float low, high
        int32_t exponent, first, used
        uint64_t bins[2048]

    struct qir_batch:
        float low, high
        double sum, squares

    struct qir_channels:
        float *lows
        float *highs
        double *sums
        size_t count, inner

    int qir_tally_isa_best() nogil
    void qir_tally_clear(qir_tally *tally) nogil
    void qir_tally_add(qir_tally *tally, const float *x, size_t n, const qir_channels *channels,
                       int isa, qir_batch *batch) nogil
    void qir_tally_merge(qir_tally *tally, const qir_tally *other) nogil
    void qir_tally_window(qir_tally *tally, float low, float high) nogil


# Sums are integers of SUM_WORDS words of 32 bits, the lowest first, in units of 2**-SUM_BITS:
# float64 sums of as many float32 as there may be fit, so that adding them is exact.
cdef enum:
    WORDS = 12
    UNIT_BITS = 149
    DOUBLE_BITS = 53

SUM_WORDS, SUM_BITS = WORDS, UNIT_BITS
BINS = QIR_TALLY_BINS
ISAS = ("scalar", "avx2", "avx512")[: qir_tally_isa_best() + 1]
# QIR_ISA caps what is used; a name that is in no table caps nothing here.
CAPS = {"avxvnni": "avx2", "avxvnni_evex": "avx2"}


def default_isa():
    cap = os.environ.get("QIR_ISA")
    cap = CAPS.get(cap, cap)
    return cap if cap in ISAS else ISAS[qir_tally_isa_best()]


DEFAULT = default_isa()


cdef class Tally:
    """Counts, extremes and the dyadic histogram of one tensor."""

    cdef qir_tally state
    cdef int isa
    cdef object lock  # held while `state` changes without the GIL

    def __cinit__(self, isa=None):
        if isa is not None and isa not in ISAS:
            raise ValueError(f"isa is {isa!r}; known are {', '.join(ISAS)}")
        self.isa = ISAS.index(DEFAULT if isa is None else isa)
        self.lock = threading.Lock()
        qir_tally_clear(&self.state)

    def add(self, const float[::1] x not None, float[::1] lows=None, float[::1] highs=None,
            double[::1] sums=None, Py_ssize_t inner=1):
        cdef qir_batch batch
        cdef qir_channels channels
        channels.lows = channels.highs = NULL
        channels.sums = NULL
        channels.count = channels.inner = 1
        if (lows is None) != (highs is None) or (lows is None) != (sums is None):
            raise ValueError("lows, highs and sums are given together")
        if lows is not None:
            if not highs.shape[0] == lows.shape[0] == sums.shape[0]:
                raise ValueError("lows, highs and sums differ in length")
            if x.shape[0] and (inner < 1 or not lows.shape[0]):
                raise ValueError("values without a channel")
            channels.inner = <size_t>inner
            if x.shape[0]:
                channels.lows = &lows[0]
                channels.highs = &highs[0]
                channels.sums = &sums[0]
            channels.count = <size_t>lows.shape[0]
        if x.shape[0] == 0:
            return float("inf"), float("-inf"), 0.0, 0.0
        with self.lock, nogil:
            qir_tally_add(&self.state, &x[0], <size_t>x.shape[0], &channels, self.isa, &batch)
        return batch.low, batch.high, batch.sum, batch.squares

    def merge(self, Tally other not None):
        cdef Tally first = self, second = other
        if self is other:
            with self.lock:
                qir_tally_merge(&self.state, &other.state)
            return
        if <size_t><void *>other < <size_t><void *>self:  # one order for all: no two wait in turn
            first, second = other, self
        with first.lock, second.lock, nogil:
            qir_tally_merge(&self.state, &other.state)

    @property
    def finite(self):
        return self.state.finite

    @property
    def nan(self):
        return self.state.nan

    @property
    def above(self):
        return self.state.above

    @property
    def below(self):
        return self.state.below

    @property
    def zeros(self):
        return self.state.zeros

    @property
    def exponent(self):
        return self.state.exponent

    @property
    def first(self):
        return self.state.first

    def extremes(self):
        out = np.empty(2, np.float32)
        cdef float[::1] view = out
        view[0], view[1] = self.state.low, self.state.high
        return out

    def bins(self):
        cdef uint64_t[::1] view
        cdef int32_t i
        with self.lock:
            out = np.empty(self.state.used, np.uint64)
            view = out
            for i in range(self.state.used):
                view[i] = self.state.bins[i]
        return out

    @staticmethod
    def restore(const uint64_t[::1] counts not None, const float[::1] extremes not None,
                const uint64_t[::1] bins not None):
        cdef Tally tally = Tally()
        cdef qir_tally *state = &tally.state
        cdef Py_ssize_t i
        cdef uint64_t total = 0
        cdef float low, high
        if counts.shape[0] != 5 or extremes.shape[0] != 2:
            raise ValueError("a tally has five counts and two extremes")
        state.finite, state.nan, state.above = counts[0], counts[1], counts[2]
        state.below, state.zeros = counts[3], counts[4]
        if state.finite:
            low, high = extremes[0], extremes[1]  # once: another thread may write to them
            if not -FLT_MAX <= low <= high <= FLT_MAX:
                raise ValueError("the extremes are no range")
            qir_tally_window(state, low, high)
        if bins.shape[0] != state.used:
            raise ValueError(f"{bins.shape[0]} bins where the extremes give {state.used}")
        for i in range(bins.shape[0]):
            state.bins[i] = bins[i]
            total += bins[i]
        if total != state.finite or state.zeros > state.finite:
            raise ValueError("the bins do not add up to the count")
        return tally


def add_floats(uint32_t[:, ::1] totals not None, const double[::1] floats not None):
    cdef Py_ssize_t i
    if totals.shape[0] != floats.shape[0] or totals.shape[1] != WORDS:
        raise ValueError("totals and floats do not fit")
    with nogil:
        for i in range(totals.shape[0]):
            add_float(&totals[i, 0], floats[i])


def add_totals(uint32_t[:, ::1] totals not None, const uint32_t[:, ::1] more not None):
    cdef Py_ssize_t i, word
    cdef uint64_t carry
    if totals.shape[0] != more.shape[0] or totals.shape[1] != WORDS or more.shape[1] != WORDS:
        raise ValueError("totals do not fit")
    with nogil:
        for i in range(totals.shape[0]):
            carry = 0
            for word in range(WORDS):
                carry += <uint64_t>totals[i, word] + more[i, word]
                totals[i, word] = <uint32_t>carry
                carry >>= 32


cdef void add_float(uint32_t *total, double value) noexcept nogil:
    # Multiples of 2**-149 alone: what is shifted out below is zero.
    cdef int exponent, shift, word
    cdef int64_t whole = <int64_t>(frexp(value, &exponent) * (<int64_t>1 << DOUBLE_BITS))
    cdef uint64_t size = <uint64_t>(-whole if whole < 0 else whole)
    cdef uint64_t carry = 0
    cdef uint32_t part
    shift = exponent - DOUBLE_BITS + UNIT_BITS
    if shift < 0:
        size = size >> -shift if shift > -64 else 0
        shift = 0
    word = shift // 32
    shift %= 32
    while word < WORDS:
        # The next 32 bits of size << shift; they are taken off for a negative number.
        part = <uint32_t>(size << shift)
        size >>= 32 - shift
        shift = 0
        if whole < 0:
            carry = <uint64_t>total[word] - part - carry
            total[word] = <uint32_t>carry
            carry >>= 63
        else:
            carry += <uint64_t>total[word] + part
            total[word] = <uint32_t>carry
            carry >>= 32
        if not size and not carry:
            return
        word += 1
