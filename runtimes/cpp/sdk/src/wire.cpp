// The wire form: see wire.hpp.
#include "wire.hpp"

#include <arrow/io/memory.h>
#include <arrow/ipc/dictionary.h>
#include <arrow/ipc/reader.h>
#include <arrow/ipc/writer.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <system_error>

#include "text.hpp"

namespace udo::detail {

namespace {

// Numbers are sent as they are in memory.
static_assert(std::endian::native == std::endian::little);
constexpr std::uint8_t ZEROS[8] = {};
// Tables smaller than this cost less in the message itself.
constexpr std::size_t LEAST_SHARED = 32 << 10;

std::size_t padding(std::size_t n) { return -n & 7; }

[[noreturn]] void failed(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

arrow::ipc::IpcWriteOptions writing() {
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    options.use_threads = false;
    return options;
}

// Ends this process at once; flushes its output.
[[noreturn]] void end(int status) {
    std::cout.flush();
    std::fflush(nullptr);
    ::_exit(status);
}

// The size of each table's message; TooLarge if they exceed the bound.
std::vector<std::size_t> bounded(const std::vector<std::pair<Table, Batch>>& tables, std::uint64_t bound) {
    std::vector<std::size_t> every;
    std::int64_t size = 0, events = 0, states = 0;
    std::uint64_t all = 0;
    for (const auto& [table, batch] : tables) {
        check(arrow::ipc::GetRecordBatchSize(*batch, writing(), &size));
        every.push_back(static_cast<std::size_t>(size));
        all += every.back() + padding(every.back());
        if (table == Table::ROWS) events = batch->num_rows();
        if (table == Table::STATES) states = batch->num_rows();
    }
    if (all > bound) throw TooLarge(events, states, all, bound);
    return every;
}

struct Part {
    Table table{};
    std::uint64_t bytes = 0;
    std::optional<std::uint64_t> shared_offset;
};

// Parses a message's header into `request`; returns the body's parts, in order.
std::vector<Part> head(std::string_view message, Request& request) {
    std::vector<Part> parts;
    protozero::pbf_reader fields(message.data(), message.size());
    while (fields.next()) {
        if (fields.tag() == 1) {
            request.id = fields.get_uint64();
        } else if (fields.tag() == 2) {
            Part found;
            auto part = fields.get_message();
            while (part.next()) {
                switch (part.tag()) {
                    case 1: found.table = static_cast<Table>(part.get_enum()); break;
                    case 2: found.bytes = part.get_uint64(); break;
                    case 3: found.shared_offset = part.get_uint64(); break;
                    default: part.skip();
                }
            }
            parts.push_back(found);
        } else if (fields.tag() <= static_cast<int>(Kind::FAILURE) && fields.wire_type() == protozero::pbf_wire_type::length_delimited) {
            request.kind = static_cast<Kind>(fields.tag());
            request.content = fields.get_string();
        } else {
            fields.skip();
        }
    }
    return parts;
}

}  // namespace

Shared::Shared() {
    const char* path = std::getenv("UDO_OPERATOR_SHARED");
    const int file = path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
    struct stat of {};
    if (file >= 0 && ::fstat(file, &of) == 0 && of.st_size > 0) {
        const auto size = static_cast<std::size_t>(of.st_size);
        void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            memory_ = static_cast<std::uint8_t*>(mapped);
            half_ = size / 2;
        }
    }
    if (file >= 0) ::close(file);
}

Shared::~Shared() {
    if (memory_) ::munmap(memory_, 2 * half_);
}

Buffer Shared::take(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > half_ || bytes > half_ - offset) throw std::runtime_error("a table lies outside of the shared memory");
    Buffer copy = check(arrow::AllocateBuffer(static_cast<std::int64_t>(bytes)));
    std::memcpy(copy->mutable_data(), memory_ + offset, bytes);
    return copy;
}

std::optional<std::uint64_t> Shared::put(const arrow::RecordBatch& table, std::size_t bytes, std::size_t& used) const {
    if (bytes < LEAST_SHARED || used > half_ || bytes > half_ - used) return std::nullopt;
    const auto at = half_ + used;
    const auto room = std::make_shared<arrow::MutableBuffer>(memory_ + at, static_cast<std::int64_t>(bytes));
    arrow::io::FixedSizeBufferWriter writer(room);
    check(arrow::ipc::SerializeRecordBatch(table, writing(), &writer));
    used += bytes + (-bytes & 63);
    return at;
}

Wire::Wire(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw std::invalid_argument("the path of the socket is too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size());
    if (socket_ < 0 || ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) failed(path.c_str());
}

Wire::~Wire() { ::close(socket_); }

// Reads this many bytes; false if the connection ends before.
bool Wire::read(std::uint8_t* into, std::size_t bytes) {
    while (bytes > 0) {
        const auto some = ::recv(socket_, into, bytes, 0);
        if (some < 0 && errno == EINTR) continue;
        if (some < 0 && errno != ECONNRESET) failed("reading from the engine");
        if (some <= 0) return false;
        into += some;
        bytes -= static_cast<std::size_t>(some);
    }
    return true;
}

std::optional<Request> Wire::receive() {
    std::uint32_t sizes[2];
    if (!read(reinterpret_cast<std::uint8_t*>(sizes), sizeof sizes)) return std::nullopt;
    const std::size_t before = sizes[0] + padding(sizes[0]);
    Buffer data = check(arrow::AllocateBuffer(static_cast<std::int64_t>(before + sizes[1])));
    if (!read(data->mutable_data(), before + sizes[1])) return std::nullopt;
    Request request;
    std::size_t at = 0;
    for (const auto& [table, bytes, shared_offset] : head({reinterpret_cast<const char*>(data->data()), sizes[0]}, request)) {
        if (shared_offset) {
            if (!shares_) throw std::runtime_error("a table in shared memory, which was not agreed on");
            request.tables[table] = shared_.take(*shared_offset, bytes);
            continue;
        }
        if (at > sizes[1] || bytes > sizes[1] - at) throw std::runtime_error("a table lies outside of the body");
        request.tables[table] = arrow::SliceBuffer(data, static_cast<std::int64_t>(before + at), static_cast<std::int64_t>(bytes));
        at += bytes + padding(bytes);
    }
    return request;
}

void Wire::send(std::uint64_t id, Kind kind, std::string_view content, const std::vector<std::pair<Table, Batch>>& tables) {
    if (forked()) end(kind == Kind::FAILURE ? EXIT_FAILURE : EXIT_SUCCESS);
    std::string head;
    std::vector<iovec> pieces(2);
    std::size_t body = 0, shared = 0;
    const auto add = [&pieces](const void* data, std::size_t bytes) { pieces.push_back({const_cast<void*>(data), bytes}); };
    protozero::pbf_writer message(head);
    message.add_uint64(1, id);
    std::vector<Buffer> sent;
    const auto every = bounded(tables, bound);
    auto next = every.begin();
    for (const auto& [table, batch] : tables) {
        const auto bytes = *next++;
        protozero::pbf_writer part(message, 2);
        part.add_enum(1, static_cast<int>(table));
        part.add_uint64(2, bytes);
        if (const auto at = shares_ ? shared_.put(*batch, bytes, shared) : std::nullopt) {
            part.add_uint64(3, *at);
            continue;
        }
        sent.push_back(check(arrow::ipc::SerializeRecordBatch(*batch, writing())));
        add(sent.back()->data(), bytes);
        add(ZEROS, padding(bytes));
        body += bytes + padding(bytes);
    }
    message.add_message(static_cast<protozero::pbf_tag_type>(kind), content.data(), content.size());
    std::uint32_t sizes[2] = {static_cast<std::uint32_t>(head.size()), static_cast<std::uint32_t>(body)};
    head.append(padding(head.size()), '\0');
    pieces[0] = {sizes, sizeof sizes};
    pieces[1] = {head.data(), head.size()};

    const std::lock_guard guard(lock_);
    std::span<iovec> left(pieces);
    while (!left.empty()) {
        if (left.front().iov_len == 0) {
            left = left.subspan(1);
            continue;
        }
        msghdr all{};
        all.msg_iov = left.data();
        all.msg_iovlen = left.size();
        auto sent = ::sendmsg(socket_, &all, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) failed("writing to the engine");
        for (auto& piece : left) {
            const auto taken = std::min(piece.iov_len, static_cast<std::size_t>(sent));
            piece.iov_base = static_cast<std::uint8_t*>(piece.iov_base) + taken;
            piece.iov_len -= taken;
            sent -= static_cast<ssize_t>(taken);
        }
    }
}

std::shared_ptr<arrow::Schema> schema_of(const std::string& message) {
    arrow::io::BufferReader reader(arrow::Buffer::FromString(message));
    arrow::ipc::DictionaryMemo memo;
    return check(arrow::ipc::ReadSchema(&reader, &memo));
}

Batch decode(const Request& request, Table table, const std::shared_ptr<arrow::Schema>& schema) {
    const auto found = request.tables.find(table);
    if (found == request.tables.end()) return check(arrow::RecordBatch::MakeEmpty(schema));
    arrow::io::BufferReader reader(found->second);
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;
    return check(arrow::ipc::ReadRecordBatch(schema, nullptr, options, &reader));
}

}  // namespace udo::detail

namespace udo {

void Log::send(int level, std::string_view line) const {
    if (wire_.forked()) {
        std::cerr << line << std::endl;
        return;
    }
    std::string content;
    protozero::pbf_writer log(content);
    log.add_enum(1, level);
    log.add_string(2, detail::told(line, detail::MOST_LINE));
    wire_.send(0, detail::Kind::LOG, content);
}

}  // namespace udo
