# Memory and steps of a plan, and how it runs: _cpu.pyx includes this, and its Plan makes the steps.


PLANS = WeakSet()
"""All plans, for children that are forked."""


FAULTS = {
    "gather": "an index is outside of its axis",
    "choose": "x holds NaN, and no range has an end there",
    "quantize_by": "x holds NaN, which has no quantized value in its profile",
}
"""What the fault of a step of each kind is."""


cdef class Running:
    cdef object __weakref__
    cdef uint32_t bits
    cdef object memory  # the arena, a uint8 array, and where in it 64-byte alignment begins
    cdef Py_ssize_t base
    cdef list offsets, sizes, externals  # of buffers; of these, the external ones
    cdef set written
    cdef object lock
    cdef unsigned long owner  # the thread that holds the lock, or 0
    cdef list calls, added  # for each step: its Call or None; (name, kind, traffic, work)
    cdef timed_step *list
    cdef void **pointers
    cdef Py_ssize_t count
    cdef size_t scratch_bytes  # what one thread needs
    cdef object scratch

    def __cinit__(self, arena, buffers, *, isa=None):
        self.bits = SETS.allowed(isa)
        arena = integer("plan", "arena", arena, 0)
        places = [of_length("plan", "a buffer", place, 2, EXTERNAL) for place in buffers]
        self.offsets = [offset for offset, _ in places]
        self.sizes = [size for _, size in places]
        self.externals = [i for i, offset in enumerate(self.offsets) if offset == EXTERNAL]
        for i, (offset, size) in enumerate(places):
            if size < 0 or (offset != EXTERNAL and offset + size > arena):
                raise ValueError(
                    f"buffer {i} of {size} bytes at {offset} does not lie in the arena of {arena}"
                )
        self.memory = np.zeros(arena + 64, np.uint8)
        self.base = -self.memory.ctypes.data % 64
        self.written = set()
        self.lock = threading.Lock()
        self.calls, self.added = [], []
        self.scratch = np.empty(0, np.uint8)
        self.pointers = <void **>malloc(max(1, len(places)) * sizeof(void *))
        if self.pointers == NULL:
            raise MemoryError
        cdef uint8_t[::1] start = self.memory[self.base:]
        for i, offset in enumerate(self.offsets):
            self.pointers[i] = NULL if offset == EXTERNAL else <void *>(&start[0] + <size_t>offset)
        PLANS.add(self)

    def __dealloc__(self):
        for i in range(self.count):
            free(self.list[i].step.params)
        free(self.list)
        free(self.pointers)

    cdef int enter(self) except -1:
        """Waits until no other thread uses the plan; `leave` ends that."""
        if self.owner == PyThread_get_thread_ident():
            raise ValueError("a step of a plan may not use that plan")
        self.lock.acquire()
        self.owner = PyThread_get_thread_ident()
        return 0

    cdef int leave(self) except -1:
        self.owner = 0
        self.lock.release()
        return 0

    cdef int needs(self, str name, str what, buffer, size) except -1:
        """Returns the number of a buffer that exists and holds `size` bytes."""
        cdef int number = integer(name, what, buffer, -LARGEST_STEP, LARGEST_STEP)
        if not 0 <= number < len(self.sizes):
            raise ValueError(f"{name}: {what} is buffer {number} of {len(self.sizes)}")
        if self.sizes[number] < size:
            raise ValueError(
                f"{name}: {what} is buffer {number} of {self.sizes[number]} bytes, "
                f"{size} are needed"
            )
        return number

    cdef int append(
        self, str name, str kind, qir_step step, int made, traffic, writes, call=None, work=0
    ) except -1:
        """Takes over a step that a make function made, and that writes to these buffers.

        `work` is the number of its multiply-adds.
        """
        if not made:
            raise MemoryError(f"{name}: no memory for its parameters")
        try:
            self.enter()
            try:
                grown = <timed_step *>realloc(self.list, (self.count + 1) * sizeof(timed_step))
                if grown == NULL:
                    raise MemoryError(f"{name}: no memory for one more step")
                self.list = grown
                self.list[self.count].step, self.list[self.count].nanoseconds = step, 0
                self.list[self.count].fault = NULL
                self.scratch_bytes = max(self.scratch_bytes, step.scratch)
                self.written.update(writes)
                self.calls.append(call)
                self.added.append((name, kind, traffic, work))
                self.count += 1
            finally:
                self.leave()
        except BaseException:
            free(step.params)
            raise
        return 0

    # ---- running ----

    def run(self, arrays, *, threads=1, profile=False):
        threads = min(integer("run", "threads", threads, 1, math.inf), QIR_POOL_MAX_THREADS)
        threads = min(threads, usable_cores()) if threads > 1 else 1
        given = list(arrays)
        if len(given) != len(self.externals):
            raise ValueError(f"{len(given)} arrays for {len(self.externals)} external buffers")
        self.enter()
        try:
            self.bind(given, threads, profile)
        finally:
            self.leave()

    cdef int bind(self, list arrays, int threads, bint profile) except -1:
        """Points external buffers to the arrays for the length of one run."""
        cdef Py_ssize_t held = 0
        cdef Py_buffer *views = <Py_buffer *>malloc((len(arrays) + 1) * sizeof(Py_buffer))
        if views == NULL:
            raise MemoryError
        try:
            for i, buffer in enumerate(self.externals):
                write = buffer in self.written
                array = external_of(f"array {i}", arrays[i], self.sizes[buffer], write)
                PyObject_GetBuffer(array, &views[held], PyBUF_WRITABLE if write else PyBUF_SIMPLE)
                held += 1
                arrays[i] = array
                self.pointers[<Py_ssize_t>buffer] = views[held - 1].buf
            self.execute(arrays, threads, profile)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
        return 0

    cdef int call_back(self, call, list arrays) except -1:
        """Runs one Python step."""
        memories = []
        for operand in call.operands:
            if self.offsets[operand.buffer] == EXTERNAL:
                array = arrays[self.externals.index(operand.buffer)]
                memories.append(array.reshape(-1).view(np.uint8))
            else:
                memories.append(self.memory[self.base + self.offsets[operand.buffer]:])
        call.run(memories)
        return 0

    cdef int execute(self, list arrays, int threads, bint profile) except -1:
        cdef timespec begin, end
        cdef Py_ssize_t i
        cdef char *scratch
        cdef uint8_t[::1] memory
        if self.scratch.size < self.scratch_bytes * threads + 64:
            self.scratch = np.empty(self.scratch_bytes * threads + 64, np.uint8)
        memory = self.scratch
        scratch = <char *>qir_round_up(<size_t>&memory[0], 64)
        with nogil:
            for i in range(self.count):
                if profile:
                    clock_gettime(CLOCK_MONOTONIC, &begin)
                if self.list[i].step.run != NULL:
                    qir_step_run(&self.list[i].step, self.pointers, scratch, threads)
                    if self.list[i].fault != NULL and self.list[i].fault[0]:
                        self.list[i].fault[0] = 0
                        with gil:
                            name, kind, _, _ = self.added[i]
                            raise DataFault(f"{name}: {FAULTS[kind]}")
                else:
                    with gil:
                        self.call_back(self.calls[i], arrays)
                if profile:
                    clock_gettime(CLOCK_MONOTONIC, &end)
                    self.list[i].nanoseconds += (
                        (end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec
                    )
        return 0

    def profile(self):
        self.enter()
        try:
            return [
                (name, kind, self.list[i].nanoseconds * 1e-9, traffic)
                for i, (name, kind, traffic, _) in enumerate(self.added)
            ]
        finally:
            self.leave()

    @property
    def steps(self):
        return [(name, kind) for name, kind, _, _ in self.added]

    @property
    def work(self):
        return [work for _, _, _, work in self.added]


def after_fork():
    """Frees plans in a forked child: what held them was another thread of its parent."""
    cdef Running plan
    for plan in list(PLANS):
        if plan.owner != PyThread_get_thread_ident():
            plan.lock, plan.owner = threading.Lock(), 0


os.register_at_fork(after_in_child=after_fork)
