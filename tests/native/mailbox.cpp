// The transport of mailbox.hpp as a library, for tests in Python.
#include "mailbox.hpp"

extern "C" {

Mailbox* mailbox_new(int ranks, int waits_for_receivers) { return new Mailbox(ranks, waits_for_receivers != 0); }
int mailbox_open_requests(Mailbox* box) { return static_cast<int>(box->open_requests()); }
void mailbox_free(Mailbox* box) { delete box; }
void mailbox_messages(Mailbox* box, int rank, chorale_messages* messages) { *messages = box->of(rank); }
}
