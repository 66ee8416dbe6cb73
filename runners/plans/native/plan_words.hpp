// The check of a plan before it is executed: whatever the words contain, nothing outside its memory is touched.
#pragma once

#include <cstddef>
#include <stdexcept>

#include "plan_core.hpp"

namespace chorale::plans {

struct WrongPlan : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Throws WrongPlan.
void check_plan(const i64* words, size_t count, i64 rank, i64 ranks);

}  // namespace chorale::plans
