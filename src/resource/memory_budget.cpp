#include "millpond/memory/memory_budget.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/raise_to.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

}  // namespace

memory_budget::memory_budget(budget_limits limits) noexcept {
  set_limits(limits);
}

std::shared_ptr<memory_budget> memory_budget::create(budget_limits limits) {
  return std::shared_ptr<memory_budget>(new memory_budget(limits));
}

budget_limits memory_budget::limits() const noexcept {
  const auto text = [](std::uint64_t value) { return value == unlimited ? 0 : value; };
  return {text(hard_.load(std::memory_order_relaxed)), text(soft_.load(std::memory_order_relaxed))};
}

void memory_budget::set_limits(budget_limits limits) noexcept {
  hard_.store(limits.hard_bytes == 0 ? unlimited : limits.hard_bytes, std::memory_order_relaxed);
  soft_.store(limits.soft_bytes == 0 ? unlimited : limits.soft_bytes, std::memory_order_relaxed);
}

std::uint64_t memory_budget::headroom() const noexcept {
  const std::uint64_t hard = hard_.load(std::memory_order_relaxed);
  const std::uint64_t used = used_bytes();
  return hard == unlimited ? unlimited : hard - std::min(hard, used);
}

bool memory_budget::passes_soft(std::uint64_t more) const noexcept {
  const std::uint64_t soft = soft_.load(std::memory_order_relaxed);
  const std::uint64_t used = used_bytes();
  return used > soft || more > soft - used;
}

bool memory_budget::take(std::uint64_t bytes) noexcept {
  const std::uint64_t hard = hard_.load(std::memory_order_relaxed);
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (used > hard || bytes > hard - used) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  raise_to(peak_, used + bytes);
  return true;
}

void memory_budget::give(std::uint64_t bytes) noexcept {
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::shared_ptr<memory_budget::member> memory_budget::join(std::string name, reclaimer give_back) {
  auto made = std::make_shared<member>(shared_from_this(), std::move(name), std::move(give_back));
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const auto& m) { return m.expired(); });
  members_.push_back(made);
  return made;
}

std::uint64_t memory_budget::reclaim(std::uint64_t bytes, const member* except) {
  std::vector<std::shared_ptr<member>> others;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& m : members_) {
      if (auto held = m.lock(); held != nullptr && held.get() != except && held->give_back_)
        others.push_back(std::move(held));
    }
  }
  std::uint64_t given = 0;
  for (const auto& other : others) {
    if (given >= bytes) break;
    given += other->give_back_(bytes - given);
  }
  return given;
}

std::vector<memory_budget::share> memory_budget::shares() const {
  std::vector<std::shared_ptr<member>>
      held;  // let go of outside the lock: the last holder of one may be this
  std::vector<share> out;
  const std::lock_guard lock(mutex_);
  for (const auto& m : members_) {
    if (auto one = m.lock()) {
      out.push_back({one->name(), one->bytes()});
      held.push_back(std::move(one));
    }
  }
  return out;
}

memory_budget::member::member(std::shared_ptr<memory_budget> of, std::string name,
                              reclaimer give_back)
    : of_(std::move(of)), name_(std::move(name)), give_back_(std::move(give_back)) {}

memory_budget::member::~member() {
  of_->give(bytes());
}

bool memory_budget::member::try_take(std::uint64_t bytes) noexcept {
  if (!of_->take(bytes)) return false;
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void memory_budget::member::give(std::uint64_t bytes) noexcept {
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  of_->give(bytes);
}

bool memory_budget::member::take_from_all(std::uint64_t bytes) {
  if (of_->passes_soft(bytes)) static_cast<void>(of_->reclaim(bytes, this));
  return try_take(bytes) || (of_->reclaim(bytes, this) > 0 && try_take(bytes));
}

void memory_budget::member::leave_to_driver(std::uint64_t bytes) noexcept {
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  of_->left_.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace millpond
