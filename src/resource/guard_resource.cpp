#include "millpond/memory/adaptors.hpp"

#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond {
namespace {

block_owner owner_named(std::string name, memory_kind kind) {
  if (name.empty()) name = std::string("guarded ") + to_string(kind);
  return {name, kind, name + ".allocate", name + ".deallocate"};
}

}  // namespace

struct guard_resource::kept_back {
  void* ptr = nullptr;
  std::uint64_t bytes = 0;
  stream_handle stream = nullptr;
  std::uint64_t stream_id = 0;
  event_handle freed = nullptr;  // behind the program's free; none: the handle stays what it is
};

struct guard_resource::quarantine {
  explicit quarantine(std::uint64_t most) : most_bytes(most) {}
  const std::uint64_t most_bytes;
  mutable std::mutex mutex;     // a leaf: not held over the upstream's and the driver's calls
  std::list<kept_back> blocks;  // taken out and put back without host memory
  std::uint64_t bytes = 0;
  std::vector<event_handle> spare;  // events that nothing waits for any more
  detail::quiet_stream quiet;

  event_handle take_spare() noexcept {
    const std::lock_guard lock(mutex);
    if (spare.empty()) return nullptr;
    const event_handle out = spare.back();
    spare.pop_back();
    return out;
  }
  void put_spare(driver& gpu, event_handle event) noexcept {
    if (event == nullptr) return;
    try {
      const std::lock_guard lock(mutex);
      spare.push_back(event);
    } catch (const std::bad_alloc&) {
      static_cast<void>(insist([&] { return gpu.event_destroy(event); }));
    }
  }
};

guard_resource::guard_resource(memory_resource& upstream,
                               std::shared_ptr<pointer_registry> registry, guard_options options)
    : resource_adaptor(upstream),
      registry_(registry ? std::move(registry) : std::make_shared<pointer_registry>()),
      owner_(registry_->enrol(owner_named(std::move(options.name), upstream.kind()))),
      quarantine_(std::make_unique<quarantine>(options.quarantine_bytes)) {}

guard_resource::~guard_resource() {
  if (forked()) return;
  flush();
  if (quarantined_bytes() > 0) flush();  // nobody can try it later
  give_leaks(registry_->dismiss(owner_));
  driver* const used = gpu();
  if (used == nullptr || !used->alive()) return;
  const own_calls_scope own_calls(*used);
  for (const event_handle each : quarantine_->spare)
    static_cast<void>(insist([&] { return used->event_destroy(each); }));
  for (const kept_back& each : quarantine_->blocks) {
    if (each.freed != nullptr)
      static_cast<void>(insist([&] { return used->event_destroy(each.freed); }));
  }
  quarantine_->quiet.end(*used);
}

// Their streams may be gone, so all work of the device is waited for; then any stream will do.
void guard_resource::give_leaks(const std::vector<block_facts>& leaked) noexcept {
  driver* const used = gpu();
  stream_handle quiet = nullptr;
  bool asked = false, waited = false;
  for (const block_facts& block : leaked) {
    stream_handle on = block.stream;
    if (used != nullptr && used->alive() && !detail::keeps_its_handle(on)) {
      if (!std::exchange(asked, true))
        waited = wait_for_device(*used).ok() && quarantine_->quiet.get(*used, &quiet).ok();
      if (!waited) continue;  // it stays with the upstream: something may still use it
      on = quiet;
    }
    upstream().deallocate(reinterpret_cast<void*>(block.address), block.bytes, on);
  }
}

result<void*> guard_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                          stream_handle stream) {
  auto answer = upstream().try_allocate(bytes, alignment, stream);
  if (!answer && answer.error().code == error_code::out_of_memory && quarantined_bytes() > 0) {
    named_stream now{stream};
    if (gpu() != nullptr && !detail::keeps_its_handle(stream) &&
        !gpu()->id_outside_capture(stream, &now.id))
      now.id = 0;
    give_on(0, now);
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
  if (taken->bytes < quarantine_->most_bytes) {
    kept_back of{ptr, taken->bytes, stream};
    if (fence(of)) {
      try {
        const std::lock_guard lock(quarantine_->mutex);
        quarantine_->blocks.push_back(of);
        quarantine_->bytes += of.bytes;
      } catch (const std::bad_alloc&) {
        if (gpu() != nullptr) quarantine_->put_spare(*gpu(), of.freed);
        registry_->restore(*taken);
        return error{error_code::out_of_memory,
                     owner_->name + ": no host memory for the quarantine"};
      }
      give_on(quarantine_->most_bytes, {stream, of.stream_id});
      return {};
    }
  }
  auto answer = upstream().try_deallocate(ptr, taken->bytes, stream);
  if (!answer) registry_->restore(*taken);
  return answer;
}

// Records where the program's free stands in its stream, while its call names the stream. False
// where that cannot be: then the free goes on at once, as the program made it.
bool guard_resource::fence(kept_back& of) noexcept {
  driver* const used = gpu();
  if (used == nullptr) return true;
  // With another context current these name its streams, which nobody can name later.
  if (detail::of_another_context(*used, of.stream)) return false;
  if (detail::keeps_its_handle(of.stream)) return true;
  // A capture is asked for first: in one the free is its graph's, and an event would be too.
  if (!used->id_outside_capture(of.stream, &of.stream_id)) return false;
  const own_calls_scope own_calls(*used);
  of.freed = quarantine_->take_spare();
  if (of.freed == nullptr && !used->event_create(&of.freed).ok()) return false;
  if (used->event_record(of.freed, of.stream).ok()) return true;
  quarantine_->put_spare(*used, of.freed);
  return false;
}

// On which stream a block goes on: its own where the call that runs names that, or else a quiet one
// behind the free.
call_result guard_resource::choose_stream(const kept_back& of, named_stream now,
                                          stream_handle* out) noexcept {
  *out = of.stream;
  if (of.freed == nullptr) return {};
  if (now.id == of.stream_id) {
    *out = now.stream;
    return {};
  }
  driver& used = *gpu();
  if (const call_result made = quarantine_->quiet.get(used, out); !made.ok()) return made;
  const own_calls_scope own_calls(used);
  if (used.event_query(of.freed).ok()) return {};
  return used.stream_wait_event(*out, of.freed);
}

void guard_resource::give_on(std::uint64_t keep_bytes, named_stream now) noexcept {
  quarantine& q = *quarantine_;
  std::size_t attempts = 0;
  {
    const std::lock_guard lock(q.mutex);
    attempts = q.blocks.size();
  }
  for (; attempts > 0; --attempts) {
    std::list<kept_back> taken;
    {
      const std::lock_guard lock(q.mutex);
      if (q.blocks.empty() || q.bytes <= keep_bytes) return;
      taken.splice(taken.end(), q.blocks, q.blocks.begin());
      q.bytes -= taken.front().bytes;
    }
    const kept_back& oldest = taken.front();
    stream_handle on = nullptr;
    const call_result chosen = choose_stream(oldest, now, &on);
    // The default stream that was meant is our context's.
    std::optional<own_calls_scope> own_calls;
    if (oldest.freed == nullptr && gpu() != nullptr && !gpu()->in_own_context())
      own_calls.emplace(*gpu());
    const auto answer =
        chosen.ok() ? upstream().try_deallocate(oldest.ptr, oldest.bytes, on)
                    : result<void>(to_error(chosen, owner_->name + ": giving on a freed block"));
    if (answer) {
      if (oldest.freed != nullptr) q.put_spare(*gpu(), oldest.freed);
      continue;
    }
    // Its free was accepted long ago, so no caller can learn of it; it is kept and tried again.
    report(answer.error());
    const std::lock_guard lock(q.mutex);
    q.bytes += oldest.bytes;
    q.blocks.splice(q.blocks.end(), taken);
  }
}

void guard_resource::flush() noexcept {
  give_on(0, {});
}

std::uint64_t guard_resource::quarantined_bytes() const {
  const std::lock_guard lock(quarantine_->mutex);
  return quarantine_->bytes;
}

}  // namespace millpond
