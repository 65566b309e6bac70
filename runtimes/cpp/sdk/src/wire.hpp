// The wire form (docs/operator-protocol.md): u32 header, u32 body, Protobuf header, padding to 8, Arrow record batch messages.
#pragma once

#include <arrow/buffer.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <udo/operator.hpp>

#include "size.hpp"

namespace udo::detail {

// Numbers from udo_protocol/proto/operator.proto: the fields of the oneof in Message, and Part.Table.
enum class Kind { NONE = 0, HELLO = 3, START, READY, DATA, TIMERS, ANSWER, MIGRATE, REHEARSE, PING, STOP, BYE, LOG, FAILURE };
enum class Table { EVENTS = 1, ROWS, INDEX, KEYS, STATES, SET, DUE };

using Buffer = std::shared_ptr<arrow::Buffer>;

struct Request {
    std::uint64_t id = 0;
    Kind kind = Kind::NONE;  // an unknown one counts as NONE
    std::string content;     // the message of this kind, still in Protobuf form
    std::map<Table, Buffer> tables;
};

// The memory offered by the engine in UDO_OPERATOR_SHARED: its first half holds tables of requests, the second those of replies.
class Shared {
  public:
    Shared();
    ~Shared();
    Shared(const Shared&) = delete;
    bool there() const { return memory_ != nullptr; }
    // Copies a table of a request: the engine overwrites it with the next one.
    Buffer take(std::uint64_t offset, std::uint64_t bytes) const;
    // Writes a table at `used` bytes from the start of its half; returns its offset. None if it is too small, or there is no room.
    std::optional<std::uint64_t> put(const arrow::RecordBatch& table, std::size_t bytes, std::size_t& used) const;

  private:
    std::uint8_t* memory_ = nullptr;
    std::size_t half_ = 0;
};

class Wire {
  public:
    explicit Wire(const std::string& path);
    ~Wire();
    // Whether the engine has offered shared memory; share() uses it from now on.
    bool can_share() const { return shared_.there(); }
    void share() { shares_ = shared_.there(); }
    // The next request; none when the engine is gone.
    std::optional<Request> receive();
    // Whether this is a process that the operator has forked: the connection is its parent's.
    bool forked() const { return ::getpid() != owner_; }
    // Sends a message: its content in Protobuf form, and its tables. TooLarge, and nothing is sent, if these exceed the bound. A forked
    // process ends here instead, where it would answer its parent's request.
    void send(std::uint64_t id, Kind kind, std::string_view content, const std::vector<std::pair<Table, Batch>>& tables = {});

    std::uint64_t bound = MOST_BODY_BYTES;  // of a message's tables in bytes, in the body or in shared memory

  private:
    bool read(std::uint8_t* into, std::size_t bytes);

    int socket_;
    pid_t owner_ = ::getpid();
    Shared shared_;
    bool shares_ = false;
    std::mutex lock_;  // any thread of an operator may log
};

// The schema in an Arrow schema message.
std::shared_ptr<arrow::Schema> schema_of(const std::string& message);
// The table of this kind; an absent one is empty.
Batch decode(const Request& request, Table table, const std::shared_ptr<arrow::Schema>& schema);

}  // namespace udo::detail
