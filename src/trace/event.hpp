// The event is public, since a program may take events from a trace_resource.
#pragma once
#include "millpond/trace/trace_event.hpp"
