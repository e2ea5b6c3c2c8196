/* Products by cuBLASLt, next to which ours are put. The library is loaded when it is first asked for, so that the benches run without
 * it, too. */
#include "bench/device/device.h"
#include "bench/device/timing.h"

#include <cublasLt.h>
#include <dlfcn.h> /* dlopen */

enum { MOST_WAYS = 8, PASSES = 5, MOST_CALLS = 64, PEAK_SIZE = 8192 };
static const size_t WORKSPACE_BYTES = (size_t)64 << 20, CALLS_BYTES = (size_t)2 << 30;

/* ---- the library ---- */

#define LIBRARY_FUNCTIONS(APPLY)                                                                             \
    APPLY(Create)                                                                                            \
    APPLY(Destroy)                                                                                           \
    APPLY(Matmul)                                                                                            \
    APPLY(MatmulAlgoGetHeuristic)                                                                            \
    APPLY(MatmulDescCreate)                                                                                  \
    APPLY(MatmulDescDestroy)                                                                                 \
    APPLY(MatmulDescSetAttribute)                                                                            \
    APPLY(MatmulPreferenceCreate)                                                                            \
    APPLY(MatmulPreferenceDestroy)                                                                           \
    APPLY(MatmulPreferenceSetAttribute)                                                                      \
    APPLY(MatrixLayoutCreate)                                                                                \
    APPLY(MatrixLayoutDestroy)

#define DECLARE_FUNCTION(name) decltype(&cublasLt##name) name;
static struct {
    bool is_loaded;
    LIBRARY_FUNCTIONS(DECLARE_FUNCTION)
} library;

#define TEXT_OF(number) #number
#define LIBRARY_NAME(version) "libcublasLt.so." TEXT_OF(version)
#define LOAD_FUNCTION(name)                                                                                  \
    library.name = (decltype(library.name))dlsym(file, "cublasLt" #name);                                    \
    is_whole = is_whole && library.name != NULL;

static bool load_library(void) {
    if (library.is_loaded)
        return true;
    void *file = dlopen(LIBRARY_NAME(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    if (file == NULL)
        file = dlopen("/usr/local/cuda/lib64/" LIBRARY_NAME(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    bool is_whole = file != NULL;
    if (is_whole) {
        LIBRARY_FUNCTIONS(LOAD_FUNCTION)
    }
    return library.is_loaded = is_whole;
}

/* One product, its memory and the way it is made. */
struct peer {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight, input, output;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t ways[MOST_WAYS];
    int way_count, way, copies, calls;
    size_t weight_bytes;
    char *weights;
    void *inputs, *outputs, *workspace;
};

static bool is_good(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS;
}

/* ---- memory ---- */

/* BF16 values between -1 and 1 that differ: a device draws less power, and runs faster, on zeros. */
static __global__ void fill_values(unsigned short *values, size_t count) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned bits = (unsigned)i * 2654435761u + 12345u;
        bits ^= bits >> 15;
        bits *= 2246822519u;
        bits ^= bits >> 13;
        values[i] = (unsigned short)((bits & 0x807fu) | (0x3f00u - ((bits >> 8 & 3u) << 7)));
    }
}

static bool make_values(void *memory, size_t bytes) {
    fill_values<<<1024, 256>>>((unsigned short *)memory, bytes / sizeof(unsigned short));
    return cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
}

static bool make_memory(struct peer *peer, int tokens, int rows, int columns, size_t rotated_bytes) {
    const size_t input_bytes = (size_t)tokens * (size_t)columns * 2;
    peer->weight_bytes = ((size_t)rows * (size_t)columns * 2 + 255) / 256 * 256;
    peer->copies = (int)(rotated_bytes / peer->weight_bytes) + 1;
    /* As many calls as read some gigabytes, so that the time between them doesn't count. */
    peer->calls = (int)(CALLS_BYTES / (peer->weight_bytes + (size_t)tokens * (size_t)rows * 4));
    peer->calls = peer->calls < 4 ? 4 : peer->calls > MOST_CALLS ? MOST_CALLS : peer->calls;
    const size_t all = peer->weight_bytes * (size_t)peer->copies;
    return cudaMalloc((void **)&peer->weights, all) == cudaSuccess &&
           cudaMalloc(&peer->inputs, input_bytes) == cudaSuccess &&
           cudaMalloc(&peer->outputs, (size_t)tokens * (size_t)rows * 4) == cudaSuccess &&
           cudaMalloc(&peer->workspace, WORKSPACE_BYTES) == cudaSuccess && make_values(peer->weights, all) &&
           make_values(peer->inputs, input_bytes);
}

/* ---- the product ---- */

/* Row-major inputs [tokens, columns] and weights [rows, columns] are column-major with the columns first, so the library makes
 * outputs [rows, tokens] column-major, which are ours. */
static bool make_product(struct peer *peer, int tokens, int rows, int columns, cudaDataType_t output) {
    const cublasOperation_t turned = CUBLAS_OP_T;
    return is_good(library.Create(&peer->handle)) &&
           is_good(library.MatmulDescCreate(&peer->product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           is_good(library.MatmulDescSetAttribute(
               peer->product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned)) &&
           is_good(library.MatrixLayoutCreate(
               &peer->weight, CUDA_R_16BF, (uint64_t)columns, (uint64_t)rows, columns)) &&
           is_good(library.MatrixLayoutCreate(
               &peer->input, CUDA_R_16BF, (uint64_t)columns, (uint64_t)tokens, columns)) &&
           is_good(library.MatrixLayoutCreate(&peer->output, output, (uint64_t)rows, (uint64_t)tokens, rows));
}

static bool find_ways(struct peer *peer) {
    return is_good(library.MatmulPreferenceCreate(&peer->preference)) &&
           is_good(library.MatmulPreferenceSetAttribute(peer->preference,
               CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES, sizeof WORKSPACE_BYTES)) &&
           is_good(library.MatmulAlgoGetHeuristic(peer->handle, peer->product, peer->weight, peer->input,
               peer->output, peer->output, peer->preference, MOST_WAYS, peer->ways, &peer->way_count)) &&
           peer->way_count > 0;
}

static cudaError_t multiply_pass(void *context, cudaStream_t stream) {
    struct peer *peer = (struct peer *)context;
    const float one = 1, none = 0;
    for (int i = 0; i < peer->calls; i++) {
        const char *weight = peer->weights + (size_t)(i % peer->copies) * peer->weight_bytes;
        if (!is_good(library.Matmul(peer->handle, peer->product, &one, weight, peer->weight, peer->inputs,
                peer->input, &none, peer->outputs, peer->output, peer->outputs, peer->output,
                &peer->ways[peer->way].algo, peer->workspace, WORKSPACE_BYTES, stream)))
            return cudaErrorNotSupported;
    }
    return cudaSuccess;
}

static double best_way(struct peer *peer) {
    double best = 0;
    for (peer->way = 0; peer->way < peer->way_count; peer->way++) {
        double seconds = 0;
        if (is_good(peer->ways[peer->way].state) &&
            time_passes(multiply_pass, peer, PASSES, &seconds) == cudaSuccess &&
            (best == 0 || seconds / peer->calls < best))
            best = seconds / peer->calls;
    }
    return best;
}

static void free_peer(struct peer *peer) {
    if (peer->preference != NULL)
        (void)library.MatmulPreferenceDestroy(peer->preference);
    const cublasLtMatrixLayout_t layouts[] = {peer->weight, peer->input, peer->output};
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            (void)library.MatrixLayoutDestroy(layouts[i]);
    if (peer->product != NULL)
        (void)library.MatmulDescDestroy(peer->product);
    if (peer->handle != NULL)
        (void)library.Destroy(peer->handle);
    (void)cudaFree(peer->weights);
    (void)cudaFree(peer->inputs);
    (void)cudaFree(peer->outputs);
    (void)cudaFree(peer->workspace);
    (void)cudaGetLastError(); /* what failed here is no failure of what is measured next */
}

static double time_product(
    int device, int tokens, int rows, int columns, cudaDataType_t output, size_t rotated_bytes) {
    struct peer peer = {};
    double seconds = 0;
    if (load_library() && cudaSetDevice(device) == cudaSuccess &&
        make_memory(&peer, tokens, rows, columns, rotated_bytes) &&
        make_product(&peer, tokens, rows, columns, output) && find_ways(&peer))
        seconds = best_way(&peer);
    free_peer(&peer);
    return seconds;
}

double device_peer_seconds(
    int32_t device, int32_t tokens, int32_t rows, int32_t columns, size_t rotated_bytes) {
    return time_product(device, tokens, rows, columns, CUDA_R_32F, rotated_bytes);
}

double device_peer_peak(int32_t device) {
    const double operations = 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE;
    double seconds = time_product(device, PEAK_SIZE, PEAK_SIZE, PEAK_SIZE, CUDA_R_16BF, 0);
    return seconds > 0 ? operations / seconds : 0;
}
