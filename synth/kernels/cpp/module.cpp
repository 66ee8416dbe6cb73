#include "modules.hpp"

NB_MODULE(native, module) {
    using namespace chorale;
    for (const auto bind : {bind_alltoall, bind_bfb, bind_bounds, bind_finder, bind_forest, bind_lowering,
                            bind_programs, bind_rails, bind_simulation, bind_splitting, bind_topology, bind_trees, bind_verify})
        bind(module);
    module.attr("SOURCES") = CHORALE_SOURCES;
}
