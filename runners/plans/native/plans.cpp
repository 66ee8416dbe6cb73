// The `Machine` of plan_core.hpp for CPUs with shared memory. runners/plans/rank_plans.py calls the functions at the end.
#include <sched.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine_clock.hpp"
#include "plan_words.hpp"

using namespace chorale::plans;

namespace {

// A barrier for the threads of a block.
class Meeting {
public:
    explicit Meeting(u64 threads) : threads_(threads) {}

    bool wait() {
        if (threads_ == 1) return true;
        std::unique_lock lock(mutex_);
        if (is_broken_) return false;
        if (++here_ == threads_) {
            here_ = 0;
            round_++;
            all_.notify_all();
            return true;
        }
        const u64 round = round_;
        all_.wait(lock, [&] { return round_ != round || is_broken_; });
        return round_ != round;
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        is_broken_ = true;
        all_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable all_;
    u64 threads_, here_ = 0, round_ = 0;
    bool is_broken_ = false;
};

struct CpuMachine {
    static constexpr bool has_switch = false;
    u64 number, threads;
    Meeting& meeting;

    u64 lane() const { return number; }
    u64 lanes() const { return threads; }
    bool sync() { return meeting.wait(); }

    static u64 load(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static void store(u64* at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
    static u64 add(u64* at, u64 value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
    static void fence_add(u64* at, u64 value) { __atomic_fetch_add(at, value, __ATOMIC_RELEASE); }
    static void load_packets(const u64* at, u64* two) {
        two[0] = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        two[1] = __atomic_load_n(at + 1, __ATOMIC_ACQUIRE);
    }
    static void store_packets(u64* at, const u64* two) {
        __atomic_store_n(at, two[0], __ATOMIC_RELEASE);
        __atomic_store_n(at + 1, two[1], __ATOMIC_RELEASE);
    }

    template <class Work>
    static bool with_elements(const Binding& call, Work work) {
        return chorale::with_type(int(call.type), [&](auto element) {
            return chorale::with_operation(int(call.operation), [&](auto does) { return work(element, does); });
        });
    }
};

constexpr int patience = 200;  // polls without progress after which a thread sleeps instead of yielding

struct Unfinished : std::runtime_error {
    Unfinished() : std::runtime_error("the time limit has passed") {}
};

// Pauses between two polls; returns whether the time limit has passed.
class Pause {
public:
    explicit Pause(int64_t deadline_ns) : deadline_ns_(deadline_ns) {}

    bool after(bool moved) {
        idle_ = moved ? 0 : idle_ + 1;
        if (idle_ == 0) return false;
        if (idle_ % 16 == 0 && chorale::monotonic_ns() > deadline_ns_) return true;
        if (idle_ < patience)
            sched_yield();
        else
            chorale::pause_ns(20'000);
        return false;
    }

private:
    int64_t deadline_ns_;
    int idle_ = 0;
};

// Runs all blocks in this thread. They take turns; each one runs as far as possible.
void in_turns(const Binding& call, int64_t deadline_ns) {
    Meeting alone(1);
    CpuMachine machine{0, 1, alone};
    std::deque<Thread<CpuMachine>> blocks;
    for (u64 block = 0; block < u64(call.words[Head::blocks]); block++) blocks.emplace_back(call, machine, block);
    for (Pause pause(deadline_ns);;) {
        bool moved = false, unfinished = false;
        for (auto& block : blocks) {
            if (block.ended()) continue;
            moved |= block.advance();
            unfinished |= !block.ended();
        }
        if (!unfinished) return;
        if (!pause.after(moved)) continue;
        for (auto& block : blocks)
            if (!block.ended()) block.stop();
        throw Unfinished();
    }
}

// Runs `threads` system threads per block, as on a GPU.
void at_once(const Binding& call, u64 threads, int64_t deadline_ns) {
    std::deque<Meeting> meetings;
    std::vector<std::thread> all;
    for (u64 block = 0; block < u64(call.words[Head::blocks]); block++) {
        Meeting& meeting = meetings.emplace_back(threads);
        for (u64 number = 0; number < threads; number++)
            all.emplace_back([&call, &meeting, block, number, threads, deadline_ns] {
                CpuMachine machine{number, threads, meeting};
                Thread<CpuMachine> thread(call, machine, block);
                for (Pause pause(deadline_ns); !thread.ended() && !thread.gave_up();) {
                    const bool moved = thread.advance();
                    if (thread.ended() || thread.gave_up()) break;
                    if (pause.after(moved) || CpuMachine::load(call.broken) != 0) thread.stop();
                }
                if (thread.gave_up()) meeting.leave();
            });
    }
    for (auto& each : all) each.join();
    if (CpuMachine::load(call.broken) != 0) throw Unfinished();
}

}  // namespace

enum { PLANS_OK = 0, PLANS_FAILED = 1, PLANS_TIMEOUT = 2 };

static thread_local std::string error;

static int guarded(const std::function<void()>& work) {
    try {
        work();
        return PLANS_OK;
    } catch (const Unfinished& late) {
        error = late.what();
        return PLANS_TIMEOUT;
    } catch (const std::exception& other) {
        error = other.what();
        return PLANS_FAILED;
    }
}

extern "C" {

// Returns the error of this thread's last failed call.
const char* chorale_plans_error(void) { return error.c_str(); }

// Checks that `words` (see runners/plans/rank_plans.py) are a plan for `rank` that accesses only its memory.
int chorale_plan_check(const int64_t* words, size_t count, int rank, int ranks) {
    return guarded([&] { Checker(reinterpret_cast<const i64*>(words), count).plan(rank, ranks); });
}

// Runs this rank's part of a call of a checked plan, not before `not_before_ns` of CLOCK_MONOTONIC; sets `end_ns`.
//
// binding: see plan_core.hpp; after a timeout, its record says what each unfinished block was waiting for
// threads: number of system threads for each block; 0: all blocks take turns in this thread
int chorale_plan_call(const void* binding, int threads, int64_t not_before_ns, int64_t* end_ns) {
    return guarded([&] {
        const Binding& call = *static_cast<const Binding*>(binding);
        chorale::pause_until(not_before_ns);
        const int64_t deadline_ns = chorale::deadline_after(double(call.limit_ns) / 1e9);
        if (threads == 0)
            in_turns(call, deadline_ns);
        else
            at_once(call, u64(threads), deadline_ns);
        *end_ns = chorale::monotonic_ns();
    });
}

}  // extern "C"
