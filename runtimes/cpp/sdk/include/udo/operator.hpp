// The C++ SDK for operators of udo-spark: a class derived from one of these, which main hands to udo::run.
//
//   udo::Batches       vectorised: an Arrow record batch in, one out
//   udo::Events        event by event
//   udo::Keyed         event by event, with the state of the event's key
//   udo::KeyedBatches  the same, vectorised
//
// and, as needed, also from udo::Timed and udo::Migrating. An exception fails the current frame with a stack trace; the process goes on.
// Batches, events and keys are valid until the method returns.
#pragma once

#include <arrow/array.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/type.h>

#include <concepts>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <udo/state.hpp>

namespace udo {

using Batch = std::shared_ptr<arrow::RecordBatch>;

// An answer does not fit the output schema.
struct SchemaError : std::runtime_error {
    using runtime_error::runtime_error;
};

// Returns the value of an Arrow result; throws if it is an error.
inline void check(const arrow::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <class T>
T check(arrow::Result<T> result) {
    check(result.status());
    return std::move(result).ValueUnsafe();
}

// A column's value in one event, of any type, to use in an answer.
struct Cell {
    std::shared_ptr<arrow::Array> column;
    std::int64_t row;
};

// A value in an answer: nullptr, bool, an integer, a floating point number, text, Timestamp, Decimal, Cell, or an optional of these.
class Value {
  public:
    using Data = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Timestamp, Decimal, Cell>;

    template <class T>
        requires std::constructible_from<Data, T> && (!std::same_as<std::remove_cvref_t<T>, Value>)
    Value(T&& value) : data(std::forward<T>(value)) {}
    Value(std::string_view text) : data(std::string(text)) {}
    template <class T>
    Value(const std::optional<T>& value) : data(value ? Value(*value).data : Data(nullptr)) {}

    Data data;
};

// A column's name and its value.
using Field = std::pair<std::string_view, Value>;

// One event. Its methods take a column's name; if there is no such column, or it has another type, they throw and name what there is.
class Event {
  public:
    using Columns = std::map<std::string, int, std::less<>>;
    Event(const arrow::RecordBatch& batch, const Columns& columns) : batch_(batch), columns_(columns) {}

    // A column's value: std::int64_t (an integer column of any width), double, bool, std::string_view, Timestamp (taken as UTC if it has no
    // zone), or a std::optional of these where it may be null. std::out_of_range for an integer or a time beyond that type.
    template <class T>
    T get(std::string_view name) const;
    // The value of any column, to use in an answer.
    Value value(std::string_view name) const { return Cell{at(name), row}; }
    bool is_null(std::string_view name) const { return at(name)->IsNull(row); }

    std::int64_t row = 0;

  private:
    const std::shared_ptr<arrow::Array>& at(std::string_view name) const;

    const arrow::RecordBatch& batch_;
    const Columns& columns_;
};

namespace detail {

class KeyTables;
class Rows;
class Server;
class Wire;

template <class T>
T read(const arrow::Array& column, std::int64_t row, std::string_view name);
template <>
std::int64_t read(const arrow::Array& column, std::int64_t row, std::string_view name);
template <>
double read(const arrow::Array& column, std::int64_t row, std::string_view name);
template <>
bool read(const arrow::Array& column, std::int64_t row, std::string_view name);
template <>
std::string_view read(const arrow::Array& column, std::int64_t row, std::string_view name);
template <>
Timestamp read(const arrow::Array& column, std::int64_t row, std::string_view name);
[[noreturn]] void unexpected_null(std::string_view name);

template <class T>
struct Optional : std::false_type {};
template <class T>
struct Optional<std::optional<T>> : std::true_type {};

}  // namespace detail

template <class T>
T Event::get(std::string_view name) const {
    const auto& column = at(name);
    if constexpr (detail::Optional<T>::value) {
        if (column->IsNull(row)) return std::nullopt;
        return detail::read<typename T::value_type>(*column, row, name);
    } else {
        if (column->IsNull(row)) detail::unexpected_null(name);
        return detail::read<T>(*column, row, name);
    }
}

// The operator's log, shown by `udo logs`. Any thread may log.
class Log {
  public:
    explicit Log(detail::Wire& wire) : wire_(wire) {}
    void debug(std::string_view line) const { send(1, line); }
    void info(std::string_view line) const { send(2, line); }
    void warning(std::string_view line) const { send(3, line); }
    void error(std::string_view line) const { send(4, line); }

  private:
    void send(int level, std::string_view line) const;

    detail::Wire& wire_;
};

// The operator's context. Environment values and secrets are in the process's environment.
class Context {
  public:
    Context(detail::Wire& wire, std::shared_ptr<arrow::Schema> input, std::shared_ptr<arrow::Schema> output, std::uint64_t bound);
    ~Context();

    std::string name, version, instance;
    std::shared_ptr<arrow::Schema> input, output;
    std::filesystem::path directory;     // of the files given at deployment
    std::optional<Timestamp> watermark;  // the event time up to which all events have been seen; none until it is known
    Log log;

    // Answers an event: a value for each of the manifest's output columns. SchemaError, and no answer, if one does not fit its column: text
    // must be UTF-8, and an integer for a column of floating point numbers at most 2^53.
    void emit(std::span<const Field> row);
    void emit(std::initializer_list<Field> row) { emit(std::span(row.begin(), row.size())); }

  private:
    friend class detail::Server;
    std::unique_ptr<detail::Rows> rows_;
};

// The key of an event: its state and its timers.
class Key {
  public:
    // The value of the key column, or an array of the values of several.
    json value() const { return unpack(packed_); }

    // The key's state; none if it has none. std::out_of_range, which names the entry, for a number that T cannot hold.
    template <class T = json>
    std::optional<T> state() const {
        if (!state_) return std::nullopt;
        const json found = unpack(*state_);
        try {
            return found.get<T>();
        } catch (const detail::Beyond& e) {
            detail::refuse(found, e);
        }
    }
    // Replaces the key's state. std::invalid_argument if it is not an object, or has text that is not UTF-8.
    template <class T>
    void set_state(const T& state) {
        set(json(state));
    }
    // Drops the key's state and its expiry.
    void clear() { state_.reset(), expires_.reset(), changed_ = true; }
    // Sets a timer: on_timer is called for this key at the end of the first epoch whose watermark has reached `at`; once for equal times.
    // std::out_of_range beyond the years 1 to 9999, as for expire.
    void timer(Timestamp at);
    // Drops the key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces it.
    void expire(Timestamp at);

  private:
    friend class detail::KeyTables;
    void set(const json& state);

    std::string_view packed_;
    std::optional<std::string> state_;
    std::optional<Timestamp> expires_;
    bool changed_ = false;
    std::vector<Timestamp> timers_;
};

// The keys of a batch, each once; keys[n] for n = rows[i] is the key of row i.
struct Keys : std::vector<Key> {
    std::vector<std::size_t> rows;
};

class Operator {
  public:
    virtual ~Operator() = default;
    // Loads what the operator needs, once per process.
    virtual void open(const Context&) {}
    // Called once when the process ends normally.
    virtual void close() {}
};

// A vectorised operator. The answer has the manifest's output columns and any number of rows; nullptr answers none.
class Batches : public Operator {
  public:
    virtual Batch process(const Batch& batch, Context& ctx) = 0;
};

// An operator that works event by event and answers each by calling ctx.emit any number of times.
class Events : public Operator {
  public:
    virtual void process(const Event& event, Context& ctx) = 0;
};

// A keyed operator that works event by event, in order within each key, with the state of the event's key.
class Keyed : public Operator {
  public:
    virtual void process(const Event& event, Key& key, Context& ctx) = 0;
};

// A vectorised keyed operator.
class KeyedBatches : public Operator {
  public:
    virtual Batch process(const Batch& batch, Keys& keys, Context& ctx) = 0;
};

// A keyed operator with timers: called at the end of the first epoch whose watermark has reached `at`.
class Timed {
  public:
    virtual ~Timed() = default;
    virtual void on_timer(Timestamp at, Key& key, Context& ctx) = 0;
};

// Converts states written by a version with another state_version (migrates_from in operator.toml).
class Migrating {
  public:
    virtual ~Migrating() = default;
    virtual json migrate(json old, unsigned from) = 0;
};

// Serves the operator until the engine stops it. Returns the exit status for main to return.
int run(Operator& op);
inline int run(Operator&& op) { return run(op); }

}  // namespace udo
