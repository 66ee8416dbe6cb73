// Functions that register the kernels of each file in the extension module.
#pragma once

#include "binding.hpp"

namespace chorale {

void bind_alltoall(nanobind::module_&);
void bind_bfb(nanobind::module_&);
void bind_bounds(nanobind::module_&);
void bind_finder(nanobind::module_&);
void bind_forest(nanobind::module_&);
void bind_lowering(nanobind::module_&);
void bind_programs(nanobind::module_&);
void bind_rails(nanobind::module_&);
void bind_simulation(nanobind::module_&);
void bind_splitting(nanobind::module_&);
void bind_topology(nanobind::module_&);
void bind_trees(nanobind::module_&);
void bind_verify(nanobind::module_&);

}  // namespace chorale
