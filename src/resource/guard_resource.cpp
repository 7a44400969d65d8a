#include "millpond/memory/adaptors.hpp"

#include <new>

namespace millpond {
namespace {

block_owner owner_named(std::string name, memory_kind kind) {
  if (name.empty()) name = std::string("guarded ") + to_string(kind);
  return {name, kind, name + ".allocate", name + ".deallocate"};
}

}  // namespace

guard_resource::guard_resource(memory_resource& upstream,
                               std::shared_ptr<pointer_registry> registry, guard_options options)
    : resource_adaptor(upstream),
      registry_(registry ? std::move(registry) : std::make_shared<pointer_registry>()),
      owner_(registry_->enrol(owner_named(std::move(options.name), upstream.kind()))),
      quarantine_bytes_(options.quarantine_bytes) {}

guard_resource::~guard_resource() {
  if (forked()) return;
  flush();
  for (const block_facts& block : registry_->dismiss(owner_)) {
    upstream().deallocate(reinterpret_cast<void*>(block.address), block.bytes, block.stream);
  }
}

result<void*> guard_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                          stream_handle stream) {
  auto answer = upstream().try_allocate(bytes, alignment, stream);
  if (!answer && answer.error().code == error_code::out_of_memory && quarantined_bytes() > 0) {
    flush();
    answer = upstream().try_allocate(bytes, alignment, stream);
  }
  if (!answer) return answer;
  block_facts block;
  block.address = block.base = reinterpret_cast<std::uint64_t>(*answer);
  block.bytes = block.reserved = bytes;
  block.stream = stream;
  block.owner = owner_;
  block.allocated = current_call_site();
  if (const auto added = registry_->add(block); !added) {
    upstream().deallocate(*answer, bytes, stream);
    return added.error();
  }
  return answer;
}

result<void> guard_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                           stream_handle stream) noexcept {
  const auto taken = registry_->take(owner_, reinterpret_cast<std::uint64_t>(ptr), bytes, stream,
                                     current_call_site());
  if (!taken) return taken.error();
  if (taken->bytes < quarantine_bytes_) {
    try {
      const std::lock_guard lock(mutex_);
      quarantine_.push_back({ptr, taken->bytes, stream});
      quarantined_ += taken->bytes;
    } catch (const std::bad_alloc&) {
      registry_->restore(*taken);
      return error{error_code::out_of_memory, owner_->name + ": no host memory for the quarantine"};
    }
    give_on(quarantine_bytes_);
    return {};
  }
  auto answer = upstream().try_deallocate(ptr, taken->bytes, stream);
  if (!answer) registry_->restore(*taken);
  return answer;
}

void guard_resource::give_on(std::uint64_t keep_bytes) noexcept {
  std::size_t attempts = 0;
  {
    const std::lock_guard lock(mutex_);
    attempts = quarantine_.size();
  }
  for (; attempts > 0; --attempts) {
    kept_back oldest;
    {
      const std::lock_guard lock(mutex_);
      if (quarantine_.empty() || quarantined_ <= keep_bytes) return;
      oldest = quarantine_.front();
      quarantine_.pop_front();
      quarantined_ -= oldest.bytes;
    }
    const auto answer = upstream().try_deallocate(oldest.ptr, oldest.bytes, oldest.stream);
    if (answer) continue;
    // Its free was accepted long ago, so no caller can learn of it; it is kept and tried again.
    report(answer.error());
    const std::lock_guard lock(mutex_);
    quarantine_.push_back(oldest);
    quarantined_ += oldest.bytes;
  }
}

void guard_resource::flush() noexcept {
  give_on(0);
}

std::uint64_t guard_resource::quarantined_bytes() const {
  const std::lock_guard lock(mutex_);
  return quarantined_;
}

}  // namespace millpond
