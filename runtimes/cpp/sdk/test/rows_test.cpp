// Rows of answers: what fits a column, what is refused, and that a refused row is left out. Values of events at the edges of their types.
#include "rows.hpp"

#include <iostream>
#include <string>

using udo::check;

static int failed = 0;

static void require(const std::string& what, bool holds) {
    if (holds) return;
    failed++;
    std::cerr << what << ": does not hold\n";
}

// Whether it throws an E that says this.
template <class E, class Act>
static bool refused(const std::string& says, Act act) {
    try {
        act();
    } catch (const E& e) {
        if (std::string(e.what()).find(says) != std::string::npos) return true;
        std::cerr << "expected words " << says << ", got " << e.what() << '\n';
    }
    return false;
}

static udo::detail::Rows rows(const arrow::FieldVector& fields) { return {arrow::schema(fields), 1 << 20}; }

static bool fits(const std::shared_ptr<arrow::DataType>& type, const udo::Value& value) {
    auto made = rows({arrow::field("v", type)});
    const udo::Field row[] = {{"v", value}};
    try {
        made.push(row);
    } catch (const udo::SchemaError& e) {
        require("the error names the column", std::string(e.what()).find("column \"v\": expected " + type->ToString()) == 0);
        return false;
    }
    const auto batch = made.take();
    require("a row", batch->num_rows() == 1 && batch->ValidateFull().ok());
    return true;
}

static void values() {
    const auto whole = std::int64_t{1} << 53;
    for (const auto n : {whole, -whole}) {
        require("2^53 as a double", fits(arrow::float64(), n));
        require("beyond 2^53 as a double", !fits(arrow::float64(), n + (n > 0 ? 1 : -1)));
    }
    const std::string latin = "caf\xe9";
    for (const auto& type : {arrow::utf8(), arrow::large_utf8()}) {
        require("text", fits(type, "café"));
        require("text that is not UTF-8", !fits(type, latin));
    }
    require("bytes", fits(arrow::binary(), latin));
    for (const auto& type : {arrow::uint8(), arrow::uint16(), arrow::uint32(), arrow::uint64()}) {
        require("7 unsigned", fits(type, 7));
        require("-1 unsigned", !fits(type, -1));
    }
    require("256 as uint8", !fits(arrow::uint8(), 256));
    require("128 as int8", !fits(arrow::int8(), 128));
}

// A row that does not fit, which the operator catches, is left out.
static void dropped() {
    auto made = rows({arrow::field("a", arrow::int64()), arrow::field("b", arrow::utf8())});
    const auto push = [&made](udo::Value a, udo::Value b) {
        const udo::Field row[] = {{"a", std::move(a)}, {"b", std::move(b)}};
        made.push(row);
    };
    const auto caught = [&] { return refused<udo::SchemaError>("column \"b\"", [&] { push(0, 7); }); };
    require("a first row that does not fit", caught());
    push(1, "one");
    require("one that does not fit", caught() && caught());
    push(2, nullptr);
    require("a last one that does not fit", caught());
    const udo::Field other[] = {{"a", 1}, {"c", 1}};
    require("a row that lacks a column", refused<udo::SchemaError>("lacks the column \"b\"", [&] { made.push(other); }));
    for (const auto& batch : {made.take(), made.take()}) require("columns of one length", batch->ValidateFull().ok());
    push(1, "one");
    require("a row that does not fit", caught());
    push(2, nullptr);
    const auto batch = made.take();
    require("two rows", batch->num_rows() == 2 && batch->ValidateFull().ok());
    if (failed) return;
    const auto& numbers = static_cast<const arrow::Int64Array&>(*batch->column(0));
    const auto& texts = static_cast<const arrow::StringArray&>(*batch->column(1));
    require("the rows that fit", numbers.Value(0) == 1 && numbers.Value(1) == 2 && texts.GetView(0) == "one" && texts.IsNull(1));
    require("no rows", made.take()->num_rows() == 0);
}

template <class Builder>
static std::shared_ptr<arrow::Array> column(const std::shared_ptr<arrow::DataType>& type, typename Builder::value_type value) {
    Builder builder(type, arrow::default_memory_pool());
    check(builder.Append(value));
    return check(builder.Finish());
}

template <class T>
static T got(const std::shared_ptr<arrow::Array>& column) {
    const auto batch = arrow::RecordBatch::Make(arrow::schema({arrow::field("v", column->type())}), 1, {column});
    const udo::Event::Columns columns{{"v", 0}};
    return udo::Event(*batch, columns).get<T>("v");
}

static void events() {
    const auto at = [](arrow::TimeUnit::type unit, std::int64_t ticks) {
        return got<udo::Timestamp>(column<arrow::TimestampBuilder>(arrow::timestamp(unit), ticks)).time_since_epoch().count();
    };
    require("seconds", at(arrow::TimeUnit::SECOND, -7) == -7'000'000);
    require("milliseconds", at(arrow::TimeUnit::MILLI, 7) == 7'000);
    for (const auto unit : {arrow::TimeUnit::SECOND, arrow::TimeUnit::MILLI}) {
        require("a time beyond µs", refused<std::out_of_range>("since 1970 in this event, beyond", [&] { at(unit, INT64_MAX / 999); }));
    }
    const auto most = std::uint64_t{1} << 63;
    require("uint8", got<std::int64_t>(column<arrow::UInt8Builder>(arrow::uint8(), 255)) == 255);
    require("uint16", got<std::int64_t>(column<arrow::UInt16Builder>(arrow::uint16(), 7)) == 7);
    require("uint32", got<std::int64_t>(column<arrow::UInt32Builder>(arrow::uint32(), 4'000'000'000)) == 4'000'000'000);
    require("uint64", got<std::int64_t>(column<arrow::UInt64Builder>(arrow::uint64(), most - 1)) == INT64_MAX);
    require("2^63", refused<std::out_of_range>("column \"v\" is 9223372036854775808 in this event, beyond", [&] {
                got<std::int64_t>(column<arrow::UInt64Builder>(arrow::uint64(), most));
            }));
}

int main() {
    values();
    dropped();
    events();
    return failed ? 1 : 0;
}
