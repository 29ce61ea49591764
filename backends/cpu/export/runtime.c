/* What every exported kernel shares. The tables above say what is special about this one. */

enum { F64, F32, F16, BF16, I64, I32, I8, I1 };

#define MOST_THREADS 256
#define ALIGNMENT 64
#define EXPORTED __attribute__((visibility("default")))

static const void *at(const void *arguments, size_t offset) { return (const char *)arguments + offset; }
static char *data_of(const void *arguments, const Array *x)
{
    char *data;
    memcpy(&data, at(arguments, x->data), sizeof data);
    return data;
}
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* ---- checks */

/* The extent of each axis, from the arrays. */
static int read_sizes(const void *arguments, int64_t *size)
{
    for (int n = 0; n < AXES; n++)
        size[n] = axes[n].varies ? -1 : axes[n].bound;
    for (int v = 0; v < VIEWS; v++) {
        const Array *x = &arrays[views[v].array];
        const int64_t *extents = at(arguments, x->extents), *strides = at(arguments, x->strides);
        if (data_of(arguments, x) == NULL)
            return ATTNGEN_NULL_POINTER;
        for (int d = 0; d < x->rank; d++) {
            const signed char *group = groups[views[v].first + d];
            int64_t known = 1;
            int open = -1;
            for (int g = 0; g < GROUP && group[g] >= 0; g++) {
                if (size[group[g]] < 0)
                    open = group[g];
                else
                    known *= size[group[g]];
            }
            if (open < 0 ? extents[d] != known : extents[d] % known != 0)
                return ATTNGEN_BAD_EXTENT;
            if (open >= 0) {
                size[open] = extents[d] / known;
                if (size[open] < 1 || size[open] > axes[open].bound)
                    return ATTNGEN_BAD_EXTENT;
            }
            if (x->output && strides[d] == 0 && extents[d] > 1)
                return ATTNGEN_BAD_STRIDE;
        }
    }
    return ATTNGEN_OK;
}

static const Version *chosen(void)
{
    for (int n = 0; n < VERSIONS; n++)
        if (versions[n].runs_here())
            return &versions[n];
    return NULL;
}

/* ---- threads */

typedef struct {
    const Version *version;
    const int64_t *arguments;
    int64_t left, smallest, threads;
} Work;

typedef struct {
    Work *work;
    char *scratch;
} Helper;

/* Run parts until none is left, large shares first. The last parts are handed out first: under a causal mask they have most
   to do, and work that begins late should be small. */
static void share(Work *work, char *scratch)
{
    int64_t arguments[ARGUMENT_COUNT];
    memcpy(arguments, work->arguments, sizeof arguments);
    arguments[SCRATCH] = (int64_t)(intptr_t)scratch;
    int64_t last = __atomic_load_n(&work->left, __ATOMIC_RELAXED);
    while (last > 0) {
        int64_t count = last / (4 * work->threads), first;
        first = last - least(last, count < work->smallest ? work->smallest : count);
        if (!__atomic_compare_exchange_n(&work->left, &last, first, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            continue;
        arguments[FIRST] = first;
        arguments[LAST] = last;
        work->version->entry(arguments);
        last = __atomic_load_n(&work->left, __ATOMIC_RELAXED);
    }
}

static void *help(void *given)
{
    Helper *helper = given;
    share(helper->work, helper->scratch);
    return NULL;
}

/* One nest of loops: the caller works too, and needs no other thread to finish. */
static void run_nest(const Version *version, const Nest *nest, const int64_t *size, const int64_t *arguments, int64_t threads,
                     char *scratch)
{
    int64_t parts = 1;
    double operations = nest->operations;
    for (int n = 0; n < nest->splits; n++) {
        const Split *split = &nest->split[n];
        parts *= ((split->axis < 0 ? split->extent : size[split->axis]) + split->step - 1) / split->step;
    }
    for (int n = 0; n < AXES; n++)
        if (axes[n].varies)
            operations *= (double)size[n] / (double)axes[n].bound;
    int64_t worth = (int64_t)(operations / WORTH);
    threads = least(threads, least(parts, worth));
    Work work = {version, arguments, parts, 1, threads < 1 ? 1 : threads};
    work.smallest = worth < 1 ? parts : worth < parts ? parts / worth : 1;
    pthread_t started[MOST_THREADS];
    Helper helpers[MOST_THREADS];
    int count = 0;
    for (; count + 1 < work.threads; count++) {
        helpers[count].work = &work;
        helpers[count].scratch = scratch + (size_t)(count + 1) * aligned(version->scratch);
        if (pthread_create(&started[count], NULL, help, &helpers[count]) != 0)
            break;
    }
    share(&work, scratch);
    while (count > 0)
        pthread_join(started[--count], NULL);
}

/* ---- calls */

static size_t memory_bytes(const Version *version, int64_t threads)
{
    threads = threads < 1 ? 1 : least(threads, MOST_THREADS);
    return ALIGNMENT + aligned(version->temporary) + (size_t)threads * aligned(version->scratch);
}

static int call(const Version *version, const ARGUMENTS *given)
{
    int64_t size[AXES], arguments[ARGUMENT_COUNT], outside[LOOKUPS + 1];
    int code = read_sizes(given, size), n = 0;
    if (code != ATTNGEN_OK)
        return code;
    for (int v = 0; v < READ; v++) {
        const Array *x = &arrays[views[v].array];
        const int64_t *strides = at(given, x->strides);
        arguments[n++] = (int64_t)(intptr_t)data_of(given, x);
        for (int a = 0; a < views[v].axes; a++) {
            for (int d = 0; d < x->rank; d++) {
                int64_t inner = -1; /* elements between neighbours along the axis, once it is found */
                for (int g = 0; g < GROUP && groups[views[v].first + d][g] >= 0; g++) {
                    int axis = groups[views[v].first + d][g];
                    inner = axis == views[v].order[a] ? 1 : inner < 0 ? -1 : inner * size[axis];
                }
                if (inner >= 0)
                    arguments[n++] = strides[d] * inner * element_bytes[x->element];
            }
        }
    }
    for (int k = 0; k < VARYING; k++)
        arguments[n++] = size[varying[k]];
    int64_t threads = least(given->threads, MOST_THREADS);
    size_t wanted = memory_bytes(version, threads);
    void *allocated = NULL;
    if (given->workspace == NULL)
        allocated = calloc(1, wanted);
    else if (given->workspace_bytes < wanted)
        return ATTNGEN_SMALL_WORKSPACE;
    char *memory = given->workspace == NULL ? allocated : given->workspace;
    if (memory == NULL)
        return ATTNGEN_NO_MEMORY;
    memory += (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    memset(outside, 0, sizeof outside);
    arguments[SCRATCH] = 0;
    arguments[SCRATCH + 1] = (int64_t)(intptr_t)memory;
    if (LOOKUPS)
        arguments[SCRATCH + 2] = (int64_t)(intptr_t)outside;
    for (int k = 0; k < version->nests; k++) {
        if (version->nests > 1)
            arguments[FIRST - 1] = k;
        run_nest(version, &version->nest[k], size, arguments, threads, memory + aligned(version->temporary));
    }
    free(allocated);
    for (int k = 0; k < LOOKUPS; k++)
        if (outside[k])
            return ATTNGEN_BAD_INDEX;
    return ATTNGEN_OK;
}

static int check(const ARGUMENTS *given)
{
    if (given == NULL)
        return ATTNGEN_NULL_POINTER;
    if (given->size != sizeof *given)
        return ATTNGEN_BAD_SIZE;
    return given->threads < 1 ? ATTNGEN_BAD_THREADS : ATTNGEN_OK;
}

EXPORTED int CALL(const ARGUMENTS *given)
{
    int code = check(given);
    const Version *version = chosen();
    if (code == ATTNGEN_OK && version == NULL)
        code = ATTNGEN_BAD_PROCESSOR;
    return code == ATTNGEN_OK ? call(version, given) : code;
}

EXPORTED size_t WORKSPACE_BYTES(int64_t threads)
{
    size_t most = 0;
    for (int n = 0; n < VERSIONS; n++) {
        size_t bytes = memory_bytes(&versions[n], threads);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Extents given by axis, elements side by side but for `gap` unused ones after each row. */
static void describe(ARGUMENTS *out, const int64_t *size, int64_t gap)
{
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    out->threads = 1;
    for (int v = 0; v < VIEWS; v++) {
        const Array *x = &arrays[views[v].array];
        int64_t *extents = (int64_t *)((char *)out + x->extents), *strides = (int64_t *)((char *)out + x->strides), step = 1;
        for (int d = x->rank - 1; d >= 0; d--) {
            extents[d] = 1;
            for (int g = 0; g < GROUP && groups[views[v].first + d][g] >= 0; g++)
                extents[d] *= size[(int)groups[views[v].first + d][g]];
            strides[d] = step;
            step *= extents[d];
            step += d == x->rank - 1 ? gap : 0;
        }
    }
}

EXPORTED void INIT(ARGUMENTS *out)
{
    int64_t size[AXES];
    for (int n = 0; n < AXES; n++)
        size[n] = axes[n].bound;
    describe(out, size, 0);
}

EXPORTED const char *INFO(void) { return info; }

EXPORTED const char *MESSAGE(int code)
{
    static const char *const messages[] = {
        "no error",
        "a pointer is NULL",
        "`size` is not that of this version of the struct: use the header that belongs to the library",
        "an extent is not one that the kernel was compiled for",
        "`threads` must be at least 1",
        "not enough memory",
        "`workspace_bytes` is less than " TEXT(WORKSPACE_BYTES) "(threads)",
        "this processor lacks instructions that the kernel needs",
        "a coordinate lies outside of the table that it looks up",
        "an output has stride 0 along an extent of more than 1",
        "the self test found a wrong result",
    };
    return code >= 0 && code < (int)(sizeof messages / sizeof *messages) ? messages[code] : "unknown code";
}

/* ---- self test: inputs that both languages can make, and outputs computed in float64 when the library was made */

static unsigned random_byte(uint64_t seed, uint64_t array, uint64_t index)
{
    uint64_t z = index + (array << 40) + (seed << 56) + 0x9E3779B97F4A7C15u; /* SplitMix64 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (unsigned)((z ^ (z >> 31)) >> 56);
}

static void put(void *to, int element, unsigned byte)
{
    double number = ((int)byte - 128) / 64.0; /* exact in every type of floats */
    switch (element) {
    case F64: *(double *)to = number; break;
    case F32: *(float *)to = (float)number; break;
    case F16: *(uint16_t *)to = halves[byte]; break;
    case BF16: {
        float wide = (float)number;
        uint32_t bits;
        memcpy(&bits, &wide, sizeof bits);
        *(uint16_t *)to = (uint16_t)(bits >> 16);
        break;
    }
    case I64: *(int64_t *)to = byte % INTEGERS; break;
    case I32: *(int32_t *)to = (int32_t)(byte % INTEGERS); break;
    default: *(int8_t *)to = (int8_t)(byte % INTEGERS);
    }
}

static double get(const void *from, int element)
{
    switch (element) {
    case F64: return *(const double *)from;
    case F32: return *(const float *)from;
    case F16: {
        int bits = *(const uint16_t *)from, exponent = bits >> 10 & 31, fraction = bits & 1023;
        double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                     : ldexp(exponent ? fraction + 1024 : fraction, (exponent ? exponent : 1) - 25);
        return bits & 0x8000 ? -size : size;
    }
    case BF16: {
        uint32_t bits = (uint32_t)*(const uint16_t *)from << 16;
        float wide;
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    }
    case I64: return (double)*(const int64_t *)from;
    case I32: return *(const int32_t *)from;
    default: return *(const int8_t *)from;
    }
}

/* Where element number `index` of an array is, counted with the last dimension fastest. */
static char *element(const ARGUMENTS *given, const Array *x, int64_t index)
{
    const int64_t *extents = at(given, x->extents), *strides = at(given, x->strides);
    int64_t place = 0;
    for (int d = x->rank - 1; d >= 0; d--) {
        place += index % extents[d] * strides[d];
        index /= extents[d];
    }
    return data_of(given, x) + place * element_bytes[x->element];
}

static int test(const Version *version, const Vector *vector)
{
    ARGUMENTS given;
    int code = ATTNGEN_OK;
    describe(&given, vector->size, vector->gap);
    given.threads = vector->threads;
    for (int n = 0; n < ARRAYS; n++) {
        const Array *x = &arrays[n];
        const int64_t *extents = at(&given, x->extents), *strides = at(&given, x->strides);
        int64_t count = 1;
        for (int d = 0; d < x->rank; d++)
            count *= extents[d];
        size_t room = (size_t)(x->rank ? extents[0] * strides[0] : 1) + (size_t)vector->gap;
        void *data = calloc(room, (size_t)element_bytes[x->element]);
        memcpy((char *)&given + x->data, &data, sizeof data);
        if (data == NULL)
            code = ATTNGEN_NO_MEMORY;
        for (int64_t k = 0; k < count && data != NULL && !x->output; k++)
            put(element(&given, x, k), x->element, random_byte(vector->seed, (uint64_t)n, (uint64_t)k));
    }
    if (code == ATTNGEN_OK)
        code = call(version, &given);
    for (int k = 0; k < vector->count && code == ATTNGEN_OK; k++) {
        const Sample *sample = &vector->samples[k];
        const Array *x = &arrays[sample->array];
        double got = get(element(&given, x, sample->index), x->element), want = sample->value;
        if (!(got == want || fabs(got - want) <= sample->allowed || (isnan(got) && isnan(want))))
            code = ATTNGEN_WRONG_RESULT;
    }
    for (int n = 0; n < ARRAYS; n++)
        free(data_of(&given, &arrays[n]));
    return code;
}

EXPORTED int SELFTEST(void)
{
    int code = ATTNGEN_BAD_PROCESSOR;
    for (int n = 0; n < VERSIONS; n++) {
        if (!versions[n].runs_here())
            continue;
        for (int k = 0; k < VECTORS; k++) {
            code = test(&versions[n], &vectors[k]);
            if (code != ATTNGEN_OK)
                return code;
        }
    }
    return code;
}
