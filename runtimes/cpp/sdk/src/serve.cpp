// The conversation with the engine: one request at a time, each answered once.
#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "keyed.hpp"
#include "rows.hpp"
#include "text.hpp"
#include "trace.hpp"
#include "wire.hpp"

namespace udo {

using namespace detail;

Context::Context(Wire& wire, std::shared_ptr<arrow::Schema> in, std::shared_ptr<arrow::Schema> out, std::uint64_t bound)
    : input(std::move(in)), output(std::move(out)), log(wire), rows_(std::make_unique<Rows>(output, bound)) {}
Context::~Context() = default;

void Context::emit(std::span<const Field> row) { rows_->push(row); }

namespace detail {

namespace {

constexpr std::uint32_t PROTOCOL_VERSION = 1;
constexpr const char* SDK = "cpp 0.1.0";
using Tables = std::vector<std::pair<Table, Batch>>;

Timestamp at_us(std::int64_t us) { return Timestamp(std::chrono::microseconds(us)); }

// The field `watermark_us`, which has tag 1 in Data and in Timers.
std::optional<Timestamp> watermark_of(const std::string& content) {
    protozero::pbf_reader fields(content);
    return fields.next(1) ? std::optional(at_us(fields.get_sint64())) : std::nullopt;
}

// The columns of a batch as they are, whatever its schema says of them.
std::string columns_of(const arrow::RecordBatch& batch) {
    std::string text;
    const auto& fields = batch.schema()->fields();
    const auto& columns = batch.column_data();
    for (std::size_t n = 0; n < std::max(fields.size(), columns.size()); n++) {
        text += (n > 0 ? "\n" : "") + (n < fields.size() ? fields[n]->name() : std::string("(no name)")) + ": ";
        text += n < columns.size() ? columns[n]->type->ToString() : "(no column)";
        if (n < columns.size() && columns[n]->length != batch.num_rows()) {
            text += " of " + std::to_string(columns[n]->length) + " rows in a batch of " + std::to_string(batch.num_rows());
        }
    }
    return text;
}

}  // namespace

class Server {
  public:
    Server(Operator& op, const char* path)
        : op_(op),
          batches_(dynamic_cast<Batches*>(&op)),
          events_(dynamic_cast<Events*>(&op)),
          keyed_(dynamic_cast<Keyed*>(&op)),
          keyed_batches_(dynamic_cast<KeyedBatches*>(&op)),
          timed_(dynamic_cast<Timed*>(&op)),
          migrating_(dynamic_cast<Migrating*>(&op)),
          wire_(path) {}

    void serve() {
        hello();
        for (bool going = true; going;) {
            const auto request = wire_.receive();
            if (!request) return;  // the engine is gone, so this process ends
            going = request->kind != Kind::STOP;
            row_.reset();
            forget_trace();
            try {
                answer(*request);
            } catch (const SchemaError& e) {
                fail(request->id, typeid(e), e.what(), "schema");
            } catch (const std::exception& e) {
                fail(request->id, typeid(e), e.what(), "");
            } catch (...) {
                fail(request->id, *abi::__cxa_current_exception_type(), "something that is no std::exception was thrown", "");
            }
        }
    }

  private:
    void hello() {
        std::string content;
        protozero::pbf_writer fields(content);
        fields.add_uint32(1, PROTOCOL_VERSION);
        fields.add_uint32(2, PROTOCOL_VERSION);
        if (keyed_ || keyed_batches_) fields.add_string(3, "keyed");
        if (timed_) fields.add_string(3, "timers");
        if (migrating_) fields.add_string(3, "migrate");
        fields.add_string(3, "rehearse");
        if (wire_.can_share()) fields.add_string(3, "shared-memory");
        fields.add_string(4, SDK);
        wire_.send(0, Kind::HELLO, content);
    }

    void answer(const Request& request) {
        switch (request.kind) {
            case Kind::START: return wire_.send(request.id, Kind::READY, start(request.content));
            case Kind::PING: return wire_.send(request.id, Kind::PING, {});
            case Kind::STOP: op_.close(); return wire_.send(request.id, Kind::BYE, {});
            case Kind::DATA:
            case Kind::REHEARSE: return send(request.id, data(request));
            case Kind::TIMERS: return send(request.id, timers(request));
            case Kind::MIGRATE: return send(request.id, migrate(request));
            default: throw std::runtime_error(std::string("this SDK (") + SDK + ") does not know the request");
        }
    }

    void send(std::uint64_t id, const Tables& answer) {
        row_.reset();
        wire_.send(id, Kind::ANSWER, {}, answer);
    }

    void fail(std::uint64_t id, const std::type_info& type, const char* message, const char* code) {
        const auto name = told(demangled(type.name()), MOST_MESSAGE), thrown = told(trace(), MOST_TRACE);
        if (wire_.forked()) std::cerr << name << ": " << message << '\n' << thrown;
        std::string content;
        protozero::pbf_writer fields(content);
        fields.add_string(1, name);
        fields.add_string(2, told(message, MOST_MESSAGE));
        fields.add_string(3, thrown);
        if (row_) fields.add_uint32(4, static_cast<std::uint32_t>(*row_));
        fields.add_string(5, code);
        if (ctx_) ctx_->rows_ = std::make_unique<Rows>(ctx_->output, wire_.bound);  // drops the rows emitted so far
        wire_.send(id, Kind::FAILURE, content);
    }

    std::string start(const std::string& content) {
        std::string name, version, instance, input, output;
        std::uint64_t told = 0;
        bool check_only = false, is_keyed = false;
        protozero::pbf_reader fields(content);
        while (fields.next()) {
            switch (fields.tag()) {
                case 2: name = fields.get_string(); break;
                case 3: version = fields.get_string(); break;
                case 4: instance = fields.get_string(); break;
                case 5: input = fields.get_string(); break;
                case 6: output = fields.get_string(); break;
                case 7:
                    if (fields.get_string() == "shared-memory") wire_.share();
                    break;
                case 8:
                    is_keyed = true;
                    fields.skip();
                    break;
                case 9: told = fields.get_uint64(); break;
                case 10: check_only = fields.get_bool(); break;
                default: fields.skip();
            }
        }
        if (!is_keyed && (keyed_ || keyed_batches_)) {
            throw SchemaError(
                "the operator keeps state by key, and operator.toml names no key: add key = [\"COLUMN\", ...], the columns that make it up");
        }
        wire_.bound = told ? std::min(told, MOST_BODY_BYTES) : MOST_BODY_BYTES;
        ctx_.emplace(wire_, schema_of(input), schema_of(output), wire_.bound);
        ctx_->name = std::move(name);
        ctx_->version = std::move(version);
        ctx_->instance = std::move(instance);
        if (const char* directory = std::getenv("UDO_DIRECTORY")) ctx_->directory = directory;
        for (int n = 0; n < ctx_->input->num_fields(); n++) columns_[ctx_->input->field(n)->name()] = n;
        const auto begun = std::chrono::steady_clock::now();
        if (!check_only) op_.open(*ctx_);
        std::string ready;
        const std::chrono::duration<double, std::milli> open_ms = std::chrono::steady_clock::now() - begun;
        protozero::pbf_writer(ready).add_double(1, open_ms.count());
        return ready;
    }

    Context& started() {
        if (!ctx_) throw std::runtime_error("a request came before Start");
        return *ctx_;
    }

    Tables data(const Request& request) {
        Context& ctx = started();
        const auto batch = decode(request, Table::EVENTS, ctx.input);
        ctx.watermark = watermark_of(request.content);
        if (batches_) return whole(batches_->process(batch, ctx));
        Event event(*batch, columns_);
        if (events_) {
            for (event.row = 0; event.row < batch->num_rows(); event.row++) {
                row_ = event.row;
                events_->process(event, ctx);
            }
            return emitted();
        }
        Batch sent;
        Keys keys = KeyTables::touched(request, sent);
        if (keyed_batches_) return with(whole(keyed_batches_->process(batch, keys, ctx)), keys);
        for (event.row = 0; event.row < batch->num_rows(); event.row++) {
            row_ = event.row;
            keyed_->process(event, keys[keys.rows.at(static_cast<std::size_t>(event.row))], ctx);
        }
        return with(emitted(), keys);
    }

    Tables timers(const Request& request) {
        if (!timed_) throw std::runtime_error("this operator is no udo::Timed");
        Context& ctx = started();
        ctx.watermark = watermark_of(request.content).value_or(Timestamp());
        Batch sent;
        Keys keys = KeyTables::touched(request, sent);
        const auto due = KeyTables::due(request);
        const auto numbers = KeyTables::numbers(*due, keys.size());
        const auto& at = static_cast<const arrow::Int64Array&>(*due->column(1));
        for (std::size_t n = 0; n < numbers.size(); n++) {
            row_ = static_cast<std::int64_t>(n);
            timed_->on_timer(at_us(at.Value(*row_)), keys[numbers[n]], ctx);
        }
        return with(emitted(), keys);
    }

    Tables migrate(const Request& request) {
        if (!migrating_) throw std::runtime_error("this operator is no udo::Migrating");
        protozero::pbf_reader fields(request.content);
        const auto from = fields.next(1) ? fields.get_uint32() : 0;
        Batch sent;
        Keys keys = KeyTables::touched(request, sent);
        for (std::size_t n = 0; n < keys.size(); n++) {
            row_ = static_cast<std::int64_t>(n);
            keys[n].set_state(migrating_->migrate(keys[n].state().value_or(json::object()), from));
        }
        return KeyTables::changes(keys, true);
    }

    Tables emitted() { return {{Table::ROWS, ctx_->rows_->take()}}; }

    // The table of an answer made by the operator itself.
    Tables whole(const Batch& answer) {
        if (!answer) return {};
        const auto &have = answer->schema()->fields(), &want = ctx_->output->fields();
        const auto& columns = answer->column_data();  // a batch may be made with a schema that names other types than its columns have
        bool fits = have.size() == want.size() && columns.size() == want.size();
        for (std::size_t n = 0; fits && n < want.size(); n++) {
            const auto& column = *columns[n];
            fits = have[n]->name() == want[n]->name() && column.type->Equals(*want[n]->type()) && column.length == answer->num_rows();
        }
        if (!fits) {
            throw SchemaError("the operator's answer does not fit its output schema: expected " + ctx_->output->ToString() + ", got " +
                              columns_of(*answer));
        }
        return {{Table::ROWS, answer}};
    }

    static Tables with(Tables tables, const Keys& keys) {
        auto more = KeyTables::changes(keys, false);
        std::move(more.begin(), more.end(), std::back_inserter(tables));
        return tables;
    }

    Operator& op_;
    Batches* batches_;
    Events* events_;
    Keyed* keyed_;
    KeyedBatches* keyed_batches_;
    Timed* timed_;
    Migrating* migrating_;
    Wire wire_;
    std::optional<Context> ctx_;
    Event::Columns columns_;
    std::optional<std::int64_t> row_;  // the row being processed; none: not row by row
};

// The signals that do not end this process: the engine says when to stop.
sigset_t outlived() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    return signals;
}

thread_local sigset_t mask;  // while this thread forks

// They are caught rather than ignored, since programs that the operator starts would inherit ignored signals. A process that it
// forks handles them as usual; none that arrives during the fork is lost.
void outlive_signals() {
    struct sigaction caught = {};
    caught.sa_handler = [](int) {};
    caught.sa_flags = SA_RESTART;
    sigaction(SIGINT, &caught, nullptr);
    sigaction(SIGTERM, &caught, nullptr);
    const auto before = [] {
        const sigset_t held = outlived();
        pthread_sigmask(SIG_BLOCK, &held, &mask);
    };
    const auto in_parent = [] { pthread_sigmask(SIG_SETMASK, &mask, nullptr); };
    const auto in_child = [] {
        std::signal(SIGINT, SIG_DFL);
        std::signal(SIGTERM, SIG_DFL);
        pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    };
    pthread_atfork(before, in_parent, in_child);
}

}  // namespace detail

int run(Operator& op) {
    const char* path = std::getenv("UDO_OPERATOR_SOCKET");
    if (!path) {
        std::cerr << "this program is an operator: try it with `udo test DIR` (UDO_OPERATOR_SOCKET is not set)\n";
        return 2;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a line arrives when it is printed, also if the process is killed then
    detail::outlive_signals();
    try {
        detail::Server(op, path).serve();
    } catch (const std::exception& e) {
        std::cerr << "operator: " << e.what() << '\n';
        return 1;
    }
    return 0;
}

}  // namespace udo
