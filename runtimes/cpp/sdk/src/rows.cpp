// Events as rows of a record batch, and rows gathered into one.
#include "rows.hpp"

#include <arrow/util/decimal.h>

#include <algorithm>
#include <limits>

#include "text.hpp"

namespace udo {

namespace {

std::string named(const arrow::Schema& schema) {
    std::string names;
    for (const auto& field : schema.fields()) names += (names.empty() ? "" : ", ") + field->name();
    return names;
}

[[noreturn]] void wrong(const arrow::Array& column, std::string_view name, const char* want) {
    throw std::invalid_argument("column \"" + std::string(name) + "\" is " + column.type()->ToString() + ", not " + want);
}

template <class Column>
auto at(const arrow::Array& column, std::int64_t row) {
    return static_cast<const Column&>(column).GetView(row);
}

[[noreturn]] void beyond(std::string_view name, const std::string& value, const char* want) {
    throw std::out_of_range("column \"" + std::string(name) + "\" is " + value + " in this event, beyond " + want);
}

// A time as µs since 1970.
std::int64_t micros(const arrow::Array& column, std::int64_t row, std::string_view name) {
    const auto ticks = at<arrow::TimestampArray>(column, row);
    const auto times = [&](std::int64_t each, const char* unit) {
        std::int64_t us = 0;
        if (__builtin_mul_overflow(ticks, each, &us)) {
            beyond(name, std::to_string(ticks) + unit + " since 1970", "what 64 bits of µs hold: take it by udo::Event::value");
        }
        return us;
    };
    switch (static_cast<const arrow::TimestampType&>(*column.type()).unit()) {
        case arrow::TimeUnit::SECOND: return times(1'000'000, " s");
        case arrow::TimeUnit::MILLI: return times(1'000, " ms");
        case arrow::TimeUnit::MICRO: return ticks;
        case arrow::TimeUnit::NANO: return std::chrono::floor<std::chrono::microseconds>(std::chrono::nanoseconds(ticks)).count();
    }
    return ticks;
}

}  // namespace

const std::shared_ptr<arrow::Array>& Event::at(std::string_view name) const {
    const auto found = columns_.find(name);
    if (found == columns_.end()) {
        throw std::invalid_argument("the event has no column \"" + std::string(name) + "\"; there are: " + named(*batch_.schema()));
    }
    return batch_.columns()[found->second];
}

namespace detail {

void unexpected_null(std::string_view name) {
    throw std::invalid_argument("column \"" + std::string(name) + "\" is null in this event: read it as a std::optional");
}

template <>
std::int64_t read(const arrow::Array& column, std::int64_t row, std::string_view name) {
    switch (column.type_id()) {
        case arrow::Type::INT64: return at<arrow::Int64Array>(column, row);
        case arrow::Type::INT32: return at<arrow::Int32Array>(column, row);
        case arrow::Type::INT16: return at<arrow::Int16Array>(column, row);
        case arrow::Type::INT8: return at<arrow::Int8Array>(column, row);
        case arrow::Type::UINT64: {
            const auto value = at<arrow::UInt64Array>(column, row);
            if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
            beyond(name, std::to_string(value), "what an integer of 64 bits with a sign holds: take it by udo::Event::value");
        }
        case arrow::Type::UINT32: return at<arrow::UInt32Array>(column, row);
        case arrow::Type::UINT16: return at<arrow::UInt16Array>(column, row);
        case arrow::Type::UINT8: return at<arrow::UInt8Array>(column, row);
        default: wrong(column, name, "an integer");
    }
}

template <>
double read(const arrow::Array& column, std::int64_t row, std::string_view name) {
    switch (column.type_id()) {
        case arrow::Type::DOUBLE: return at<arrow::DoubleArray>(column, row);
        case arrow::Type::FLOAT: return at<arrow::FloatArray>(column, row);
        default: wrong(column, name, "a floating point number");
    }
}

template <>
bool read(const arrow::Array& column, std::int64_t row, std::string_view name) {
    if (column.type_id() != arrow::Type::BOOL) wrong(column, name, "a boolean");
    return at<arrow::BooleanArray>(column, row);
}

template <>
std::string_view read(const arrow::Array& column, std::int64_t row, std::string_view name) {
    switch (column.type_id()) {
        case arrow::Type::STRING: return at<arrow::StringArray>(column, row);
        case arrow::Type::LARGE_STRING: return at<arrow::LargeStringArray>(column, row);
        default: wrong(column, name, "text");
    }
}

template <>
Timestamp read(const arrow::Array& column, std::int64_t row, std::string_view name) {
    if (column.type_id() != arrow::Type::TIMESTAMP) wrong(column, name, "a timestamp");
    return Timestamp(std::chrono::microseconds(micros(column, row, name)));
}

// Beyond this a double cannot represent every integer.
constexpr std::int64_t MOST_WHOLE = std::int64_t{1} << 53;
// The most bytes of a value that an error shows.
constexpr std::size_t MOST_SHOWN = 1'000;

// Appends a value to a column. Each overload returns whether the value fits.
struct Appending {
    arrow::ArrayBuilder& column;
    const arrow::DataType& type;

    template <class Builder, class T>
    bool put(const T& value) const {
        check(static_cast<Builder&>(column).Append(value));
        return true;
    }

    template <class Builder>
    bool narrow(std::int64_t value) const {
        using Native = typename Builder::value_type;
        return std::in_range<Native>(value) && put<Builder>(static_cast<Native>(value));
    }

    bool operator()(std::nullptr_t) const {
        check(column.AppendNull());
        return true;
    }
    bool operator()(bool value) const { return type.id() == arrow::Type::BOOL && put<arrow::BooleanBuilder>(value); }
    bool operator()(std::int64_t value) const {
        switch (type.id()) {
            case arrow::Type::INT64: return put<arrow::Int64Builder>(value);
            case arrow::Type::INT32: return narrow<arrow::Int32Builder>(value);
            case arrow::Type::INT16: return narrow<arrow::Int16Builder>(value);
            case arrow::Type::INT8: return narrow<arrow::Int8Builder>(value);
            case arrow::Type::UINT64: return narrow<arrow::UInt64Builder>(value);
            case arrow::Type::UINT32: return narrow<arrow::UInt32Builder>(value);
            case arrow::Type::UINT16: return narrow<arrow::UInt16Builder>(value);
            case arrow::Type::UINT8: return narrow<arrow::UInt8Builder>(value);
            case arrow::Type::DOUBLE:
                return -MOST_WHOLE <= value && value <= MOST_WHOLE && put<arrow::DoubleBuilder>(static_cast<double>(value));
            default: return false;
        }
    }
    bool operator()(double value) const {
        switch (type.id()) {
            case arrow::Type::DOUBLE: return put<arrow::DoubleBuilder>(value);
            case arrow::Type::FLOAT: return put<arrow::FloatBuilder>(static_cast<float>(value));
            default: return false;
        }
    }
    bool operator()(const std::string& value) const {
        switch (type.id()) {
            case arrow::Type::STRING: return is_text(value) && put<arrow::StringBuilder>(value);
            case arrow::Type::LARGE_STRING: return is_text(value) && put<arrow::LargeStringBuilder>(value);
            case arrow::Type::BINARY: return put<arrow::BinaryBuilder>(value);
            case arrow::Type::LARGE_BINARY: return put<arrow::LargeBinaryBuilder>(value);
            default: return false;
        }
    }
    bool operator()(Timestamp value) const {
        using enum arrow::TimeUnit::type;
        if (type.id() != arrow::Type::TIMESTAMP || static_cast<const arrow::TimestampType&>(type).unit() != MICRO) return false;
        return put<arrow::TimestampBuilder>(value.time_since_epoch().count());
    }
    bool operator()(const Decimal& value) const {
        if (type.id() != arrow::Type::DECIMAL128) return false;
        const auto& wanted = static_cast<const arrow::Decimal128Type&>(type);
        arrow::Decimal128 number;
        std::int32_t precision = 0, scale = 0;
        if (!arrow::Decimal128::FromString(value.digits, &number, &precision, &scale).ok()) return false;
        const auto scaled = number.Rescale(scale, wanted.scale());
        return scaled.ok() && scaled->FitsInPrecision(wanted.precision()) && put<arrow::Decimal128Builder>(*scaled);
    }
    bool operator()(const Cell& cell) const {
        if (!cell.column->type()->Equals(type)) return cell.column->IsNull(cell.row) && (*this)(nullptr);
        if (type.id() == arrow::Type::INT64 && cell.column->IsValid(cell.row)) {
            return put<arrow::Int64Builder>(at<arrow::Int64Array>(*cell.column, cell.row));
        }
        check(column.AppendArraySlice(arrow::ArraySpan(*cell.column->data()), cell.row, 1));
        return true;
    }
};

struct Shown {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return std::to_string(value); }
    std::string operator()(const std::string& value) const {
        return (is_text(value) ? "\"" : "bytes that are not UTF-8, \"") + told(value, MOST_SHOWN) + '"';
    }
    std::string operator()(Timestamp value) const { return std::to_string(value.time_since_epoch().count()) + " µs since 1970"; }
    std::string operator()(const Decimal& value) const { return told(value.digits, MOST_SHOWN); }
    std::string operator()(const Cell& value) const { return "a value of a column of " + value.column->type()->ToString(); }
};

static std::vector<std::unique_ptr<arrow::ArrayBuilder>> builders(const arrow::Schema& schema) {
    std::vector<std::unique_ptr<arrow::ArrayBuilder>> made;
    for (const auto& field : schema.fields()) made.push_back(check(arrow::MakeBuilder(field->type())));
    return made;
}

Rows::Rows(std::shared_ptr<arrow::Schema> schema, std::uint64_t bound)
    : schema_(std::move(schema)), columns_(builders(*schema_)), size_(columns_), bound_(bound) {}

void Rows::push(std::span<const Field> row) {
    if (row.size() != columns_.size()) {
        const auto many = std::to_string(row.size());
        throw SchemaError("expected an event with the columns " + named(*schema_) + "; the operator answered one of " + many);
    }
    count_++;
    require_bounded();  // before the builders double their size
    try {
        for (std::size_t n = 0; n < columns_.size(); n++) append(n, row);
    } catch (...) {
        drop_last();
        throw;
    }
    require_bounded();
}

void Rows::append(std::size_t n, std::span<const Field> row) {
    const auto& field = *schema_->field(static_cast<int>(n));
    const Field* found = &row[n];
    if (found->first != field.name()) {
        const auto other = std::find_if(row.begin(), row.end(), [&](const Field& f) { return f.first == field.name(); });
        if (other == row.end()) throw SchemaError("the answer lacks the column \"" + field.name() + "\"");
        found = &*other;
    }
    if (!std::visit(Appending{*columns_[n], *field.type()}, found->second.data)) {
        const auto answered = std::visit(Shown{}, found->second.data);
        throw SchemaError("column \"" + field.name() + "\": expected " + field.type()->ToString() + ", the operator answered " + answered);
    }
}

// Builders cannot remove a value, so the row gets nulls where it has none, and take() leaves it out.
void Rows::drop_last() {
    for (const auto& column : columns_) {
        if (column->length() < count_) check(column->AppendNull());
    }
    dropped_.push_back(count_ - 1);
}

void Rows::require_bounded() const {
    if (const auto bytes = size_.of(count_); bytes > bound_) throw TooLarge(count_, 0, bytes, bound_);
}

Batch Rows::take() {
    require_bounded();  // even if the operator has caught the exception
    std::vector<std::shared_ptr<arrow::Array>> made;
    for (const auto& column : columns_) made.push_back(check(column->Finish()));
    const auto all = arrow::RecordBatch::Make(schema_, std::exchange(count_, 0), std::move(made));
    if (dropped_.empty()) return all;
    arrow::RecordBatchVector kept;
    std::int64_t from = 0;
    for (const auto row : std::exchange(dropped_, {})) {
        kept.push_back(all->Slice(from, row - from));
        from = row + 1;
    }
    kept.push_back(all->Slice(from));
    return check(arrow::ConcatenateRecordBatches(kept));
}

}  // namespace detail
}  // namespace udo
