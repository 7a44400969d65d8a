// PyTorch's memory snapshot (torch.cuda.memory._dump_snapshot): a pickle of plain data.
#pragma once
#include <memory>
#include <string_view>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"
#include "trace/source.hpp"

namespace millpond::trace {

// Does this look like a pickle of protocol 2 or later?
[[nodiscard]] bool is_pickle(std::string_view head) noexcept;

// The whole snapshot is read when this returns. Its entries are events in a spool by then, some 10
// bytes each, of which open_options::spool_limit_bytes are in memory; of the pickle stay its memo,
// at 4 bytes a container that was numbered (two an entry), and what entries share: texts, stacks,
// addresses, the blocks of the segments.
//
// `device_traces` become events as the CSV's rows do (several devices merged by time), frames
// become stacks, streams small numbers. PyTorch's history is a ring: what it had forgotten is put
// in front, as far as it can be known: a block that is freed but was never seen allocated, and a
// block of `segments` that is active at the end and in no event. Each gets an allocation at time 0;
// how many is in meta.notes
// ("blocks_before_recording"), so that peaks are right and every free has its allocation.
result<std::unique_ptr<event_reader>> read_snapshot(input_buffer from, const open_options& options);

}  // namespace millpond::trace
