// The `Machine` of plan_core.hpp for NVIDIA GPUs, and the kernel, which has a thread block for each block of a plan.
//
// CHORALE_ELEMENT and CHORALE_DOES are names in elements.hpp of the element type and the operation. CHORALE_CHECKS
// enables checks of offsets; CHORALE_SWITCH enables switches that add and store (sm_90 and later).
#include "plan_core.hpp"

namespace chorale::plans {

__device__ __forceinline__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Waits for all threads of the block; returns whether `says` is true for any of them. Unlike with `__syncthreads_or`,
// threads may wait at different places in the code, because a thread that gives up waits elsewhere.
__device__ __forceinline__ bool any_of_block(bool says) {
    unsigned found;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, 0, p; selp.u32 %0, 1, 0, q; }"
        : "=r"(found)
        : "r"(unsigned{says})
        : "memory");
    return found != 0;
}

using Element = CHORALE_ELEMENT;
using Does = CHORALE_DOES;

struct GpuMachine {
#ifdef CHORALE_SWITCH
    static constexpr bool has_switch = true;
#else
    static constexpr bool has_switch = false;
#endif

    __device__ u64 lane() const { return threadIdx.x; }
    __device__ u64 lanes() const { return blockDim.x; }
    __device__ bool sync() { return !any_of_block(false); }

    __device__ static u64 load(const u64* at) {
        u64 value;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
        return value;
    }
    __device__ static void store(u64* at, u64 value) {
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    }
    __device__ static u64 add(u64* at, u64 value) {
        u64 before;
        asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(value) : "memory");
        return before;
    }
    __device__ static void fence_add(u64* at, u64 value) {
        asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    }
    __device__ static void load_packets(const u64* at, u64* two) {
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(two[0]), "=l"(two[1]) : "l"(at) : "memory");
    }
    __device__ static void store_packets(u64* at, const u64* two) {
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(two[0]), "l"(two[1]) : "memory");
    }

    template <class Work>
    __device__ static bool with_elements(const Binding&, Work work) {
        return work(Element{}, Does{});
    }

    // A switch adds in an unspecified order. It can add 32-bit floats and, if sums are kept in 32 bits, 16-bit floats.
    __device__ static bool adds_by_switch(bool keeps_wide) {
        return sums(Does{}) && switch_adds(Element{}, keeps_wide);
    }
    __device__ static bool sums(Plus) { return true; }
    template <class Other>
    __device__ static bool sums(Other) {
        return false;
    }
    __device__ static bool switch_adds(float, bool) { return true; }
    __device__ static bool switch_adds(Half, bool keeps_wide) { return keeps_wide; }
    __device__ static bool switch_adds(Brain, bool keeps_wide) { return keeps_wide; }
    template <class Other>
    __device__ static bool switch_adds(Other, bool) {
        return false;
    }
    __device__ static void sum_of_all(const char* at, Vector& sum) {
        add_all(Element{}, at, reinterpret_cast<unsigned*>(&sum));
    }
#ifdef CHORALE_SWITCH
#define CHORALE_ADDS(element, how)                                                                                \
    __device__ static void add_all(element, const char* at, unsigned* v) {                                        \
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add." how " {%0, %1, %2, %3}, [%4];"                  \
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])                                             \
                     : "l"(at)                                                                                    \
                     : "memory");                                                                                 \
    }
    CHORALE_ADDS(float, "v4.f32")
    CHORALE_ADDS(Half, "acc::f32.v4.f16x2")
    CHORALE_ADDS(Brain, "acc::f32.v4.bf16x2")
#endif
    template <class Other>
    __device__ static void add_all(Other, const char*, unsigned*) {}
    __device__ static void store_everywhere(char* at, const Vector& value) {
#ifdef CHORALE_SWITCH
        const auto* v = reinterpret_cast<const unsigned*>(&value);
        asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
#endif
    }
};

}  // namespace chorale::plans

// Executes one call. A thread gives up if it makes no progress for too long or another one gave up, so nothing hangs.
extern "C" __global__ void __launch_bounds__(512) chorale_plan(const chorale::plans::Binding* binding) {
    using namespace chorale::plans;
    const Binding call = *binding;
    GpuMachine machine;
    if (GpuMachine::load(call.broken) != 0) return;
    Thread<GpuMachine> thread(call, machine, blockIdx.x);
    const u64 begin_ns = now_ns();
    for (unsigned idle = 0; !thread.ended() && !thread.gave_up();) {
        idle = thread.advance() ? 0 : idle + 1;
        if (idle % 256 != 255) continue;
        if (now_ns() - begin_ns > call.limit_ns || GpuMachine::load(call.broken) != 0) thread.stop();
    }
    if (thread.gave_up()) any_of_block(true);
}
