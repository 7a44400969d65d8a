// Objects behind opaque handles. A destroyed object's handle is given to the next one made, as the
// CUDA driver does with streams, so that code which trusts a handle's value is caught.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace millpond::sim {

template <class Object, class Handle>
class slots {
 public:
  // `base` keeps the handles of different tables apart; no memory is ever there.
  explicit slots(std::uintptr_t base) noexcept : base_(base) {}

  Handle add(std::unique_ptr<Object> object) {
    std::size_t index = objects_.size();
    if (free_.empty()) {
      objects_.push_back(std::move(object));
    } else {
      index = free_.back();
      free_.pop_back();
      objects_[index] = std::move(object);
    }
    ++live_;
    return reinterpret_cast<Handle>(base_ + index * stride);
  }
  // Null for a handle that names nothing.
  [[nodiscard]] Object* find(Handle handle) const noexcept {
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(handle) - base_;
    const std::size_t index = offset / stride;
    if (offset % stride != 0 || index >= objects_.size()) return nullptr;
    return objects_[index].get();
  }
  // The handle must name an object.
  std::unique_ptr<Object> remove(Handle handle) {
    const std::size_t index = (reinterpret_cast<std::uintptr_t>(handle) - base_) / stride;
    free_.push_back(index);
    --live_;
    return std::move(objects_[index]);
  }
  [[nodiscard]] std::size_t live() const noexcept { return live_; }
  template <class Predicate>
  [[nodiscard]] std::vector<Handle> handles_where(Predicate&& holds) const {
    std::vector<Handle> out;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (objects_[i] && holds(*objects_[i]))
        out.push_back(reinterpret_cast<Handle>(base_ + i * stride));
    }
    return out;
  }
  void clear() {
    objects_.clear();
    free_.clear();
    live_ = 0;
  }
  template <class Visitor>
  void visit(Visitor&& visit) const {
    for (const auto& object : objects_) {
      if (object) visit(*object);
    }
  }

 private:
  static constexpr std::uintptr_t stride = 64;
  std::uintptr_t base_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::size_t> free_;
  std::size_t live_ = 0;
};

}  // namespace millpond::sim
