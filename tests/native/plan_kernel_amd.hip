// plan_core.hpp as a kernel for AMD GPUs, as far as it compiles. It is not part of the product: threads of a wavefront do
// not advance independently there, so those that wait for a signal can hold up others at a barrier.
#include <hip/hip_runtime.h>

#include "plan_core.hpp"

using namespace chorale::plans;

struct AmdMachine {
    static constexpr bool has_switch = false;
    __device__ u64 lane() const { return threadIdx.x; }
    __device__ u64 lanes() const { return blockDim.x; }
    __device__ bool sync() { return __syncthreads_or(0) == 0; }
    __device__ static u64 load(const u64* at) {
        return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
    }
    __device__ static void store(u64* at, u64 value) {
        __hip_atomic_store(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    }
    __device__ static u64 add(u64* at, u64 value) {
        return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    __device__ static void fence_add(u64* at, u64 value) {
        __hip_atomic_fetch_add(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
    }
    __device__ static void load_packets(const u64* at, u64* two) {
        for (int i = 0; i < 2; i++) two[i] = load(at + i);
    }
    __device__ static void store_packets(u64* at, const u64* two) {
        for (int i = 0; i < 2; i++) store(at + i, two[i]);
    }
    template <class Work>
    __device__ static bool with_elements(const Binding&, Work work) {
        return work(chorale::Brain{}, chorale::Plus{});
    }
};

extern "C" __global__ void __launch_bounds__(512) chorale_plan(const Binding* binding) {
    const Binding call = *binding;
    AmdMachine machine;
    Thread<AmdMachine> thread(call, machine, blockIdx.x);
    while (!thread.ended() && !thread.gave_up())
        if (!thread.advance() && AmdMachine::load(call.broken) != 0) thread.stop();
    if (thread.gave_up()) __syncthreads_or(1);
}
