# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=True
"""The compiled part of the pre-filter: a graph as integers, and what its nodes may match."""

import array

from libc.stdint cimport int32_t, uint64_t


cdef array_of(str kind, Py_ssize_t size):
    return array.array(kind, bytes(size * array.array(kind).itemsize))


cdef class View:
    """Nodes in order, each with the number of its op, most uses of a result, and producers."""

    cdef readonly list nodes
    cdef object kinds, most, starts, sources

    def __init__(self, graph, dict numbers not None, str group not None):
        cdef Py_ssize_t count = len(graph), place = 0, edges = 0, known = 0
        cdef dict places = {}
        cdef object node, value, kind, operands
        self.nodes = []
        self.kinds = array_of("i", count)
        self.most = array_of("i", count)
        self.starts = array_of("i", count + 1)
        self.sources = array_of("i", 2 * count + 16)
        cdef int32_t[::1] kinds = self.kinds, most = self.most, starts = self.starts
        cdef int32_t[::1] sources = self.sources
        cdef int32_t uses
        known = 2 * count + 16
        for node in graph:
            kind = numbers.get(group if node._stages else node._op)
            kinds[place] = -1 if kind is None else kind
            uses = 0
            for value in node._results:
                if len(value._uses) > uses:
                    uses = len(value._uses)
            most[place] = uses
            operands = node._operands
            if edges + len(operands) > known:
                sources = None
                known = 2 * (edges + len(operands))
                self.sources.frombytes(bytes(4 * (known - len(self.sources))))
                sources = self.sources
            for value in operands.values():
                sources[edges] = places[value._node]
                edges += 1
            places[node] = place
            self.nodes.append(node)
            place += 1
            starts[place] = edges

    def candidates(self, rows not None, tests not None, wanted not None, uint64_t goals):
        """The nodes whose bits meet `goals`, producers first.

        A node of kind k may be any of the terms rows[k] to rows[k + 1]. A term is four numbers in
        `tests`: its bit, the most uses its results may have, and where its needs start and end in
        `wanted`; a need is bits, of which some operand's producer has one.
        """
        cdef const int32_t[::1] row = rows
        cdef const int32_t[::1] test = tests
        cdef const uint64_t[::1] need = wanted
        cdef int32_t[::1] kinds = self.kinds, most = self.most, starts = self.starts
        cdef int32_t[::1] sources = self.sources
        cdef Py_ssize_t count = len(self.nodes), i, e
        cdef int32_t kind, term, k
        cdef uint64_t here
        cdef bint fits, met
        bits = array_of("Q", count)
        cdef uint64_t[::1] marks = bits
        cdef list out = []
        for i in range(count):
            kind = kinds[i]
            if kind < 0:
                continue
            here = 0
            for term in range(row[kind], row[kind + 1]):
                if most[i] > test[4 * term + 1]:
                    continue
                fits = True
                for k in range(test[4 * term + 2], test[4 * term + 3]):
                    met = False
                    for e in range(starts[i], starts[i + 1]):
                        if marks[sources[e]] & need[k]:
                            met = True
                            break
                    if not met:
                        fits = False
                        break
                if fits:
                    here |= (<uint64_t> 1) << test[4 * term]
            marks[i] = here
            if here & goals:
                out.append(self.nodes[i])
        return out
