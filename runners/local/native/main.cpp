// The emulated network: a process that carries the bytes of all ranks over links that take their time.
//
// Usage: chorale_network FD NAME; FD is the control socket, see control.hpp, and NAME the abstract name of the socket
// that ranks connect to. It ends when the control socket is closed.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>

#include "control.hpp"
#include "engine_clock.hpp"

namespace {

void allow_many_sockets() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void serve(int control_fd, const std::string& name) {
    using namespace chorale;
    Watch watch;
    Network network(watch);
    Reception reception("unix:" + name, watch, network);
    const Control control(control_fd, watch, network, reception);
    Control::say(control_fd, "ready");
    while (!control.is_closed()) {
        const auto& events = watch.wait(std::min(network.next_ns(), reception.next_ns()));
        network.pump(monotonic_ns());  // first, so that what comes now does not look older than what was there
        for (const Watch::Event& event : events) event.watched->woken(event.has_hung_up);
        reception.settle();
        network.settle();
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const int control_fd = std::atoi(arguments[1]);
    prctl(PR_SET_TIMERSLACK, 1);
    allow_many_sockets();
    try {
        serve(control_fd, arguments[2]);
    } catch (const std::exception& error) {
        chorale::Control::say(control_fd, std::string("error ") + error.what());
        return 1;
    }
    return 0;
}
