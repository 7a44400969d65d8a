// The recorder inside the recorded process.
#pragma once

namespace millpond::record {

class recorder;

// From the settings in the environment; null, with a line on stderr, where there are none or the
// file cannot be made. Once a process.
recorder* start_recorder();
// Starts CUPTI's callbacks; false, with a line on stderr, where there is no CUPTI or another
// subscriber is there.
bool subscribe(recorder& to);
// The last things that a recording says of itself.
void before_exit();

}  // namespace millpond::record
