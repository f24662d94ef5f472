#pragma once
// The ZAP handler: libzmq asks it, over inproc, once per handshake, whether a key may come in and who it is.
//
//   request:  version, id, domain, address, routing id, "CURVE", the 32 bytes of the key
//   reply:    version, id, status, text, user id (the principal's row), metadata
//
// Thread rule: one thread of its own, ended by zmq_ctx_shutdown. Source: RFC 27/ZAP.

#include <string>
#include <thread>

#include "base/wire/wire.h"

namespace gangline {

class ZapHandler {
  public:
    // Binds before it returns, so that no server socket can be bound without an answer. Null on failure.
    static std::unique_ptr<ZapHandler> start(void* context, const KeyTable& table);
    ~ZapHandler();  // after zmq_ctx_shutdown

  private:
    ZapHandler(void* socket, const KeyTable& table);
    void serve();
    bool answer_one();

    void* socket_;
    const KeyTable& table_;
    std::thread thread_;
};

// The ZAP domain that stands for who may come in; never empty (an empty one is not enforced).
const char* domain_of(Admits admits);

}  // namespace gangline
