// The only file that is compiled again when the commit changes.
#include "cli/command.hpp"
#include "millpond_commit.hpp"

namespace millpond::cli {

const build_facts& build_info() {
  static const build_facts facts{MILLPOND_VERSION, MILLPOND_COMMIT, MILLPOND_COMPILER,
                                 MILLPOND_FLAVOUR};
  return facts;
}

}  // namespace millpond::cli
