#include "bench/support/value.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace millpond::bench {
namespace {

using nlohmann::ordered_json;

ordered_json made_of(const value& of) {
  switch (of.what()) {
    case value::kind::nothing: return nullptr;
    case value::kind::boolean: return of.bits() != 0;
    case value::kind::whole: return of.bits();
    case value::kind::negative: return static_cast<std::int64_t>(of.bits());
    case value::kind::real: return of.number();
    case value::kind::text: return of.text();
    case value::kind::list: {
      ordered_json out = ordered_json::array();
      for (const value& each : of.items()) out.push_back(made_of(each));
      return out;
    }
    case value::kind::fields: {
      ordered_json out = ordered_json::object();
      for (std::size_t i = 0; i < of.items().size(); ++i)
        out[of.names()[i]] = made_of(of.items()[i]);
      return out;
    }
  }
  return nullptr;
}

value read(const ordered_json& from) {
  if (from.is_null()) return {};
  if (from.is_boolean()) return from.get<bool>();
  if (from.is_number_unsigned()) return from.get<std::uint64_t>();
  if (from.is_number_integer()) return from.get<std::int64_t>();
  if (from.is_number()) return from.get<double>();
  if (from.is_string()) return from.get<std::string>();
  value out = from.is_array() ? value::list() : value(std::initializer_list<field>{});
  for (const auto& [name, each] : from.items()) {
    if (from.is_array())
      out.push_back(read(each));
    else
      out[name] = read(each);
  }
  return out;
}

}  // namespace

value::value(std::initializer_list<field> of) : kind_(kind::fields) {
  for (const field& each : of) (*this)[each.name] = each.of;
}

value value::list(std::vector<value> of) {
  value out;
  out.kind_ = kind::list;
  out.items_ = std::move(of);
  return out;
}

value& value::operator[](std::string_view name) {
  kind_ = kind::fields;
  const auto at = std::ranges::find(names_, name);
  if (at != names_.end()) return items_[static_cast<std::size_t>(at - names_.begin())];
  names_.emplace_back(name);
  return items_.emplace_back();
}

const value* value::find(std::string_view name) const noexcept {
  const auto at = std::ranges::find(names_, name);
  return at == names_.end() ? nullptr : &items_[static_cast<std::size_t>(at - names_.begin())];
}

void value::push_back(value of) {
  kind_ = kind::list;
  items_.push_back(std::move(of));
}

double value::number() const noexcept {
  switch (kind_) {
    case kind::whole: return static_cast<double>(whole_);
    case kind::negative: return static_cast<double>(static_cast<std::int64_t>(whole_));
    case kind::real: return real_;
    default: return 0;
  }
}

std::string value::json(int indent) const {
  return made_of(*this).dump(indent);
}

value value::from_json(const std::string& text) {
  return read(ordered_json::parse(text));
}

}  // namespace millpond::bench
