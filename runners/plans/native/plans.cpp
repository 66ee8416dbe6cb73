#include <functional>
#include <map>
#include <memory>
#include <string>

#include "chorale_plans.h"
#include "element_types.hpp"
#include "engine_clock.hpp"
#include "plan_executor.hpp"

using chorale::plans::decode_plan;
using chorale::plans::PlanExecutor;
using chorale::plans::PlanMemory;
using chorale::plans::PlanOfRank;
using chorale::plans::Ports;
using chorale::plans::Unfinished;
using chorale::plans::WrongPlan;

namespace {

struct Loaded {
    PlanOfRank plan;
    std::unique_ptr<PlanExecutor> executor;
};

}  // namespace

struct chorale_plans {
    size_t rank, ranks;
    std::string error, blocked;
    std::map<int64_t, Loaded> loaded;
    Ports ports;
    int64_t next = 0;

    Loaded& of(int64_t number) {
        const auto found = loaded.find(number);
        if (found == loaded.end()) throw WrongPlan("there is no plan of that number");
        return found->second;
    }

    int guarded(const std::function<void()>& work) {
        blocked.clear();
        try {
            work();
            return PLANS_OK;
        } catch (const Unfinished& late) {
            error = late.what();
            blocked = late.blocked;
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

chorale_plans* chorale_plans_new(int rank, int ranks) {
    if (rank < 0 || rank >= ranks) return nullptr;
    auto* plans = new chorale_plans();
    plans->rank = static_cast<size_t>(rank);
    plans->ranks = static_cast<size_t>(ranks);
    return plans;
}

void chorale_plans_free(chorale_plans* plans) { delete plans; }

const char* chorale_plans_error(const chorale_plans* plans) { return plans->error.c_str(); }
const char* chorale_plans_blocked(const chorale_plans* plans) { return plans->blocked.c_str(); }

int64_t chorale_plan_load(chorale_plans* plans, const int64_t* words, size_t count) {
    const int status = plans->guarded(
        [&] { plans->loaded[plans->next].plan = decode_plan(words, count, plans->rank, plans->ranks); });
    return status == PLANS_OK ? plans->next++ : -1;
}

int chorale_plan_shape(chorale_plans* plans, int64_t plan, size_t piece_bytes, size_t* bytes, size_t* data) {
    return plans->guarded([&] {
        const PlanMemory memory(plans->of(plan).plan, piece_bytes, nullptr);
        *bytes = memory.bytes_of_a_rank();
        *data = memory.data_offset();
    });
}

int chorale_plan_bind(chorale_plans* plans, int64_t plan, void* memory, size_t piece_bytes, int type) {
    return plans->guarded([&] {
        Loaded& loaded = plans->of(plan);
        const size_t element = chorale::element_size(type);
        if (element == 0 || piece_bytes == 0 || piece_bytes % 8 != 0 || piece_bytes % element != 0)
            throw WrongPlan("pieces of chunks must be whole elements and multiples of 8 bytes");
        const PlanMemory shared(loaded.plan, piece_bytes, memory);
        loaded.executor = std::make_unique<PlanExecutor>(loaded.plan, shared, type, plans->ports);
    });
}

int chorale_plan_execute(chorale_plans* plans, int64_t plan, double limit_s, int64_t not_before_ns, int64_t* end_ns) {
    return plans->guarded([&] {
        Loaded& loaded = plans->of(plan);
        if (!loaded.executor) throw WrongPlan("a plan must be bound to memory before it is executed");
        chorale::pause_until(not_before_ns);
        loaded.executor->call(chorale::deadline_after(limit_s));
        *end_ns = chorale::monotonic_ns();
    });
}

}  // extern "C"
