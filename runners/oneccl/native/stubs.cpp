// Symbols that oneCCL's static archive refers to, but that a run on CPUs does not need: hooks of a profiler, two
// functions of a compiler's library, and hwloc, whose stub reports that it cannot start.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

extern "C" {

void* _intel_fast_memcpy(void* target, const void* source, size_t size) { return std::memcpy(target, source, size); }
void* _intel_fast_memset(void* target, int byte, size_t size) { return std::memset(target, byte, size); }

int hwloc_topology_init() { return -1; }

#define NEVER_CALLED(name) \
    void name() { std::abort(); }

NEVER_CALLED(hwloc_alloc_membind)
NEVER_CALLED(hwloc_bitmap_alloc)
NEVER_CALLED(hwloc_bitmap_and)
NEVER_CALLED(hwloc_bitmap_first)
NEVER_CALLED(hwloc_bitmap_free)
NEVER_CALLED(hwloc_bitmap_isincluded)
NEVER_CALLED(hwloc_bitmap_isset)
NEVER_CALLED(hwloc_bitmap_iszero)
NEVER_CALLED(hwloc_bitmap_next)
NEVER_CALLED(hwloc_bitmap_only)
NEVER_CALLED(hwloc_bitmap_taskset_snprintf)
NEVER_CALLED(hwloc_bitmap_weight)
NEVER_CALLED(hwloc_bitmap_zero)
NEVER_CALLED(hwloc_free)
NEVER_CALLED(hwloc_get_area_membind)
NEVER_CALLED(hwloc_get_obj_by_depth)
NEVER_CALLED(hwloc_get_proc_cpubind)
NEVER_CALLED(hwloc_get_type_depth)
NEVER_CALLED(hwloc_memattr_get_value)
NEVER_CALLED(hwloc_obj_attr_snprintf)
NEVER_CALLED(hwloc_obj_type_snprintf)
NEVER_CALLED(hwloc_obj_type_string)
NEVER_CALLED(hwloc_set_membind)
NEVER_CALLED(hwloc_topology_destroy)
NEVER_CALLED(hwloc_topology_get_support)
NEVER_CALLED(hwloc_topology_load)
NEVER_CALLED(hwloc_topology_set_io_types_filter)

#define NO_HOOK(name) void* name = nullptr;

NO_HOOK(__itt_domain_create_ptr__3_0)
NO_HOOK(__itt_event_create_ptr__3_0)
NO_HOOK(__itt_event_end_ptr__3_0)
NO_HOOK(__itt_event_start_ptr__3_0)
NO_HOOK(__itt_metadata_add_ptr__3_0)
NO_HOOK(__itt_string_handle_create_ptr__3_0)
NO_HOOK(__itt_task_begin_ptr__3_0)
NO_HOOK(__itt_task_end_ptr__3_0)
NO_HOOK(__itt_thread_set_name_ptr__3_0)

// Sets TCP_NODELAY on all sockets: oneCCL's key-value store writes each request in small pieces and waits for the
// answer, which would take 40 ms each time. Linked with --wrap=socket; accepted sockets inherit the option.
int __real_socket(int domain, int type, int protocol);

int __wrap_socket(int domain, int type, int protocol) {
    const int one = 1;
    const int made = __real_socket(domain, type, protocol);
    if (made >= 0 && (type & SOCK_STREAM) != 0) setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return made;
}

}  // extern "C"
