// Keys and their states: see keyed.hpp; states as MessagePack: see udo/state.hpp.
#include "keyed.hpp"

#include <arrow/builder.h>

#include <tuple>

#include "text.hpp"

namespace udo {

namespace {

using detail::is_text;
using std::chrono::days, std::chrono::microseconds, std::chrono::year;

// The name of the value at this address of a state, as in rows.0.n; empty if there is none.
std::string name_of(const json& state, const void* value) {
    for (const auto& entry : state.items()) {
        if (&entry.value() == value) return entry.key();
        if (!entry.value().is_structured()) continue;
        if (const auto below = name_of(entry.value(), value); !below.empty()) return entry.key() + "." + below;
    }
    return {};
}

// The first text in a value that is not UTF-8, or the value of such a name; null if there is none.
const json* no_text(const json& value) {
    if (value.is_string()) return is_text(value.get_ref<const std::string&>()) ? nullptr : &value;
    if (!value.is_structured()) return nullptr;
    for (const auto& entry : value.items()) {
        if (value.is_object() && !is_text(entry.key())) return &entry.value();
        if (const auto* found = no_text(entry.value())) return found;
    }
    return nullptr;
}

// The time itself, if it is one that the engine and operators in Python know: the years 1 to 9999.
template <class Time>
Time known(Time at, const char* what) {
    using Days = std::chrono::time_point<typename Time::clock, days>;
    if (at >= Days(std::chrono::sys_days(year(1) / 1 / 1).time_since_epoch()) &&
        at < Days(std::chrono::sys_days(year(10'000) / 1 / 1).time_since_epoch())) {
        return at;
    }
    const auto unit = std::same_as<Time, Date> ? " days" : " µs";
    throw std::out_of_range(what + std::to_string(at.time_since_epoch().count()) + unit + " since 1970 is beyond the years 1 to 9999");
}

}  // namespace

void Key::timer(Timestamp at) { timers_.push_back(known(at, "a timer at ")); }

void Key::expire(Timestamp at) {
    expires_ = known(at, "an expiration at ");
    changed_ = true;
}

void Key::set(const json& state) {
    if (!state.is_object()) throw std::invalid_argument(std::string("a state is an object, not ") + state.type_name());
    state_ = pack(state);
    changed_ = true;
}

std::string pack(const json& state) {
    if (const auto* found = no_text(state)) {
        const auto name = name_of(state, found);
        throw std::invalid_argument("the state has text that is not UTF-8" + (name.empty() ? "" : ", at the entry \"" + name + '"') +
                                    ": store it as udo::json::binary");
    }
    std::string packed;
    json::to_msgpack(state, packed);
    return packed;
}

json unpack(std::string_view packed) { return json::from_msgpack(packed); }

namespace detail {

namespace {

using std::chrono::floor, std::chrono::seconds, std::chrono::nanoseconds;

// The number of 1970-01-01 among the profile's dates, whose day 1 is 0001-01-01.
constexpr std::int64_t EPOCH_DAY = 719'163;
// The bits of seconds in the 8-byte form of MessagePack's own extension for times.
constexpr int SECONDS_BITS = 34;

void append(std::vector<std::uint8_t>& bytes, std::uint64_t number, int size) {
    for (int n = size - 1; n >= 0; n--) bytes.push_back(static_cast<std::uint8_t>(number >> (8 * n)));
}

std::uint64_t big_endian(const std::uint8_t* bytes, int size) {
    std::uint64_t number = 0;
    for (int n = 0; n < size; n++) number = number << 8 | bytes[n];
    return number;
}

std::shared_ptr<arrow::Schema> columns(std::initializer_list<std::pair<const char*, std::shared_ptr<arrow::DataType>>> named) {
    arrow::FieldVector fields;
    for (const auto& [name, type] : named) fields.push_back(arrow::field(name, type));
    return arrow::schema(std::move(fields));
}

const auto INDEX = columns({{"key", arrow::int32()}});
const auto KEYS = columns({{"key", arrow::binary()}, {"state", arrow::binary()}, {"expires_us", arrow::int64()}});
const auto STATES = columns({{"key", arrow::int32()}, {"state", arrow::binary()}, {"expires_us", arrow::int64()}});
const auto TIMES = columns({{"key", arrow::int32()}, {"at_us", arrow::int64()}});

template <class Column>
const Column& column(const arrow::RecordBatch& batch, int n) {
    return static_cast<const Column&>(*batch.columns()[static_cast<std::size_t>(n)]);
}

}  // namespace

json extension(std::uint8_t kind, std::vector<std::uint8_t> bytes) { return json::binary(std::move(bytes), kind); }

const std::vector<std::uint8_t>& extended(const json& value, std::uint8_t kind, const char* what) {
    if (!value.is_binary() || !value.get_binary().has_subtype() || value.get_binary().subtype() != kind) {
        throw std::invalid_argument(std::string("the state has ") + value.dump() + ", not " + what);
    }
    return value.get_binary();
}

void refuse(const json& state, const Beyond& beyond) {
    const auto name = name_of(state, beyond.at);
    throw std::out_of_range((name.empty() ? "" : "the state's entry \"" + name + "\": ") + beyond.what());
}

json of_time(Timestamp at) {
    const auto whole = floor<seconds>(known(at, "a time at "));
    const auto second = whole.time_since_epoch().count();
    const auto ns = static_cast<std::uint64_t>(nanoseconds(at - whole).count());
    std::vector<std::uint8_t> bytes;
    if (second < 0 || second >> SECONDS_BITS) {
        append(bytes, ns, 4);
        append(bytes, static_cast<std::uint64_t>(second), 8);
    } else if (ns == 0 && second <= UINT32_MAX) {
        append(bytes, static_cast<std::uint64_t>(second), 4);
    } else {
        append(bytes, ns << SECONDS_BITS | static_cast<std::uint64_t>(second), 8);
    }
    return extension(TIME, std::move(bytes));
}

Timestamp to_time(const json& value) {
    const auto& bytes = extended(value, TIME, "a time with a zone");
    const auto at = [](std::uint64_t second, std::uint64_t ns) {
        return Timestamp(seconds(static_cast<std::int64_t>(second)) + floor<microseconds>(nanoseconds(ns)));
    };
    switch (bytes.size()) {
        case 4: return at(big_endian(bytes.data(), 4), 0);
        case 8: {
            const auto both = big_endian(bytes.data(), 8);
            return at(both & ((std::uint64_t{1} << SECONDS_BITS) - 1), both >> SECONDS_BITS);
        }
        case 12: return at(big_endian(bytes.data() + 4, 8), big_endian(bytes.data(), 4));
        default: throw std::invalid_argument("a time has 4, 8 or 12 bytes");
    }
}

json of_local(LocalTime at) {
    std::vector<std::uint8_t> bytes;
    append(bytes, static_cast<std::uint64_t>(known(at, "a time without a zone at ").time_since_epoch().count()), 8);
    return extension(LOCAL_TIME, std::move(bytes));
}

LocalTime to_local(const json& value) {
    const auto& bytes = extended(value, LOCAL_TIME, "a time without a zone");
    if (bytes.size() != 8) throw std::invalid_argument("a time without a zone has 8 bytes");
    return LocalTime(microseconds(static_cast<std::int64_t>(big_endian(bytes.data(), 8))));
}

json of_date(Date day) {
    std::vector<std::uint8_t> bytes;
    append(bytes, static_cast<std::uint64_t>(known(day, "a date at ").time_since_epoch().count() + EPOCH_DAY), 4);
    return extension(DATE, std::move(bytes));
}

Date to_date(const json& value) {
    const auto& bytes = extended(value, DATE, "a date");
    if (bytes.size() != 4) throw std::invalid_argument("a date has 4 bytes");
    return Date(days(static_cast<std::int64_t>(big_endian(bytes.data(), 4)) - EPOCH_DAY));
}

Keys KeyTables::touched(const Request& request, Batch& batch) {
    batch = decode(request, Table::KEYS, KEYS);
    const auto &packed = column<arrow::BinaryArray>(*batch, 0), &states = column<arrow::BinaryArray>(*batch, 1);
    const auto& expires = column<arrow::Int64Array>(*batch, 2);
    Keys keys;
    keys.resize(static_cast<std::size_t>(batch->num_rows()));
    for (std::size_t n = 0; n < keys.size(); n++) {
        const auto row = static_cast<std::int64_t>(n);
        keys[n].packed_ = packed.GetView(row);
        if (states.IsValid(row)) keys[n].state_ = states.GetView(row);
        if (expires.IsValid(row)) keys[n].expires_ = Timestamp(microseconds(expires.Value(row)));
    }
    keys.rows = numbers(*decode(request, Table::INDEX, INDEX), keys.size());
    return keys;
}

std::vector<std::size_t> KeyTables::numbers(const arrow::RecordBatch& batch, std::size_t count) {
    std::vector<std::size_t> found;
    found.reserve(static_cast<std::size_t>(batch.num_rows()));
    for (std::int64_t row = 0; row < batch.num_rows(); row++) {
        found.push_back(static_cast<std::size_t>(column<arrow::Int32Array>(batch, 0).Value(row)));
        if (found.back() >= count) throw std::runtime_error("an event's key is not among those sent");
    }
    return found;
}

Batch KeyTables::due(const Request& request) { return decode(request, Table::DUE, TIMES); }

std::vector<std::pair<Table, Batch>> KeyTables::changes(const Keys& keys, bool all) {
    arrow::Int32Builder number, timed;
    arrow::BinaryBuilder state;
    arrow::Int64Builder expires, at;
    for (std::size_t n = 0; n < keys.size(); n++) {
        const Key& key = keys[n];
        for (const auto time : key.timers_) {
            check(timed.Append(static_cast<std::int32_t>(n)));
            check(at.Append(time.time_since_epoch().count()));
        }
        if (!key.changed_ && !all) continue;
        check(number.Append(static_cast<std::int32_t>(n)));
        check(key.state_ ? state.Append(*key.state_) : state.AppendNull());
        check(key.expires_ ? expires.Append(key.expires_->time_since_epoch().count()) : expires.AppendNull());
    }
    const auto made = [](const std::shared_ptr<arrow::Schema>& schema, auto&... builders) {
        const auto rows = std::get<0>(std::tie(builders...)).length();
        return arrow::RecordBatch::Make(schema, rows, std::vector<std::shared_ptr<arrow::Array>>{check(builders.Finish())...});
    };
    std::vector<std::pair<Table, Batch>> tables{{Table::STATES, made(STATES, number, state, expires)}};
    if (timed.length() > 0) tables.emplace_back(Table::SET, made(TIMES, timed, at));
    return tables;
}

}  // namespace detail
}  // namespace udo
