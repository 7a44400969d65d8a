#include "trace/import/pickle_memo.hpp"

namespace millpond::trace {
namespace {

constexpr unsigned number_bits = 28;
constexpr std::uint32_t number_mask = (1u << number_bits) - 1;
constexpr unsigned shape_shift = 56;  // a dict_reader's number has its shape in the top byte
constexpr std::uint64_t low_mask = (std::uint64_t{1} << shape_shift) - 1;

}  // namespace

void pickle_memo::put(std::uint64_t index, std::uint32_t cell) {
  const std::uint64_t which = index / page_cells;
  if (which >= pages_.size()) pages_.resize(which + 1);
  slot& of = pages_[which];
  if (of.cells == nullptr) {
    of.cells = std::make_unique<page>();
    ++held_pages_;
    if (of.gone == page_cells) of.cells->fill(std::uint32_t{gone} << number_bits);
  }
  std::uint32_t& at = (*of.cells)[index % page_cells];
  if (at >> number_bits == gone) --of.gone;
  if (at >> number_bits == odd) odd_.erase(index);
  at = cell;
  size_ = std::max(size_, index + 1);
}

void pickle_memo::set(std::uint64_t index, const pickle_value& value) {
  std::uint32_t what = odd;
  std::uint64_t number = value.number;
  switch (value.of) {
    case sort::text: what = text; break;
    case sort::bytes: what = bytes; break;
    case sort::list: what = list; break;
    case sort::tuple: what = tuple; break;
    case sort::dict: what = dict; break;
    case sort::set: what = set_of; break;
    case sort::reduced: {
      const std::uint64_t shape = number >> shape_shift;
      number &= low_mask;
      if (shape < 16 - reduced_0) what = static_cast<std::uint32_t>(reduced_0 + shape);
      break;
    }
    default: break;
  }
  if (number > number_mask) what = odd;
  put(index, what << number_bits | (what == odd ? 0 : static_cast<std::uint32_t>(number)));
  if (what == odd) odd_[index] = value;
}

bool pickle_memo::find(std::uint64_t index, pickle_value& value) const {
  if (index >= size_) return false;
  const slot& of = pages_[index / page_cells];
  if (of.cells == nullptr) {
    value = {sort::gone, 0};
    return of.gone == page_cells;
  }
  const std::uint32_t cell = (*of.cells)[index % page_cells];
  const std::uint32_t what = cell >> number_bits;
  const std::uint64_t number = cell & number_mask;
  switch (what) {
    case unset: return false;
    case gone: value = {sort::gone, 0}; break;
    case odd: value = odd_.at(index); break;
    case text: value = {sort::text, number}; break;
    case bytes: value = {sort::bytes, number}; break;
    case list: value = {sort::list, number}; break;
    case tuple: value = {sort::tuple, number}; break;
    case dict: value = {sort::dict, number}; break;
    case set_of: value = {sort::set, number}; break;
    default:
      value = {sort::reduced, std::uint64_t{what - reduced_0} << shape_shift | number};
      break;
  }
  return true;
}

void pickle_memo::drop(std::uint64_t index) {
  if (index >= size_) return;
  slot& of = pages_[index / page_cells];
  if (of.cells == nullptr) return;
  std::uint32_t& at = (*of.cells)[index % page_cells];
  if (at >> number_bits == gone) return;
  if (at >> number_bits == odd) odd_.erase(index);
  at = std::uint32_t{gone} << number_bits;
  if (++of.gone < page_cells) return;
  of.cells.reset();
  --held_pages_;
}

}  // namespace millpond::trace
