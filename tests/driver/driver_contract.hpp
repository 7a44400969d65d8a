// What every driver must do, as one suite: included once by the test of the card and once by that
// of the simulated GPU, which so answer to the same sentences. Each including file instantiates it.
#pragma once
#include "driver/contract_memory.hpp"
#include "driver/contract_order.hpp"
