// The five kinds of memory, each as a memory_resource.
#pragma once
#include "millpond/device_resource.hpp"
#include "millpond/driver_pool_resource.hpp"
#include "millpond/managed_resource.hpp"
#include "millpond/pageable_resource.hpp"
#include "millpond/pinned_resource.hpp"
