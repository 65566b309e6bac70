// States and keys as MessagePack, in the profile of docs/operator-protocol.md: nlohmann::json, or a struct that converts to and from it
// (NLOHMANN_DEFINE_TYPE_INTRUSIVE). Times are std::chrono's.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
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

// Convert a state to the form that the engine stores, and back.
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

}  // namespace detail

inline void to_json(json& j, const Decimal& d) { j = detail::extension(detail::DECIMAL, {d.digits.begin(), d.digits.end()}); }
inline void from_json(const json& j, Decimal& d) {
    const auto& bytes = detail::extended(j, detail::DECIMAL, "a decimal");
    d.digits.assign(bytes.begin(), bytes.end());
}

}  // namespace udo

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
