#include "chorale_plans.h"

#include <sched.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cpu_machine.hpp"
#include "engine_clock.hpp"
#include "plan_words.hpp"

using namespace chorale::plans;

namespace {

constexpr int patience = 200;  // rounds without progress after which processors are left to others

struct Unfinished : std::runtime_error {
    Unfinished() : std::runtime_error("the time limit has passed") {}
};

// Waits between two looks; returns whether the time is over.
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

// All blocks in turns, each as far as it gets; ends when the ports have done what they were given.
void in_turns(const Binding& call, Ports& ports, int64_t deadline_ns) {
    Meeting alone(1);
    CpuMachine machine{0, 1, alone, &ports};
    std::deque<Thread<CpuMachine>> blocks;
    for (u64 block = 0; block < u64(call.words[Head::blocks]); block++) blocks.emplace_back(call, machine, block);
    for (Pause pause(deadline_ns);;) {
        bool moved = false, unfinished = false;
        for (auto& block : blocks) {
            if (block.ended()) continue;
            moved |= block.advance();
            unfinished |= !block.ended();
        }
        if (!unfinished && ports.idle()) return;
        if (!pause.after(moved)) continue;
        for (auto& block : blocks)
            if (!block.ended()) block.stop();
        throw Unfinished();
    }
}

// As on a GPU: `threads` threads for each block.
void at_once(const Binding& call, u64 threads, int64_t deadline_ns) {
    std::deque<Meeting> meetings;
    std::vector<std::thread> all;
    for (u64 block = 0; block < u64(call.words[Head::blocks]); block++) {
        Meeting& meeting = meetings.emplace_back(threads);
        for (u64 number = 0; number < threads; number++)
            all.emplace_back([&call, &meeting, block, number, threads, deadline_ns] {
                CpuMachine machine{number, threads, meeting, nullptr};
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

struct chorale_plans {
    std::string error;
    Ports ports;

    int guarded(const std::function<void()>& work) {
        try {
            work();
            return PLANS_OK;
        } catch (const Unfinished& late) {
            error = late.what();
            return PLANS_TIMEOUT;
        } catch (const WrongPlan& wrong) {
            error = wrong.what();
            return PLANS_INVALID;
        } catch (const std::exception& other) {
            error = other.what();
            return PLANS_SYSTEM;
        }
    }
};

extern "C" {

chorale_plans* chorale_plans_new(void) { return new chorale_plans(); }
void chorale_plans_free(chorale_plans* plans) { delete plans; }
const char* chorale_plans_error(const chorale_plans* plans) { return plans->error.c_str(); }

int chorale_plan_check(chorale_plans* plans, const int64_t* words, size_t count, int rank, int ranks) {
    return plans->guarded([&] { check_plan(reinterpret_cast<const i64*>(words), count, rank, ranks); });
}

int chorale_plan_call(chorale_plans* plans, const void* binding, int threads, int64_t not_before_ns, int64_t* end_ns) {
    return plans->guarded([&] {
        const Binding& call = *static_cast<const Binding*>(binding);
        chorale::pause_until(not_before_ns);
        const int64_t deadline_ns = chorale::deadline_after(double(call.limit_ns) / 1e9);
        if (threads == 0)
            in_turns(call, plans->ports, deadline_ns);
        else
            at_once(call, u64(threads), deadline_ns);
        *end_ns = chorale::monotonic_ns();
    });
}

}  // extern "C"
