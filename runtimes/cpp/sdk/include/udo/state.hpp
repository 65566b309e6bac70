// States and keys as MessagePack, in the profile of docs/operator-protocol.md: nlohmann::json, or a struct that converts to and from it
// (NLOHMANN_DEFINE_TYPE_INTRUSIVE). Times are std::chrono's, in the years 1 to 9999. A number is read only as a type that holds it:
// nlohmann itself would read 2.5 as the integer 2, and 5000000000 as the int 705032704.
#pragma once

#include <chrono>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace udo {

using json = nlohmann::json;
using Timestamp = std::chrono::sys_time<std::chrono::microseconds>;
// A time without a zone.
using LocalTime = std::chrono::local_time<std::chrono::microseconds>;
using Date = std::chrono::sys_days;

// A decimal number as its digits: "12.50".
struct Decimal {
    std::string digits;
    bool operator==(const Decimal&) const = default;
};

// Convert a state to the form that the engine stores, and back. std::invalid_argument for text that is not UTF-8.
std::string pack(const json& state);
json unpack(std::string_view packed);

namespace detail {

// MessagePack's own extension for times, then those of the profile; an extension's number as a byte.
enum : std::uint8_t { LOCAL_TIME = 1, DATE = 2, DECIMAL = 3, TIME = 0xff };

json extension(std::uint8_t kind, std::vector<std::uint8_t> bytes);
// The bytes of an extension of this kind; std::invalid_argument if the value is not one.
const std::vector<std::uint8_t>& extended(const json& value, std::uint8_t kind, const char* what);
json of_time(Timestamp at);
Timestamp to_time(const json& value);
json of_local(LocalTime at);
LocalTime to_local(const json& value);
json of_date(Date day);
Date to_date(const json& value);

// A state's number is beyond the type that it is read as; `at` is its address.
struct Beyond : std::out_of_range {
    Beyond(const std::string& found, const char* kind, std::size_t bytes, const void* entry)
        : std::out_of_range(found + " does not fit " + kind + " of " + std::to_string(8 * bytes) + " bits: declare a type that holds it"),
          at(entry) {}
    const void* at;
};

// Throws it again as std::out_of_range with the name of the entry.
[[noreturn]] void refuse(const json& state, const Beyond& beyond);

// Holds every 64-bit integer, and every double, exactly.
using Exact = long double;
static_assert(std::numeric_limits<Exact>::digits >= 64);

// A number that a T holds. A float may be rounded; an integer read as a floating point number may not.
template <class T>
std::optional<T> held(Exact number, bool rounded) {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::integral<T>) {
        if (!(number >= Exact(Limits::min()) && number <= Exact(Limits::max())) || std::trunc(number) != number) return std::nullopt;
        return static_cast<T>(number);
    } else {
        if (!std::isfinite(number)) return static_cast<T>(number);
        if (std::abs(number) > Exact(Limits::max())) return std::nullopt;
        const T value = static_cast<T>(number);
        return rounded || Exact(value) == number ? std::optional(value) : std::nullopt;
    }
}

}  // namespace detail

inline void to_json(json& j, const Decimal& d) { j = detail::extension(detail::DECIMAL, {d.digits.begin(), d.digits.end()}); }
inline void from_json(const json& j, Decimal& d) {
    const auto& bytes = detail::extended(j, detail::DECIMAL, "a decimal");
    d.digits.assign(bytes.begin(), bytes.end());
}

}  // namespace udo

// A number that the type cannot hold is refused, and so is a boolean.
template <class T>
    requires(std::is_arithmetic_v<T> && !std::same_as<T, bool>)
struct nlohmann::adl_serializer<T> {
    template <class Json>
    static void to_json(Json& j, T value) {
        nlohmann::to_json(j, value);
    }
    template <class Json>
    static void from_json(const Json& j, T& value) {
        udo::detail::Exact number = 0;
        if (const auto* natural = j.template get_ptr<const typename Json::number_unsigned_t*>()) {
            number = static_cast<udo::detail::Exact>(*natural);
        } else if (const auto* integer = j.template get_ptr<const typename Json::number_integer_t*>()) {
            number = static_cast<udo::detail::Exact>(*integer);
        } else if (const auto* real = j.template get_ptr<const typename Json::number_float_t*>()) {
            number = static_cast<udo::detail::Exact>(*real);
        } else if (!j.is_boolean()) {
            return nlohmann::from_json(j, value);  // throws, and names the type found
        }
        const auto found = j.is_boolean() ? std::nullopt : udo::detail::held<T>(number, j.is_number_float());
        if (!found) {
            const auto shown = std::isfinite(number) ? j.dump() : std::to_string(number);
            throw udo::detail::Beyond(shown, std::integral<T> ? "an integer" : "a floating point number", sizeof(T), &j);
        }
        value = *found;
    }
};
// So is a number that an enumeration of C++ cannot hold. One that NLOHMANN_JSON_SERIALIZE_ENUM names is stored as that macro says.
template <class T>
    requires std::is_enum_v<T>
struct nlohmann::adl_serializer<T> {
    template <class Json>
    static void to_json(Json& j, T value) {
        nlohmann::to_json(j, value);
    }
    template <class Json>
    static void from_json(const Json& j, T& value) {
        if (j.is_number()) static_cast<void>(j.template get<std::underlying_type_t<T>>());
        nlohmann::from_json(j, value);
    }
};
// An empty optional is null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
    static void to_json(json& j, const std::optional<T>& value) { j = value ? json(*value) : json(); }
    static void from_json(const json& j, std::optional<T>& value) { value = j.is_null() ? std::nullopt : std::optional<T>(j.get<T>()); }
};
template <>
struct nlohmann::adl_serializer<udo::Timestamp> {
    static void to_json(json& j, udo::Timestamp at) { j = udo::detail::of_time(at); }
    static void from_json(const json& j, udo::Timestamp& at) { at = udo::detail::to_time(j); }
};
template <>
struct nlohmann::adl_serializer<udo::LocalTime> {
    static void to_json(json& j, udo::LocalTime at) { j = udo::detail::of_local(at); }
    static void from_json(const json& j, udo::LocalTime& at) { at = udo::detail::to_local(j); }
};
template <>
struct nlohmann::adl_serializer<udo::Date> {
    static void to_json(json& j, udo::Date day) { j = udo::detail::of_date(day); }
    static void from_json(const json& j, udo::Date& day) { day = udo::detail::to_date(j); }
};
